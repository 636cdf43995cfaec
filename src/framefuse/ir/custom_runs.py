"""Notes which backwards of users run in a walk, and has what the driver makes of functions that run by themselves."""

from __future__ import annotations

import threading
from collections.abc import Callable

from framefuse.ir.values import Value

# A call of a custom function (ir/custom_calls), and the places of the arguments for which its backward gave None.
Ran = tuple[Callable[..., Value], frozenset[int]]
Compiling = Callable[[Callable[..., Value]], Callable[..., Value]]


class _Run(threading.local):
    """Which backwards of users ran in a walk of this thread, and for which arguments they gave None."""

    def __init__(self) -> None:
        self.calls: list[Ran] | None = None


RUN = _Run()
# What the driver calls in place of a "backward" of a user, and of a "step" of an optimizer on parts.
COMPILING: dict[str, Compiling] = {}


def compiled(kind: str, function: Callable[..., Value]) -> Callable[..., Value]:
    """What is called in place of a function of this kind."""
    compiling = COMPILING.get(kind)
    return function if compiling is None else compiling(function)
