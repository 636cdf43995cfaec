"""Functional collectives as calls of graphs: one starts what fills its results, another waits until they are there."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch

from framefuse.ir.values import Value

# Those that read their operand while they run; the others begin with a copy of it.
READING = frozenset(("all_gather_into_tensor", "reduce_scatter_tensor", "all_to_all_single"))


class Committing:
    """A call in which other processes take part: it is made once, whatever becomes of the rest. ``counts``: how often a
    version is counted for what it writes.
    """

    __slots__ = ()
    commits = True
    counts: int


class Finishing(Committing):
    """One that waits: its operands are the memory that it gives as written, and what reads them comes behind it."""

    __slots__ = ()
    finishes = True


@dataclass(frozen=True, slots=True)
class Started(Committing):
    """Starts a functional collective, by its name in ``torch.ops._c10d_functional``, and gives what it fills; where
    ``waits``, once that is filled. The memory of operands is free to be used again.
    """

    name: str
    waits: bool = False

    def __call__(self, *args: Value) -> Value:
        if self.name in READING:
            args = (args[0].clone(), *args[1:])
        filled = getattr(torch.ops._c10d_functional, self.name)(*args)
        if self.waits:
            torch.ops._c10d_functional.wait_tensor(filled)
        return filled

    @property
    def __name__(self) -> str:
        return self.name


@dataclass(frozen=True, slots=True)
class Waited(Finishing):
    """Waits until what a :class:`Started` call fills is there; gives it."""

    counts: int = 0

    def __call__(self, *tensors: torch.Tensor) -> tuple[torch.Tensor, ...]:
        for tensor in tensors:
            torch.ops._c10d_functional.wait_tensor(tensor)
        return tensors

    @property
    def __name__(self) -> str:
        return "wait_tensor"


# ---- what layers split over processes exchange -----------------------------------------------------------------------
# Functions of autograd, each of which is another's gradient.


def _sum(tensor: torch.Tensor, group: str) -> torch.Tensor:
    total: torch.Tensor = torch.ops._c10d_functional.all_reduce(tensor, "sum", group)
    filled: torch.Tensor = torch.ops._c10d_functional.wait_tensor(total)
    return filled


class Entering(torch.autograd.Function):
    """A tensor that all processes have, each for its own part of what follows: its gradient is the sum of theirs."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, group: str) -> torch.Tensor:
        ctx.group = group
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> Value:
        return Leaving.apply(grad, ctx.group), None


class Leaving(torch.autograd.Function):
    """The sum of what the processes have; each has the whole gradient of it."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, group: str) -> torch.Tensor:
        ctx.group = group
        return _sum(x, group)

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> Value:
        return Entering.apply(grad, ctx.group), None


class Sharing(torch.autograd.Function):
    """The share of a process in a tensor that all have, of whose sum each has the whole gradient."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, processes: int) -> torch.Tensor:
        return x / processes

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> Value:
        return grad, None


EXCHANGES = (Entering, Leaving, Sharing)
