"""Strides that sizes and the order of dimensions decide are run-time numbers: reading them compiles once."""

import pytest
import torch

import framefuse
from framefuse.runtime.function import compiled_function


def read(x):
    y = x.sin()
    turned = y.t()
    dense = y.is_contiguous(), turned.is_contiguous(), x.is_contiguous()
    return y * x.stride(0) + turned.stride()[1], y.stride(), turned.stride(-1), dense


def held(calls, traces):
    fast = framefuse.compile(read)
    for x in calls:
        found, expected = fast(x), read(x)
        torch.testing.assert_close(found[0], expected[0])
        assert found[1:] == expected[1:]
    assert len(compiled_function(fast).products) == traces


def test_one_trace_for_all_sizes_of_two_and_more():
    held([torch.randn(3 + number, 4 + 2 * number) for number in range(4)], 1)


def test_another_order_of_dimensions_is_another_trace():
    held([torch.randn(3 + number, 4) for number in range(3)] + [torch.randn(4, 3 + n).t() for n in range(3)], 2)


def test_dimensions_of_one_have_any_strides():
    large = torch.randn(5, 7)
    held([large, torch.randn(4, 3), large[:1], large[1:2, :3], large[:, :1], torch.randn(1, 1)], 5)


ORDERED_BY_SIZES = {
    "flattened": lambda x: x.transpose(1, 2).flatten(0, 1),
    "reshaped": lambda x: (x * 2).transpose(1, 2).reshape(x.shape[0] * 3, x.shape[1], 5).sin(),
    "cut": lambda x: x[:, :8].sin()[:2] if x.shape[0] > 2 else x[:, :8],
}


@pytest.mark.parametrize("name", ORDERED_BY_SIZES)
def test_strides_that_sizes_decide_are_those_of_the_call(name):
    """A batch of one is flattened to a view, a larger one to a copy."""

    def program(x):
        y = ORDERED_BY_SIZES[name](x)
        return y * y.stride(0), y.stride(), y.is_contiguous(), y.mT.stride(-1)

    fast = framefuse.compile(program)
    for sizes in ((1, 8), (1, 8), (2, 8), (2, 8), (1, 16), (1, 4), (3, 4), (3, 4), (2, 9)):
        x = torch.randn(*sizes, 3, 5)
        found, expected = fast(x), program(x)
        torch.testing.assert_close(found[0], expected[0])
        assert found[0].stride() == expected[0].stride()
        assert found[1:] == expected[1:]
