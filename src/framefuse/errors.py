"""The three ways in which compiling ends early: the user's mistake, a stop that leaves code eager, our own bug."""

from __future__ import annotations

import errno
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import NoReturn

from framefuse.ir.source import Line


class UserError(ValueError):
    """A wrong argument given to framefuse itself; the text ends with one thing to do."""


class Recompile(UserError, RuntimeError):
    """A call that would compile where torch's stance forbids it; torch raises a RuntimeError there."""


class Unwritable(UserError, OSError):
    """A file that cannot be written where a user asked for it; the text begins with the line that did."""

    def __init__(self, path: str | os.PathLike[str], error: OSError) -> None:
        folder = Path(path).absolute().parent
        if Path(path).is_dir():
            advice = "Give the name of a file in it"
        elif not folder.exists():
            advice = f"Make the folder {folder} first"
        else:
            advice = "Give the name of a file that you can write"
        line = calling_line()
        place = f"{line}\n    {line.text}\n" if line is not None else ""
        super().__init__(f"{place}{os.fspath(path)} cannot be written: {error.strerror or error}. {advice}")
        self.errno, self.strerror, self.filename = error.errno, error.strerror, os.fspath(path)

    def __str__(self) -> str:
        return str(self.args[0])


@contextmanager
def writing(path: str | os.PathLike[str]) -> Iterator[None]:
    """Around what writes a file for a user, to raise what says what to do."""
    try:
        yield
    except OSError as error:
        raise Unwritable(path, error) from error


def demand_folder(path: str | os.PathLike[str]) -> None:
    """Raises what :func:`writing` would, before work of minutes whose result would have no place."""
    if not Path(path).absolute().parent.exists():
        raise Unwritable(path, OSError(errno.ENOENT, os.strerror(errno.ENOENT)))


def calling_line() -> Line | None:
    """The line that called framefuse; None where nothing else runs."""
    frame = sys._getframe(1)
    while frame.f_globals.get("__name__", "").partition(".")[0] in ("framefuse", "contextlib"):
        if frame.f_back is None:
            return None
        frame = frame.f_back
    return Line(frame.f_code.co_filename, frame.f_lineno, frame.f_code.co_qualname)


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
