"""Takes an instruction back that looks at a number of a tensor: the segment ends before it, and goes on with the value.

While such numbers are about, each instruction runs by a handler that remembers what it found. What an instruction has
changed besides the stack of its frame is not taken back, so one that does such things is none of these.
"""

from __future__ import annotations

import copy
import functools
from collections.abc import Callable
from typing import Any

import torch

from framefuse.capture.atoms import ATOMS
from framefuse.capture.breaks import Break
from framefuse.capture.code import HANDLERS, Code
from framefuse.capture.frame import NULL, Frame
from framefuse.capture.iterators import RangeIterator
from framefuse.capture.leaves import MUTABLE_TYPES, NATIVE_KINDS
from framefuse.capture.numbers import TRACKED

# Parts of the names of opcodes that advance iterators, of which nobody knows where they stood.
ADVANCING = ("EXTEND", "UPDATE", "UNPACK", "MERGE", "SEND", "CALL_FUNCTION_EX")


class Before:
    """What an instruction found: its handler, the frame with its stack, and how much was recorded."""

    __slots__ = ("argument", "calls", "frame", "frames", "handler", "keywords", "stack", "step", "writes")

    def __init__(self, machine: Any, frame: Frame, handler: Callable[..., Any], argument: int) -> None:
        self.frame, self.handler, self.argument = frame, handler, argument
        self.stack, self.keywords, self.step = frame.stack[:], frame.keywords, frame.step - 1
        self.frames, self.calls = len(machine.frames), len(machine.recorder.calls)
        self.writes = len(machine.recorder.journal.writes)


def watched(code: Code) -> Code:
    """``code`` with handlers that remember what they find."""
    if code.watched is None:
        code.watched = made = copy.copy(code)
        made.steps = [(_remembering(handler), argument) for handler, argument in code.steps]
        made.watched = made
    return code.watched


def _remembering(handler: Callable[..., Any]) -> Callable[..., Any]:
    def run(machine: Any, frame: Frame, argument: int) -> Any:
        machine.before = Before(machine, frame, handler, argument)
        try:
            return handler(machine, frame, argument)
        finally:
            machine.before = None

    return run


def retreat(machine: Any, detail: str) -> None:
    """Ends the segment before the instruction at hand; returns where that cannot be."""
    before = machine.before
    if before is None or not machine.breakable() or not _undone(machine, before):
        return
    frame = before.frame
    frame.stack[:], frame.keywords, frame.step = before.stack, before.keywords, before.step
    raise Break(None, (), {}, None, "item", detail)


def _undone(machine: Any, before: Before) -> bool:
    """Whether the instruction has changed nothing but the stack of its frame."""
    recorder, handler = machine.recorder, before.handler
    if machine.frames[-1] is not before.frame or len(machine.frames) != before.frames:
        return False
    if len(recorder.calls) != before.calls or len(recorder.journal.writes) != before.writes:
        return False
    if handler is HANDLERS["FOR_ITER"]:
        return type(before.stack[-1]) is RangeIterator
    if handler in (HANDLERS["CALL"], HANDLERS.get("CALL_KW")):
        return all(map(_lasting, before.stack[-before.argument - 2 :]))
    return handler not in _advancing()


@functools.cache
def _advancing() -> frozenset[Any]:
    return frozenset(handler for name, handler in HANDLERS.items() if any(part in name for part in ADVANCING))


def _lasting(value: Any) -> bool:
    """Whether a call cannot change ``value``, or call what it holds and change that."""
    kind = type(value)
    if kind in NATIVE_KINDS:
        return not isinstance(getattr(value, "__self__", None), MUTABLE_TYPES)
    return value is NULL or kind in ATOMS or kind in TRACKED or isinstance(value, (torch.Tensor, type))
