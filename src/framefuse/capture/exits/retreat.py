"""Takes an instruction back that looks at a number of a tensor: the segment ends before it, and goes on with the value.

While such numbers are about, each instruction runs by a handler that remembers what it found. What an instruction has
changed besides the stack of its frame is not taken back, so one that does such things is none of these.
"""

from __future__ import annotations

import copy
import functools

import torch

from framefuse.capture.facts.atoms import ATOMS
from framefuse.capture.facts.numbers import TRACKED
from framefuse.capture.interp.machine import Handler, Machine
from framefuse.capture.program.breaks import Before
from framefuse.capture.program.decoded import HANDLERS, Code
from framefuse.capture.program.frame import Frame
from framefuse.capture.program.iterators import RangeIterator
from framefuse.capture.program.leaves import MUTABLE_TYPES, NATIVE_KINDS
from framefuse.capture.program.markers import NULL, Outcome
from framefuse.ir.own_class import is_a
from framefuse.ir.values import Value

# Parts of the names of opcodes that advance iterators, of which nobody knows where they stood.
ADVANCING = ("EXTEND", "UPDATE", "UNPACK", "MERGE", "SEND", "CALL_FUNCTION_EX")
# Opcodes that move a value and never look at it: two thirds of what runs, which has nothing to take back.
MOVING = frozenset(
    ("LOAD_FAST", "LOAD_FAST_AND_CLEAR", "LOAD_CLOSURE", "STORE_FAST", "DELETE_FAST", "MAKE_CELL", "COPY_FREE_VARS",
     "LOAD_DEREF", "STORE_DEREF", "LOAD_GLOBAL", "LOAD_CONST", "PUSH_NULL", "POP_TOP", "COPY", "SWAP", "KW_NAMES",
     "JUMP_FORWARD", "JUMP_BACKWARD", "JUMP_BACKWARD_NO_INTERRUPT")
)  # fmt: skip


def watched(code: Code) -> Code:
    """``code`` with handlers that remember what they find."""
    if code.watched is None:
        code.watched = watched = copy.copy(code)
        moving = {HANDLERS.get(name) for name in MOVING}
        watched.steps = [
            (handler if handler in moving else _remembering(handler), argument) for handler, argument in code.steps
        ]
        watched.watched = watched
    return code.watched


def _remembering(handler: Handler) -> Handler:
    def run(machine: Machine, frame: Frame, argument: int) -> Outcome:
        recorder = machine.recorder
        machine.exits.before = Before(
            frame, handler, argument, len(machine.frames), len(recorder.calls), len(recorder.journal.writes)
        )
        try:
            return handler(machine, frame, argument)
        finally:
            machine.exits.before = None

    return run


def undone(machine: Machine, before: Before) -> bool:
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
def _advancing() -> frozenset[Handler]:
    return frozenset(handler for name, handler in HANDLERS.items() if any(part in name for part in ADVANCING))


def _lasting(value: Value) -> bool:
    """Whether a call cannot change ``value``, or call what it holds and change that."""
    kind = type(value)
    if kind in NATIVE_KINDS:
        return not is_a(getattr(value, "__self__", None), MUTABLE_TYPES)
    return value is NULL or kind in ATOMS or kind in TRACKED or is_a(value, (torch.Tensor, type))
