"""``flex_attention`` with functions of the user inside compiled code: scores and masks are part of the graph, with
eager's values, gradients, guards and refusals.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from tests.traps.trap import Table, Trap, hold, outcome
from torch.nn.attention.flex_attention import (
    AuxRequest,
    and_masks,
    create_block_mask,
    create_mask,
    flex_attention,
    or_masks,
)

TABLE = Table()
ROUNDS = range(3)
SLOPE = [0.1]


def heads(count: int = 3, length: int = 8) -> torch.Tensor:
    return torch.randn(2, count, length, 4)


def causal(length: int) -> Any:
    return create_block_mask(lambda b, h, i, j: i >= j, None, None, length, length, device="cpu")


@TABLE.trap(traces=1, hits=2)
def a_score_of_places(compiled: Any) -> Iterator[Any]:
    f = compiled(lambda q, k, v: flex_attention(q, k, v, score_mod=lambda s, b, h, i, j: s + (i - j) * 0.1))
    for _ in ROUNDS:
        yield f(heads(), heads(), heads())


@TABLE.trap(traces=1, hits=2)
def a_mask_with_rows_of_nothing(compiled: Any) -> Iterator[Any]:
    mask = create_block_mask(lambda b, h, i, j: (i > j) & (h != 1), None, 3, 8, 8, device="cpu")
    f = compiled(lambda q, k, v: flex_attention(q, k, v, block_mask=mask, scale=0.5))
    for _ in ROUNDS:
        yield f(heads(), heads(), heads())


@TABLE.trap(traces=1, hits=2)
def a_bias_that_is_read_at_places_trains(compiled: Any) -> Iterator[Any]:
    bias, mask = torch.nn.Parameter(torch.randn(3, 15)), causal(8)

    def f(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        return flex_attention(q, k, v, score_mod=lambda s, b, h, i, j: s + bias[h, i - j + 7], block_mask=mask)

    fast = compiled(f)
    for _ in ROUNDS:
        yield torch.autograd.grad(fast(heads(), heads(), heads()).sin().sum(), bias)


@TABLE.trap(traces=2, hits=4)
def sums_of_the_scores_are_wanted_too(compiled: Any) -> Iterator[Any]:
    bias, mask = torch.nn.Parameter(torch.randn(3)), causal(8)

    def f(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, wanted: bool) -> Any:
        score = lambda s, b, h, i, j: torch.where(i == 0, -torch.inf, s + bias[h])
        return flex_attention(q, k, v, score, mask, return_aux=AuxRequest(lse=wanted))

    fast = compiled(f)
    for number in range(6):
        result, aux = fast(heads(), heads(), heads(), number < 3)
        kept = result.sum() if aux.lse is None else aux.lse[:, :, 1:].sin().sum()
        yield result, aux, torch.autograd.grad(kept, bias)


@TABLE.trap(traces=2, hits=4)
def sums_of_the_scores_are_wanted_by_the_old_name(compiled: Any) -> Iterator[Any]:
    bias = torch.nn.Parameter(torch.randn(3))

    def f(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, wanted: bool) -> Any:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", FutureWarning)
            return flex_attention(q, k, v, lambda s, b, h, i, j: s * bias[h], return_lse=wanted)

    fast = compiled(f)
    for number in range(6):
        result = fast(heads(), heads(), heads(), number < 3)
        parts = result if isinstance(result, tuple) else (result,)
        yield result, torch.autograd.grad(parts[-1].sin().sum(), bias)


@TABLE.trap(traces=1, hits=2)
def groups_of_heads_in_bfloat16(compiled: Any) -> Iterator[Any]:
    f = compiled(lambda q, k, v: flex_attention(q, k, v, enable_gqa=True))
    for _ in ROUNDS:
        yield f(heads(6).bfloat16(), heads().bfloat16(), heads().bfloat16()).float().round(decimals=1)


@TABLE.trap(traces=2, hits=2)
def what_a_score_reads_is_guarded(compiled: Any) -> Iterator[Any]:
    f = compiled(lambda q, k, v: flex_attention(q, k, v, score_mod=lambda s, b, h, i, j: s * SLOPE[0]))
    for slope in (0.1, 0.1, 2.0, 2.0):
        SLOPE[0] = slope
        yield f(heads(), heads(), heads())
    SLOPE[0] = 0.1


@TABLE.trap(traces=4, hits=2)
def another_mask_is_another_trace(compiled: Any) -> Iterator[Any]:
    f = compiled(lambda q, k, v, mask: flex_attention(q, k, v, block_mask=mask))
    near = create_block_mask(lambda b, h, i, j: (i - j).abs() < 2, None, None, 8, 8, device="cpu")
    for mask, length in ((causal(8), 8), (near, 8), (causal(4), 4)):
        for _ in range(2):
            yield f(heads(length=length), heads(length=length), heads(length=length), mask)


@TABLE.trap(traces=1, hits=2)
def masks_that_are_joined(compiled: Any) -> Iterator[Any]:
    near = or_masks(lambda b, h, i, j: (i - j).abs() < 2, lambda b, h, i, j: j < h)
    mask = create_block_mask(and_masks(lambda b, h, i, j: i >= j, near), None, 3, 8, 8, device="cpu")
    f = compiled(lambda q, k, v: flex_attention(q, k, v, block_mask=mask))
    for _ in ROUNDS:
        yield f(heads(), heads(), heads())


@TABLE.trap(traces=1, hits=2)
def a_mask_that_is_made_inside(compiled: Any) -> Iterator[Any]:
    def f(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, part: torch.Tensor) -> torch.Tensor:
        mask = create_block_mask(
            lambda b, h, i, j: (i >= j) & (part[i] == part[j]), None, None, q.shape[2], k.shape[2], device="cpu"
        )
        return flex_attention(q, k, v, block_mask=mask)

    fast = compiled(f)
    for number in ROUNDS:
        yield fast(heads(), heads(), heads(), torch.arange(8) // (number + 2))


@TABLE.trap(traces=1, hits=2)
def a_mask_that_is_given_back(compiled: Any) -> Iterator[Any]:
    """Its table of blocks is eager's: full blocks, others, and which queries see a block."""

    def f(ends: torch.Tensor) -> Any:
        return create_block_mask(
            lambda b, h, i, j: (i >= j) | (j < ends[b]), 2, None, 40, 24, device="cpu", BLOCK_SIZE=8
        )

    fast = compiled(f)
    for number in ROUNDS:
        mask = fast(torch.tensor([3 * number, 9]))
        yield mask.as_tuple()[:10], mask.to_dense(), mask.sparsity()


