"""Says what a call enters, with which arguments and whether it may be recorded, and what a stretch of a run is."""

from __future__ import annotations

import inspect
import types
from typing import TYPE_CHECKING

from framefuse.capture.program.debuggers import hands_over
from framefuse.capture.program.decoded import COROUTINE_FLAGS
from framefuse.capture.program.frame import bind_locals
from framefuse.capture.program.leaves import runs_natively
from framefuse.capture.program.lookups import type_get
from framefuse.capture.program.versions import CURRENT
from framefuse.capture.recording.replaced_queries import refused as refused_now
from framefuse.errors import Reason
from framefuse.ir.frozen_classes import dataclass
from framefuse.ir.own_class import is_a
from framefuse.ir.source import written_at
from framefuse.ir.stops import reason
from framefuse.ir.trace import Trace
from framefuse.ir.values import Arguments, Function, Keywords, Value

if TYPE_CHECKING:
    from framefuse.capture.exits.resume_points import ResumePoint


@dataclass(slots=True)
class Segment:
    """A stretch of a run between two points: its ``trace``, the point where it ``start``\\s (None: the function's
    beginning) with the values ``bound`` there, and the point that it leads to (None: the call returns).
    """

    trace: Trace
    start: ResumePoint | None
    bound: tuple[Value, ...]
    follow: ResumePoint | None


@dataclass(frozen=True, slots=True)
class Entry:
    """The Python function that a call of an object enters, with the arguments that come first."""

    function: types.FunctionType
    leading: tuple[Value, ...]


def entry(function: Function) -> Entry | None:
    """What to interpret for a call of ``function``; None when it is not written in Python."""
    leading: tuple[Value, ...] = ()
    for _ in range(8):
        if is_a(function, types.FunctionType):
            return Entry(function, leading)
        if is_a(function, types.MethodType):
            leading, function = (function.__self__, *leading), function.__func__
            continue
        if is_a(function, type):
            return None
        method = type_get(type(function), "__call__")
        if not is_a(method, types.FunctionType):
            return None
        leading, function = (function, *leading), method
    return None


def bind(function: Function, args: Arguments, kwargs: Keywords) -> list[Value]:
    """The arguments in the order of the bound locals: parameters, then ``*args`` as a tuple and ``**kwargs`` as a dict.

    Raises the TypeError that the call itself raises.
    """
    first = entry(function)
    if first is None:
        raise TypeError(f"{function!r} is not a Python function")
    return bind_locals(first.function, (*first.leading, *args), kwargs)


def refused(function: Function, entry: Entry | None) -> Reason | None:
    """Why no call of ``function`` is recorded now, whatever its instructions are; None where one may be."""
    if CURRENT is None:
        return reason("python", "this version of Python", None)
    if entry is None:
        return reason("not-python", getattr(function, "__qualname__", type(function).__name__), None)
    line, code = written_at(entry.function), entry.function.__code__
    if code.co_flags & (COROUTINE_FLAGS | inspect.CO_GENERATOR):
        return reason("coroutine", code.co_qualname, line)
    if hands_over(code):
        return reason("debugger", code.co_qualname, line)
    if runs_natively(entry.function):
        return reason("not-python", code.co_qualname, line)
    mode = refused_now()
    return reason("torch-mode", mode, line) if mode is not None else None
