"""Copies in another memory order than their operand's (``contiguous``, ``clone``), beside the operand: what is computed
of either lies as eager's, and a copy that was none for one row is one for two.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from tests.traps.trap import Trap, hold
from torch import Tensor


def _written(x: Tensor) -> tuple[Tensor, ...]:
    whole = x + x
    rows = whole.contiguous()
    rows.index_put_((torch.tensor([0, -1]),), rows[:1] * 2)
    return whole, rows


def _sorted(x: Tensor) -> tuple[Tensor, ...]:
    whole = x + x
    rows = whole.contiguous()
    return whole, rows.sort(0).values, rows.logcumsumexp(0)


def _of_random_numbers(x: Tensor) -> tuple[Tensor, ...]:
    x.normal_()
    return x.clone(memory_format=torch.contiguous_format), x


def _back_and_forth(x: Tensor) -> tuple[Tensor, ...]:
    x.sub_(1)
    return x.t().contiguous().t().clone(), x.t()


def _column(x: Tensor) -> tuple[Tensor, ...]:
    column = x[:, 0]
    return column.contiguous(), column, x


def _turned_copy(x: Tensor) -> tuple[Tensor, ...]:
    return x.t().clone().t(), x * 2


FUNCTIONS = (_written, _sorted, _of_random_numbers, _back_and_forth, _column, _turned_copy)


@pytest.mark.parametrize("turned", [True, False])
@pytest.mark.parametrize("function", FUNCTIONS)
def test_orders_of_copies(function: Callable[[Tensor], tuple[Tensor, ...]], turned: bool) -> None:
    def program(compiled: Any) -> Iterator[Any]:
        f = compiled(function)
        for number, rows in enumerate((3, 4, 1, 5, 2, 4)):
            x = torch.randn(rows, 3, generator=torch.Generator().manual_seed(number), dtype=torch.float64)
            torch.manual_seed(number)
            parts = f(x.t().clone().t() if turned else x)
            parts[0].mul_(3)  # shows in whatever shares its memory
            yield parts

    hold(Trap(program, traces=3, hits=3))


@pytest.mark.parametrize("function", [_column, _turned_copy])
def test_orders_that_the_first_call_does_not_tell(function: Callable[[Tensor], tuple[Tensor, ...]]) -> None:
    for first in (0, 1):

        def program(compiled: Any, first: int = first) -> Iterator[Any]:
            f = compiled(function)
            for rows in (first, 4, first, 3, 5):
                parts = f(torch.arange(rows * 3.0).reshape(rows, 3))
                parts[0].mul_(3)
                yield parts

        hold(Trap(program, traces=3, hits=2))


@pytest.mark.parametrize(
    "function",
    [
        lambda x: x.t().reshape(-1, 6).exp(),
        lambda x: (x.t() * 2).reshape(6, -1) + 1,
        lambda x: x.t().reshape(-1, 6).sin().t(),
        lambda x: torch.stack([x.t().reshape(-1, 6).neg()]).sum(0),
    ],
)
@pytest.mark.parametrize("first", [(4, 9), (6, 6)])
def test_orders_that_a_later_result_shows(function: Callable[[Tensor], Tensor], first: tuple[int, int]) -> None:
    def program(compiled: Any) -> Iterator[Any]:
        f = compiled(function)
        for shape in (first, first, (6, 6), (4, 9), (3, 6), (6, 12), (1, 6), (6, 1), (8, 9)):
            yield f(torch.arange(float(shape[0] * shape[1])).reshape(shape))

    hold(Trap(program, traces=6, hits=2))
