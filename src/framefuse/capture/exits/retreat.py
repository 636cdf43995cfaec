"""Takes an instruction back: one that looks at a number of a tensor, before which the segment ends, to go on with the
value, or one that ends the recording, which is then a step.

While such numbers are about, and where an earlier recording has ended early, each instruction runs by a handler that
remembers what it found. What an instruction has changed besides the stack of its frame is not taken back, so one that
does such things is none of these.
"""

from __future__ import annotations

import copy
import functools

import torch

from framefuse.capture.facts.atoms import ATOMS
from framefuse.capture.facts.numbers import TRACKED
from framefuse.capture.interp.machine import Handler, Machine
from framefuse.capture.program.breaks import Before
from framefuse.capture.program.decoded import HANDLERS, Code, decode
from framefuse.capture.program.frame import Frame
from framefuse.capture.program.iterators import RangeIterator
from framefuse.capture.program.leaves import MUTABLE_TYPES, NATIVE_KINDS
from framefuse.capture.program.markers import NULL, Outcome
from framefuse.ir.own_class import is_a
from framefuse.ir.values import Value

# Parts of the names of opcodes that advance iterators, of which nobody knows where they stood.
ADVANCING = ("EXTEND", "UPDATE", "UNPACK", "MERGE", "SEND", "CALL_FUNCTION_EX")
# Opcodes that move a value and never look at it: two thirds of what runs, which has nothing to take back.
RECORDED = 3  # of the numbers that say how much was done
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
            (handler if plain in moving else _remembering(handler, plain), argument)
            for (handler, argument), (plain, _) in zip(code.steps, decode(code.code).steps, strict=True)
        ]
        watched.watched = watched
    return code.watched


def _remembering(handler: Handler, plain: Handler) -> Handler:
    """``plain`` is the handler of the opcode, where ``handler`` breaks before it or makes it a step."""

    def run(machine: Machine, frame: Frame, argument: int) -> Outcome:
        machine.exits.before = Before(frame, plain, argument, _done(machine))
        try:
            return handler(machine, frame, argument)
        finally:
            machine.exits.before = None

    return run


def _done(machine: Machine) -> tuple[int, ...]:
    """How much was done so far, in numbers that only grow: what is recorded, then what ran besides."""
    recorder = machine.recorder
    recorded = len(machine.frames), len(recorder.calls), len(recorder.journal.writes)
    return *recorded, machine.inlined, recorder.memory.lasting


def untouched(machine: Machine, before: Before) -> bool:
    """Whether the recorder has refused the instruction at hand before it ran anything that lasts."""
    if machine.frames[-1] is not before.frame or _done(machine) != before.done:
        return False
    return before.handler in _calls() or undone(machine, before)


def undone(machine: Machine, before: Before) -> bool:
    """Whether the instruction has changed nothing but the stack of its frame."""
    handler = before.handler
    if machine.frames[-1] is not before.frame or _done(machine)[:RECORDED] != before.done[:RECORDED]:
        return False
    if handler is HANDLERS["FOR_ITER"]:
        return type(before.stack[-1]) is RangeIterator
    if handler in _calls():
        return all(map(_lasting, before.stack[-before.argument - 2 :]))
    return handler not in _advancing()


@functools.cache
def _calls() -> frozenset[Handler | None]:
    return frozenset((HANDLERS["CALL"], HANDLERS.get("CALL_KW")))


@functools.cache
def _advancing() -> frozenset[Handler]:
    return frozenset(handler for name, handler in HANDLERS.items() if any(part in name for part in ADVANCING))


def _lasting(value: Value) -> bool:
    """Whether a call cannot change ``value``, or call what it holds and change that."""
    kind = type(value)
    if kind in NATIVE_KINDS:
        return not is_a(getattr(value, "__self__", None), MUTABLE_TYPES)
    return value is NULL or kind in ATOMS or kind in TRACKED or is_a(value, (torch.Tensor, type))
