"""Rows of small programs: a function, the inputs of each of its calls, and eager's results, writes and gradients."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import torch
from tests.traps.trap import Program, Table, outcome

MOST = 30  # compilations of one program: what is held here is what it gives, and that compiled code ran
Given = Callable[[int], tuple[Any, ...]]


def draw(number: int, *sizes: int, dtype: torch.dtype = torch.float32, grad: bool = False) -> torch.Tensor:
    """The tensor of the call with this number."""
    seed = torch.Generator().manual_seed(100 + number)
    if dtype.is_floating_point or dtype.is_complex:
        return torch.randn(*sizes, generator=seed, dtype=dtype).requires_grad_(grad)
    if dtype is torch.bool:
        return torch.randint(0, 2, sizes, generator=seed).bool()
    return torch.randint(-9, 10, sizes, generator=seed).to(dtype)


class Rows(Table):
    """The small programs of one file."""

    def case(self, given: Given | None = None, grad: bool = False) -> Callable[[Any], Any]:
        """Adds a function that is called four times, with the inputs that ``given`` makes for each."""

        def add(function: Any) -> Any:
            def program(compiled: Any) -> Iterator[Any]:
                fast = compiled(function)
                for number in range(4):
                    args = (draw(number, 3, 4),) if given is None else given(number)
                    made = outcome(fast, *args)
                    yield made, list(args)
                    if grad:
                        yield _gradients(made, args)

            program.__name__ = function.__name__
            self.trap(MOST, 1)(program)
            return function

        return add

    def program(self, function: Program) -> Program:
        """Adds a program that calls what it compiles itself."""
        return self.trap(MOST, 1)(function)

    def each(self, function: Any) -> Any:
        """Adds a function of three numbers."""
        return self.case(lambda number: (draw(number, 3),))(function)


def _gradients(made: Any, args: tuple[Any, ...]) -> list[Any]:
    parts = made if isinstance(made, (tuple, list)) else [made]
    losses = []
    for part in parts:
        if isinstance(part, torch.Tensor) and part.requires_grad:
            weights = torch.linspace(1, 2, part.numel(), dtype=part.real.dtype).view(part.shape)
            losses.append(((part.abs() if part.is_complex() else part) * weights).sum())
    if losses:
        torch.autograd.backward(losses)
    return [value.grad if isinstance(value, torch.Tensor) else None for value in args]
