"""Gradients that are differentiated again of programs whose saved tensors were written behind autograd's back: eager
computes both from what memory holds by then, through the history of what was saved.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from tests.traps.trap import Trap, hold
from torch import Tensor
from torch.nn import functional as F

Function = Callable[[Tensor], tuple[Tensor, ...]]


def _left_and_times_itself(x: Tensor) -> tuple[Tensor, ...]:
    y = x.exp()
    return y, y * (x * 1.5)


def _left_and_doubled(x: Tensor) -> tuple[Tensor, ...]:
    y = x.exp()
    return y, y * 2


def _left_and_squared(x: Tensor) -> tuple[Tensor, ...]:
    y = x.exp()
    return y, (y * y).sin()


def _written(x: Tensor) -> tuple[Tensor, ...]:
    x.exp_()
    return x, x * 2


def _written_between(x: Tensor) -> tuple[Tensor, ...]:
    z = x * 1.5
    x.exp_()
    return x, x * z


def _written_and_read(x: Tensor) -> tuple[Tensor, ...]:
    x.exp_()
    return x, x * 2, (x * 3).sin()


def _sine_of_a_sine(x: Tensor) -> tuple[Tensor, ...]:
    return (x.sin().sin() + x.cos(),)


def _alike(x: Tensor) -> tuple[Tensor, ...]:
    return (F.cosine_similarity(x, x.sin()),)


def _logsumexp(x: Tensor) -> tuple[Tensor, ...]:
    y = x.logsumexp(-1)
    return y, y * 2


def _length(x: Tensor) -> tuple[Tensor, ...]:
    y = x.norm(dim=-1)
    return y, (y * 1.5).cos()


FUNCTIONS: list[Function] = [
    _left_and_times_itself, _left_and_doubled, _left_and_squared, _written, _written_between, _written_and_read,
    _sine_of_a_sine, _alike, _logsumexp,
]  # fmt: skip


def _program(function: Function, of: int, what: str) -> Callable[[Any], Iterator[Any]]:
    def program(compiled: Any) -> Iterator[Any]:
        f = compiled(function)
        for number in range(4):
            generator = torch.Generator().manual_seed(number)
            leaf = torch.randn((3 + number % 2, 4), generator=generator, dtype=torch.float64).requires_grad_()
            given = leaf * 1
            results = f(given)
            (results[0] if what == "result" else given).data.mul_(1.5)
            (slope,) = torch.autograd.grad(results[of].sum(), leaf, create_graph=True)
            yield slope
            yield torch.autograd.grad(slope.square().sum(), leaf)

    return program


@pytest.mark.parametrize("what", ["result", "operand"])
@pytest.mark.parametrize("of", [0, -1])
@pytest.mark.parametrize("function", FUNCTIONS)
def test_second_gradients_of_written(function: Function, of: int, what: str) -> None:
    hold(Trap(_program(function, of, what), traces=2, hits=2))


FURTHER = [(_logsumexp, torch.float32), *((_length, each) for each in (torch.float32, torch.bfloat16, torch.float16))]


@pytest.mark.parametrize(("function", "dtype"), FURTHER)
def test_results_that_are_read_with_their_operands(function: Function, dtype: torch.dtype) -> None:
    def program(compiled: Any) -> Iterator[Any]:
        f = compiled(function)
        for number in range(4):
            generator = torch.Generator().manual_seed(number)
            x = torch.randn((3 + number % 2, 4), generator=generator).to(dtype).requires_grad_()
            results = f(x)
            results[0].data.mul_(2)
            yield torch.autograd.grad(results[1].sum(), x)

    hold(Trap(program, traces=2, hits=2))
