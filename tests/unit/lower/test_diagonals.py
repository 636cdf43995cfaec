"""Diagonals are views that kernels read where they lie: values, strides, memory and gradients, against eager."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from tests.unit.differential import tensors, twin

import framefuse
from framefuse.api import compiled_function
from framefuse.ir.plan import CallStep, KernelStep

CUBES: dict[str, Callable[[torch.Tensor], Any]] = {
    "copy": lambda x: x.diagonal().clone(),
    "in front of the last": lambda x: x.diagonal(1, 0, -1) * 2,
    "below": lambda x: x.diagonal(-2, -2, -1) + 1,
    "sum": lambda x: x.diagonal(0, 0, 1).sum(-1),
    "of a computed value": lambda x: torch.exp(x * 2).diagonal(1, 2, 1).amax(0),
    "of a diagonal": lambda x: x.diagonal(0, 1, 2).diagonal(0, 0, 1) * 3,
    "written before": lambda x: (lambda y: (y.add_(1), y.diagonal() * 2)[1])(x * 1),
    "written behind": lambda x: (lambda y: (y.diagonal(), y.add_(1))[0] * 2)(x * 1),
    "of linalg": lambda x: torch.linalg.diagonal(x, offset=1) * 2,
    "copied": lambda x: torch.diagonal_copy(x, 1, 0, 2) + 0,
}
MATRICES: dict[str, Callable[[torch.Tensor], Any]] = {
    "diag": lambda x: x.diag(),
    "diag below": lambda x: torch.diag(x, -1),
    "trace": lambda x: torch.trace(x),
    "trace of integers": lambda x: (x * 9).int().trace(),
}
LAYOUTS: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "contiguous": lambda x: x,
    "transposed": lambda x: x.transpose(0, -1).contiguous().transpose(0, -1),
    "cut": lambda x: torch.cat((x, x), -1)[..., 1 : x.size(-1) + 1],
}


def steps(compiled: Any) -> tuple[int, int]:
    """How many kernels and how many calls the last plan has."""
    plan = compiled_function(compiled).products[-1].stages.plan
    return tuple(sum(isinstance(step, kind) for step in plan.steps) for kind in (KernelStep, CallStep))


def check(function: Callable[[torch.Tensor], Any], *given: torch.Tensor) -> Any:
    """Compares calls with each tensor; all but the first run compiled code."""
    compiled = framefuse.compile(function)
    for x in given:
        mine, other = twin((x, x))
        expected, found = function(mine), compiled(other)
        for left, right in zip(tensors(expected), tensors(found), strict=True):
            torch.testing.assert_close(right, left)
            assert right.stride() == left.stride() and right._version == left._version
    assert compiled_function(compiled).dispatch.hits == len(given) - 1
    return compiled


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("name", CUBES)
def test_diagonals_of_more_dimensions(name: str, layout: str) -> None:
    compiled = check(CUBES[name], *(LAYOUTS[layout](torch.randn(4 + n, 6 + n, 8 + n)) for n in range(4)))
    assert steps(compiled) == (1, 0)


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("name", MATRICES)
def test_diagonals_of_matrices(name: str, layout: str) -> None:
    compiled = check(MATRICES[name], *(LAYOUTS[layout](torch.randn(5 + n, 9 + n)) for n in range(4)))
    assert steps(compiled) == (1, 0)


def test_a_diagonal_is_as_long_as_the_shorter_side() -> None:
    """Another side that ends it is another trace."""
    compiled = framefuse.compile(lambda x: x.diagonal(1) * 2)
    shapes = ((3, 7), (4, 9), (7, 3), (9, 4), (6, 6), (5, 8), (2, 3), (8, 2), (1, 2))
    for shape in shapes * 2:
        x = torch.randn(shape)
        torch.testing.assert_close(compiled(x), x.diagonal(1) * 2)
    assert compiled_function(compiled).dispatch.hits >= len(shapes)


@pytest.mark.parametrize("shape", [(3, 0), (2, 1), (0, 4)])
def test_a_diagonal_without_elements(shape: tuple[int, int]) -> None:
    check(lambda x: x.diagonal(1) * 2, *(torch.randn(shape) for _ in range(3)))


def test_a_run_time_offset() -> None:
    def moved(x: torch.Tensor, offset: int) -> torch.Tensor:
        return x.diagonal(offset).sum()

    compiled = framefuse.compile(moved)
    for offset in (1, 2, 3, 4, -1, -2, -3, 0):
        x = torch.randn(7, 9)
        torch.testing.assert_close(compiled(x, offset), moved(x, offset))
    assert compiled_function(compiled).dispatch.hits >= 3


def test_a_view_of_the_diagonal_leaves_as_one() -> None:
    def both(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        diagonal = x.diagonal(1)
        return diagonal, diagonal * 2

    compiled = framefuse.compile(both)
    for _ in range(3):
        x = torch.randn(5, 5)
        seen, twice = compiled(x)
        seen.fill_(3.0)
        assert x[0, 1] == 3.0 and seen._base is x
        assert not torch.equal(twice, seen)
    assert compiled_function(compiled).dispatch.hits == 2


def test_a_position_beside_the_diagonal_may_be_wrong_and_raises() -> None:
    """Eager computes every element of the operand, so that a bad index beside the diagonal is an error."""

    def rows(x: torch.Tensor, index: torch.Tensor) -> torch.Tensor:
        return x.gather(1, index).diagonal() * 2

    compiled = framefuse.compile(rows)
    x, index = torch.randn(4, 4), torch.zeros(4, 4, dtype=torch.long)
    for _ in range(3):
        compiled(x, index)
    index[0, 3] = 9
    with pytest.raises(RuntimeError, match="out of bounds"):
        compiled(x, index)


# The gradient that older versions of torch give of the trace of a high matrix is wrong below its square.
HIGH = None if torch.__version__ >= "2.13" else 18
GRADIENTS: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "whole": lambda x: x.diagonal().sin(),
    "cut": lambda x: x[1:, 2:].diagonal(1, 0, 1).sin() * 2,
    "of steps": lambda x: x[::2, ::3].diagonal().exp(),
    "read twice": lambda x: x.diagonal(1, 2, 1).sum(-1) * x.select(1, 0).sum(-1),
    "trace": lambda x: torch.trace(x[0, :HIGH]) * x[1].diag().prod(),
    "embedded": lambda x: torch.diag_embed(x, 1, 0, 2).sin(),
}


@pytest.mark.parametrize("name", GRADIENTS)
def test_gradients(name: str) -> None:
    compiled = framefuse.compile(GRADIENTS[name])
    for size in range(4):
        x = torch.randn(5 + size, 27, 18 + size, dtype=torch.float64, requires_grad=True)
        expected, found = GRADIENTS[name](x), compiled(x)
        weights = torch.randn_like(expected)
        (left,) = torch.autograd.grad(expected, x, weights, create_graph=True)
        (right,) = torch.autograd.grad(found, x, weights, create_graph=True)
        torch.testing.assert_close(right, left)
        if left.requires_grad:
            again = torch.randn_like(left)
            torch.testing.assert_close(torch.autograd.grad(right, x, again), torch.autograd.grad(left, x, again))
    assert compiled_function(compiled).dispatch.hits == 3
