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


MADE_CONTIGUOUS = {
    "contiguous": lambda x: x.contiguous(),
    "cloned": lambda x: x.clone(memory_format=torch.contiguous_format),
    "a piece": lambda x: torch.cat([x, x], 1).chunk(2, 1)[1],
    "one of a stack": lambda x: torch.stack([x, x])[1],
    "rolled": lambda x: x.roll(0, 1),
    "shaped and back": lambda x: x.reshape(6, 5, 8).reshape(2, 3, 5, 8),
}
APART = {
    **SPARSE,
    "channels innermost": lambda made: torch.randn(2, 5, 8, 3, generator=made).permute(0, 3, 1, 2),
    "turned": lambda made: torch.randn(2, 3, 8, 5, generator=made).mT,
    "together": lambda made: torch.randn(2, 3, 5, 8, generator=made),
}


@pytest.mark.parametrize("how", MADE_CONTIGUOUS)
def test_what_the_program_makes_contiguous_the_kernel_gets_so(how):
    """The graph has one node for a value and its copy, and the argument may lie otherwise at a later call."""

    def attention(query, key, value):
        parts = (MADE_CONTIGUOUS[how](part) for part in (query, key, value))
        return torch.nn.functional.scaled_dot_product_attention(*parts)

    compiled = framefuse.compile(attention)
    for turn, lies in enumerate([lies for lies in APART.values() for _ in range(2)]):
        made = torch.Generator().manual_seed(turn)
        inputs = [lies(made).detach().requires_grad_() for _ in range(3)]
        found, expected = compiled(*inputs), attention(*inputs)
        torch.testing.assert_close(found, expected)
        wanted = torch.randn(expected.shape, generator=made)
        ours, theirs = (torch.autograd.grad(part, inputs, wanted) for part in (found, expected))
        torch.testing.assert_close(ours, theirs)
    assert compiled_function(compiled).dispatch.hits >= len(APART)


def test_a_value_that_leaves_in_another_order():
    def attention(query, key):
        scaled = query * 2
        return torch.nn.functional.scaled_dot_product_attention(scaled.contiguous(), key, key), scaled

    compiled = framefuse.compile(attention)
    for turn in range(4):
        made = torch.Generator().manual_seed(turn)
        inputs = [APART[name](made).detach().requires_grad_() for name in ("channels innermost", "together")]
        found, expected = compiled(*inputs), attention(*inputs)
        torch.testing.assert_close(found, expected)
        assert [part.stride() for part in found] == [part.stride() for part in expected]
    assert compiled_function(compiled).dispatch.hits == 3