@TABLE.trap(traces=1, hits=2)
def a_mask_of_scores_and_a_part_of_a_mask(compiled: Any) -> Iterator[Any]:
    whole = create_block_mask(lambda b, h, i, j: i >= j, None, None, 16, 16, device="cpu", BLOCK_SIZE=8)

    def f(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, last: torch.Tensor) -> Any:
        dense = create_mask(lambda s, b, h, i, j: torch.where(i >= j, s, -torch.inf), 1, 3, 8, 8, device="cpu")
        mask = whole._adjust(8, 8)
        mask.mask_mod = lambda b, h, i, j: i + last >= j
        return dense, flex_attention(q, k, v, block_mask=mask)

    fast = compiled(f)
    for number in ROUNDS:
        yield fast(heads(), heads(), heads(), torch.tensor(number))


@TABLE.trap(traces=2, hits=1, waits="native-call raises unknown-tensor transform")
def what_torch_refuses_is_refused(compiled: Any) -> Iterator[Any]:
    mask = causal(8)
    f = compiled(lambda q, k, v: flex_attention(q, k, v, block_mask=mask))
    for q, k in ((heads(), heads()), (heads(length=4), heads(length=4)), (heads(), heads())):
        yield outcome(f, q, k, k)
    yield outcome(f, heads().requires_grad_(), heads(), heads())


@pytest.fixture(autouse=True)
def no_earlier_masks() -> None:
    """Eager's call compiles by torch.compile, and raises a TypeError after eight masks of other code."""
    torch._dynamo.reset()


@TABLE.parametrize()
def test_row(trap: Trap) -> None:
    hold(trap)
