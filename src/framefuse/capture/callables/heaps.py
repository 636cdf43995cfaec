"""The functions of heapq in Python, as its own source has them beside those in C: they run in the interpreter."""

from __future__ import annotations

import heapq
import inspect
import types

from framefuse.capture.interp.machine import Machine, Special
from framefuse.capture.interp.registry import special
from framefuse.capture.program.frame import Frame
from framefuse.capture.program.markers import MISSING, Outcome
from framefuse.ir.own_class import is_a
from framefuse.ir.values import Arguments, Keywords, Value

NAMES = "heapify heappush heappop heapreplace heappushpop _heapify_max _heappop_max _heapreplace_max".split()


def _in_python() -> dict[str, Value]:
    """What the source of heapq defines before C takes its place."""
    text, marker, _ = inspect.getsource(heapq).partition("# If available, use C implementation")
    space: dict[str, Value] = {"__name__": "framefuse.capture.program.equivalents"}  # no frame of these is the user's
    exec(compile(text if marker else "", "heapq.py", "exec"), space)
    return space


_FOUND = _in_python()
HEAPS: dict[object, types.FunctionType] = {
    getattr(heapq, name): _FOUND[name]
    for name in NAMES
    if name in _FOUND and is_a(getattr(heapq, name, None), types.BuiltinFunctionType)
}


def _of_a_heap(equivalent: types.FunctionType) -> Special:
    """The special that runs ``equivalent`` on a list; what C code refuses is left to it."""

    def call(machine: Machine, frame: Frame, args: Arguments, kwargs: Keywords) -> Outcome:
        counts = equivalent.__code__.co_argcount == len(args) and not kwargs
        if not counts or type(args[0]) is not list or not machine.recorder.alive:
            return MISSING
        if not args[0] and equivalent.__name__ not in ("heapify", "heappush", "heappushpop", "_heapify_max"):
            return MISSING
        return machine.calls.call(frame, equivalent, args, {})

    return call


for _native, _equivalent in HEAPS.items():
    special(_native)(_of_a_heap(_equivalent))
