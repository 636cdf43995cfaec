"""Associative scans of torch are recorded step by step: one graph, with gradients, in place of a call left alone."""

from __future__ import annotations

import pytest
import torch
from torch._higher_order_ops.associative_scan import associative_scan

import framefuse
from framefuse.api import compiled_function


def recurrence(left, right):
    return left[0] * right[0], right[0] * left[1] + right[1]


def states(decay, new):
    return associative_scan(recurrence, (decay, new), dim=2, combine_mode="generic")[1] * 2


def backwards(decay, new):
    return associative_scan(torch.mul, decay + new, dim=1, reverse=True, combine_mode="generic")


def products(decay, new):
    return associative_scan(lambda a, b: a @ b.T, decay[0] @ new[0].mT, 0, combine_mode="generic")


@pytest.mark.parametrize("function", [states, backwards, products])
def test_a_scan_is_one_graph(function):
    compiled = framefuse.compile(function)
    state = compiled_function(compiled)
    for turn in range(3):
        made = torch.Generator().manual_seed(turn)
        inputs = [torch.rand(2, 3, 5, 5, generator=made).requires_grad_() for _ in range(2)]
        found, expected = compiled(*inputs), function(*inputs)
        assert found.stride() == expected.stride()
        torch.testing.assert_close(found, expected)
        wanted = torch.rand(expected.shape, generator=made)
        ours, theirs = (torch.autograd.grad(part, inputs, wanted) for part in (found, expected))
        torch.testing.assert_close(ours, theirs)
    assert (state.dispatch.hits, len(state.products)) == (2, 1)
    assert not state.breaks


def test_a_long_scan_is_left_to_torch():
    compiled = framefuse.compile(backwards)
    for _ in range(3):
        x, y = torch.rand(2, 300), torch.rand(2, 300)
        torch.testing.assert_close(compiled(x, y), backwards(x, y))
    assert [stop.code for stop in compiled_function(compiled).breaks] == ["native-call"]


def test_what_torch_refuses_is_its_error():
    def scan(x):
        return associative_scan(torch.add, x, dim=5)

    compiled = framefuse.compile(scan)
    for _ in range(3):
        with pytest.raises(Exception) as found:
            compiled(torch.rand(3))
        with pytest.raises(found.type):
            scan(torch.rand(3))
