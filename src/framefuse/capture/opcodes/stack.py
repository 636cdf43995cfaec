"""Moves values on the stack and loads constants."""

from __future__ import annotations

from framefuse.capture.interp.machine import Machine
from framefuse.capture.interp.registry import handles
from framefuse.capture.program.frame import Frame
from framefuse.capture.program.markers import NULL


@handles("POP_TOP")
def pop_top(machine: Machine, frame: Frame, argument: int) -> None:
    frame.stack.pop()


@handles("PUSH_NULL")
def push_null(machine: Machine, frame: Frame, argument: int) -> None:
    frame.stack.append(NULL)


@handles("COPY")
def copy(machine: Machine, frame: Frame, argument: int) -> None:
    frame.stack.append(frame.stack[-argument])


@handles("SWAP")
def swap(machine: Machine, frame: Frame, argument: int) -> None:
    stack = frame.stack
    stack[-1], stack[-argument] = stack[-argument], stack[-1]


@handles("LOAD_CONST")
def load_const(machine: Machine, frame: Frame, argument: int) -> None:
    value = frame.code.constants[argument]
    if type(value) is tuple and machine.recorder.sources.knows(value):
        # The caller gave this very object; next time it may give another.
        machine.recorder.contents.guard_deep_contents(value)
    frame.stack.append(value)


@handles("LOAD_ASSERTION_ERROR")
def load_assertion_error(machine: Machine, frame: Frame, argument: int) -> None:
    frame.stack.append(AssertionError)
