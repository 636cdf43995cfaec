"""Views that require grad whose memory the program replaces (``view.data = ...``, ``set_``). Autograd says what made a
view that was written by where the view lies when it is first asked: the replaced memory decides where gradients go.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from tests.traps.trap import Trap, hold
from torch import Tensor


def _after_a_write_without_gradients(x: Tensor, y: Tensor) -> Tensor:
    with torch.no_grad():
        y.sub_(x)
    y.data = x
    return x * 2


def _after_a_write_to_a_detached_view(x: Tensor, y: Tensor) -> Tensor:
    y.detach().mul_(2)
    y.data = x
    return x * 2


def _after_a_write_to_a_part(x: Tensor, y: Tensor) -> Tensor:
    y[0] = x[1]
    y.data = x
    return x * 2


def _after_a_write_to_a_view(x: Tensor, y: Tensor) -> Tensor:
    y.narrow(0, 1, 1).mul_(3)
    y.data = x
    return x * 2


def _after_a_write_to_itself(x: Tensor, y: Tensor) -> Tensor:
    y.mul_(x)
    y.data = x
    return x * 2


def _before_a_write(x: Tensor, y: Tensor) -> Tensor:
    found = x * 2
    y.data = x
    y.mul_(found)
    return found


def _of_a_result(x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
    z = y * 2
    v = z[1:]
    with torch.no_grad():
        v.mul_(2)
    v.data = x[1:]
    return v, x * 2


FUNCTIONS = (
    _after_a_write_without_gradients, _after_a_write_to_a_detached_view, _after_a_write_to_a_part,
    _after_a_write_to_a_view, _after_a_write_to_itself, _before_a_write, _of_a_result,
)  # fmt: skip


@pytest.mark.parametrize("function", FUNCTIONS)
def test_gradients_go_where_a_view_lies(function: Callable[[Tensor, Tensor], Any]) -> None:
    def program(compiled: Any) -> Iterator[Any]:
        f = compiled(function)
        for number, rows in enumerate((2, 3, 2, 3, 4)):
            generator = torch.Generator().manual_seed(number)
            leaf, x = (torch.randn(rows + part, 2, generator=generator, dtype=torch.float64) for part in (1, 0))
            y = (leaf.requires_grad_() * 1)[1:]
            found = f(x, y)
            parts = [part for part in (y, *(found if isinstance(found, tuple) else (found,))) if part.requires_grad]
            total = sum((part * torch.arange(part.numel()).reshape(part.shape)).sum() for part in parts)
            assert isinstance(total, Tensor)
            yield found, y, y._version, torch.autograd.grad(total, leaf)

    hold(Trap(program, traces=4, hits=3))


def test_writes_counted_before_a_history_do_not_ask_where_its_view_lies() -> None:
    def twice(x: Tensor, y: Tensor) -> Tensor:
        y[y > 0] = 3
        y += x
        y.data = x
        return x * 2

    def then_without_gradients(x: Tensor, y: Tensor) -> Tensor:
        y[y > 0] = 3
        y += x
        with torch.no_grad():
            y.mul_(2)
        y.data = x
        return x * 2

    def program(compiled: Any) -> Iterator[Any]:
        for function in (twice, then_without_gradients):
            f = compiled(function)
            for number, rows in enumerate((2, 3, 2, 3, 4)):
                generator = torch.Generator().manual_seed(number)
                leaf, plain = (torch.randn(2, rows, generator=generator, dtype=torch.float64) for _ in "xy")
                y = plain.t()
                found = f((leaf.requires_grad_() * 1).t().contiguous(), y)
                total = sum((part * torch.arange(part.numel()).reshape(part.shape)).sum() for part in (found, y))
                assert isinstance(total, Tensor)
                yield found, y, y._version, torch.autograd.grad(total, leaf)

    hold(Trap(program, traces=8, hits=6))
