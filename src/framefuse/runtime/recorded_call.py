"""What a call that recorded leaves: its own value, and the product that later calls run, or that a thread makes yet."""

from __future__ import annotations

import threading
from dataclasses import dataclass
from typing import TYPE_CHECKING, NoReturn

from framefuse.errors import Reason, let_go, rethrow
from framefuse.ir.values import Value

if TYPE_CHECKING:  # the rest of the stage is imported with the compiler
    from framefuse.runtime.compilation import Compilation
    from framefuse.runtime.resume_dispatch import ResumeDispatch


@dataclass(slots=True)
class Product:
    """One compiled trace and all that its stages made of it, with the seconds that each took and the number of the
    call that made it (0: a backward pass, outside any).
    """

    stages: Compilation
    seconds: dict[str, float]
    start: ResumeDispatch | None = None  # where it begins; None: at the function's beginning
    why: str | None = None  # what the trace before it did not hold for
    call: int = 0


@dataclass(slots=True)
class Outcome:
    """What recording and compiling one call gave: the call's own value or exception, and the reason why nothing was
    compiled, if so. ``learnt`` says that the next recording gets further, ``declined`` that the function did
    not run and shall, with no frame of ours below it, ``found`` that it did not run and compiled code is there now.
    """

    value: Value = None
    exception: BaseException | None = None
    reason: Reason | None = None
    learnt: bool = False
    declined: bool = False
    found: bool = False


def answer(outcome: Outcome) -> Value:
    """The value of a call, or its exception."""
    if outcome.exception is not None:
        throw(outcome)
    return outcome.value


def throw(outcome: Outcome) -> NoReturn:
    """Raises the exception of a call, and keeps nothing of the call that it does not hold under eager."""
    assert outcome.exception is not None
    let_go(outcome.exception)
    error, outcome.exception = outcome.exception, None
    try:
        rethrow(error)
    finally:
        del error


class Pending:
    """Code that another thread makes; ``done`` is set at its end, ``error`` is what the next call is to raise."""

    __slots__ = ("done", "error")

    def __init__(self) -> None:
        self.done = threading.Event()
        self.error: Exception | None = None
