"""Moves values on the stack and loads constants."""

from __future__ import annotations

import operator

from framefuse.capture.interp.machine import Machine
from framefuse.capture.interp.registry import handles
from framefuse.capture.program.frame import Frame
from framefuse.capture.program.markers import NULL
from framefuse.ir.values import Value


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
    frame.stack.append(_unlike_given(machine, value) if type(value) is tuple else value)


def _unlike_given(machine: Machine, value: tuple[Value, ...]) -> tuple[Value, ...]:
    """A constant tuple; an equal one where the caller gave this very object, or one that lies in it: constants of a
    module that are equal are one object, and what is known of the argument is nothing that the constant depends on.
    """
    parts = [_unlike_given(machine, part) if type(part) is tuple else part for part in value]
    if machine.recorder.sources.knows(value) or any(map(operator.is_not, parts, value)):
        return tuple(parts)
    return value


@handles("LOAD_ASSERTION_ERROR")
def load_assertion_error(machine: Machine, frame: Frame, argument: int) -> None:
    frame.stack.append(AssertionError)
