"""Fused attention with gradients, on queries, keys and values that lie in memory in any order of dimensions."""

from __future__ import annotations

import itertools

import pytest
import torch

import framefuse
from framefuse.api import compiled_function


def attend(query, key, value):
    return torch.nn.functional.scaled_dot_product_attention(query, key * 2, value).sin()


@pytest.mark.parametrize("heads", [1, 3])
@pytest.mark.parametrize("order", list(itertools.permutations(range(4))), ids=str)
def test_any_order_of_dimensions(order, heads):
    compiled = framefuse.compile(attend)
    back = [order.index(place) for place in range(4)]
    sizes = (2, heads, 5, 8)
    for turn in range(4):
        made = torch.Generator().manual_seed(turn)
        inputs = [
            torch.randn([sizes[place] for place in order], generator=made).permute(back).requires_grad_()
            for _ in range(3)
        ]
        found, expected = compiled(*inputs), attend(*inputs)
        assert found.stride() == expected.stride()
        torch.testing.assert_close(found, expected)
        wanted = torch.randn(expected.shape, generator=made)
        ours, theirs = (torch.autograd.grad(part, inputs, wanted) for part in (found, expected))
        torch.testing.assert_close(ours, theirs)
    assert compiled_function(compiled).dispatch.hits == 3


SPARSE = {
    "expanded": lambda made: torch.randn(2, 3, 5, 1, generator=made).expand(2, 3, 5, 8),
    "every other": lambda made: torch.randn(2, 3, 5, 16, generator=made)[..., ::2],
    "part of a row": lambda made: torch.randn(2, 3, 5, 11, generator=made)[..., 2:10],
}


@pytest.mark.parametrize("place", range(3))
@pytest.mark.parametrize("how", SPARSE)
def test_rows_whose_elements_do_not_lie_together(how, place):
    """Eager leaves the kernel to rows that do: it reads neighbours, whatever the last stride is."""

    def attention(query, key, value):
        return torch.nn.functional.scaled_dot_product_attention(query, key, value, is_causal=True)

    compiled = framefuse.compile(attention)
    for turn in range(4):
        made = torch.Generator().manual_seed(turn)
        inputs = [torch.randn(2, 3, 5, 8, generator=made) for _ in range(3)]
        inputs[place] = SPARSE[how](made)
        inputs = [part.detach().requires_grad_() for part in inputs]
        found, expected = compiled(*inputs), attention(*inputs)
        torch.testing.assert_close(found, expected)
        wanted = torch.randn(expected.shape, generator=made)
        ours, theirs = (torch.autograd.grad(part, inputs, wanted) for part in (found, expected))
        torch.testing.assert_close(ours, theirs)
    assert compiled_function(compiled).dispatch.hits >= 2
