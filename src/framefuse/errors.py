"""The three ways in which compiling ends early: the user's mistake, a stop that leaves code eager, our own bug."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NoReturn

from framefuse.ir.source import Line


class UserError(ValueError):
    """A wrong argument given to framefuse itself; the text ends with one thing to do."""


class Recompile(UserError, RuntimeError):
    """A call that would compile where torch's stance forbids it; torch raises a RuntimeError there."""


def kind_of(value: object) -> str:
    """The type of ``value`` with its article, for the text of an error: a Tensor, an int."""
    name = type(value).__name__
    return f"{'an' if name[0] in 'aeioAEIO' else 'a'} {name}"


@dataclass(frozen=True, slots=True)
class Reason:
    """Why a piece of the program stays eager: catalogue ``code``, the user's ``line``, one sentence of ``fact``, one
    sentence of ``advice``.
    """

    code: str
    fact: str
    advice: str
    line: Line | None = None

    def __str__(self) -> str:
        place = f"{self.line}\n    {self.line.text}\n" if self.line else ""
        return f"{place}{self.fact}  [{self.code}]\n  {self.advice}"


class Stop(Exception):
    """Raised inside the compiler where the program cannot be compiled further; the call completes eagerly."""

    def __init__(self, reason: Reason) -> None:
        super().__init__(str(reason))
        self.reason = reason


class Pinned(Exception):
    """A fault of ours, the cause of this, on the operation at ``line`` of the program."""

    def __init__(self, line: Line | None) -> None:
        super().__init__(str(line))
        self.line = line


class CompilerBug(AssertionError):
    """Something inside framefuse broke its own rules; caught at the border, logged once, and the call completes
    eagerly.
    """


def rethrow(error: BaseException) -> NoReturn:
    """Raises ``error`` with the context that it has; Python's own ``raise`` would put another in its place."""
    context = error.__context__
    try:
        raise error
    except BaseException:
        error.__context__ = context
        raise
    finally:
        del error, context  # the traceback holds this frame: no cycle


def let_go(error: BaseException) -> None:
    """Clears the finished frames of framefuse behind the traceback of ``error``: their locals hold the call's values.

    An entry of the traceback has a frame, and that the frame which called it, although it is done: one of them holds
    ``error`` itself, so that all of this would live until the cyclic collector runs.
    """
    trace, seen = error.__traceback__, set()
    while trace is not None:
        frame = trace.tb_frame.f_back
        while frame is not None and frame not in seen:
            seen.add(frame)
            if frame.f_globals.get("__name__", "").startswith("framefuse."):
                try:
                    frame.clear()
                except RuntimeError:  # it is under way, and so are those that called it
                    break
            frame = frame.f_back
        trace = trace.tb_next
