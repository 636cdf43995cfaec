"""Tells code that hands control to a debugger, tracer or profiler: it runs as it is, so that each line can be seen."""

from __future__ import annotations

import dis
import functools
from types import CodeType, FunctionType

from framefuse.ir.values import Value

NAMES = frozenset(("breakpoint", "set_trace", "settrace", "setprofile"))
LOADS = frozenset(("LOAD_GLOBAL", "LOAD_NAME", "LOAD_ATTR", "LOAD_METHOD"))
JUMPS = frozenset((*dis.hasjrel, *dis.hasjabs))


@functools.lru_cache(maxsize=1024)
def hands_over(code: CodeType) -> bool:
    """Whether the code calls one whatever it is given: where a branch may leave that out, it is met when it is met."""
    if NAMES.isdisjoint(code.co_names):
        return False
    passed = 0  # how far a jump so far leads
    for step in dis.get_instructions(code):
        if step.opname in LOADS and step.argval in NAMES:
            return passed <= step.offset
        if step.opcode in JUMPS:
            passed = max(passed, step.argval)
    return False


def enters_debugger(target: Value) -> bool:
    """Whether a call stops the program, or is that of a function that does."""
    if target is breakpoint:
        return True
    if type(target) is not FunctionType:
        return False
    return (target.__module__ == "pdb" and target.__name__ == "set_trace") or hands_over(target.__code__)
