"""Jumps, and the truth that decides them."""

from __future__ import annotations

import functools

from framefuse.capture.interp.continuations import Jump, JumpAsked, JumpOrPop, PushAsked
from framefuse.capture.interp.machine import Machine
from framefuse.capture.interp.registry import handles
from framefuse.capture.program.frame import Frame
from framefuse.capture.program.markers import MISSING, Outcome


@handles("JUMP_FORWARD", "JUMP_BACKWARD", "JUMP_BACKWARD_NO_INTERRUPT")
def jump(machine: Machine, frame: Frame, argument: int) -> None:
    frame.step = argument


@handles("POP_JUMP_IF_FALSE")
def pop_jump_if_false(machine: Machine, frame: Frame, argument: int) -> Outcome:
    value = frame.stack[-1]
    if value is True or value is False:
        frame.stack.pop()
        if not value:
            frame.step = argument
        return None
    if machine.operations.reads_value(frame.stack[-1]):
        machine.operations.decide(frame, frame.stack.pop(), Jump(False, argument))
    asked = machine.operations.ask(frame, frame.stack[-1], functools.partial(JumpAsked, False, argument, False))
    if asked is not MISSING:
        return asked
    if not machine.operations.truth(frame.stack[-1]):
        frame.step = argument
    frame.stack.pop()
    return None


@handles("POP_JUMP_IF_TRUE")
def pop_jump_if_true(machine: Machine, frame: Frame, argument: int) -> Outcome:
    value = frame.stack[-1]
    if value is True or value is False:
        frame.stack.pop()
        if value:
            frame.step = argument
        return None
    if machine.operations.reads_value(frame.stack[-1]):
        machine.operations.decide(frame, frame.stack.pop(), Jump(True, argument))
    asked = machine.operations.ask(frame, frame.stack[-1], functools.partial(JumpAsked, True, argument, False))
    if asked is not MISSING:
        return asked
    if machine.operations.truth(frame.stack[-1]):
        frame.step = argument
    frame.stack.pop()
    return None


@handles("TO_BOOL")
def to_bool(machine: Machine, frame: Frame, argument: int) -> Outcome:
    value = frame.stack[-1]
    asked = machine.operations.ask(frame, value, functools.partial(PushAsked, False), True)
    if asked is MISSING:
        frame.stack[-1] = machine.operations.truth(value)
        return None
    return asked


def _is_none(machine: Machine, frame: Frame) -> bool:
    value = frame.stack.pop()
    if value is not None:
        machine.recorder.sources.guard_type(value)
    return value is None


@handles("POP_JUMP_IF_NONE")
def pop_jump_if_none(machine: Machine, frame: Frame, argument: int) -> None:
    if _is_none(machine, frame):
        frame.step = argument


@handles("POP_JUMP_IF_NOT_NONE")
def pop_jump_if_not_none(machine: Machine, frame: Frame, argument: int) -> None:
    if not _is_none(machine, frame):
        frame.step = argument


@handles("JUMP_IF_FALSE_OR_POP")
def jump_if_false_or_pop(machine: Machine, frame: Frame, argument: int) -> Outcome:
    if machine.operations.reads_value(frame.stack[-1]):
        machine.operations.decide(frame, frame.stack[-1], JumpOrPop(False, argument))
    asked = machine.operations.ask(frame, frame.stack[-1], functools.partial(JumpAsked, False, argument, True))
    if asked is not MISSING:
        return asked
    if not machine.operations.truth(frame.stack[-1]):
        frame.step = argument
    else:
        frame.stack.pop()
    return None


@handles("JUMP_IF_TRUE_OR_POP")
def jump_if_true_or_pop(machine: Machine, frame: Frame, argument: int) -> Outcome:
    if machine.operations.reads_value(frame.stack[-1]):
        machine.operations.decide(frame, frame.stack[-1], JumpOrPop(True, argument))
    asked = machine.operations.ask(frame, frame.stack[-1], functools.partial(JumpAsked, True, argument, True))
    if asked is not MISSING:
        return asked
    if machine.operations.truth(frame.stack[-1]):
        frame.step = argument
    else:
        frame.stack.pop()
    return None
