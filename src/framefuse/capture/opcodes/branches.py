"""Jumps, and the truth that decides them."""

from __future__ import annotations

import functools

import torch

from framefuse.capture.facts.numbers import NUMBERS
from framefuse.capture.interp.continuations import Jump, JumpAsked, JumpOrPop, PushAsked
from framefuse.capture.interp.machine import Machine
from framefuse.capture.interp.registry import handles
from framefuse.capture.program.frame import Frame
from framefuse.capture.program.markers import MISSING, Outcome
from framefuse.capture.recording import element_reads
from framefuse.ir.own_class import is_a


@handles("JUMP_FORWARD", "JUMP_BACKWARD", "JUMP_BACKWARD_NO_INTERRUPT")
def jump(machine: Machine, frame: Frame, argument: int) -> None:
    frame.step = argument


def _pop_jump_if(when: bool, machine: Machine, frame: Frame, argument: int) -> Outcome:
    value = frame.stack[-1]
    if value is True or value is False:
        frame.stack.pop()
        if value is when:
            frame.step = argument
        return None
    if is_a(value, torch.Tensor):
        _jump_by_tensor(when, machine, frame, argument)
        return None
    if type(value) in NUMBERS:
        outcome = element_reads.compared(machine.recorder, frame, frame.step - 1, "!=", value, 0)
        if outcome is not None:
            frame.stack[-1] = outcome
            return _pop_jump_if(when, machine, frame, argument)
    asked = machine.operations.ask(frame, value, functools.partial(JumpAsked, when, argument, False))
    if asked is not MISSING:
        return asked
    if machine.operations.truth(value) is when:
        frame.step = argument
    frame.stack.pop()
    return None


def _jump_by_tensor(when: bool, machine: Machine, frame: Frame, argument: int) -> None:
    """Where the way not taken is rare, each run checks that this one is taken; else a step takes the truth."""
    value = frame.stack[-1]
    outcome = element_reads.expected(machine.recorder, frame, frame.step - 1, value)
    if outcome is None and machine.operations.reads_value(value):
        machine.operations.decide(frame, frame.stack.pop(), Jump(when, argument))
    if (machine.operations.truth(value) if outcome is None else outcome) is when:
        frame.step = argument
    frame.stack.pop()


@handles("POP_JUMP_IF_FALSE")
def pop_jump_if_false(machine: Machine, frame: Frame, argument: int) -> Outcome:
    return _pop_jump_if(False, machine, frame, argument)


@handles("POP_JUMP_IF_TRUE")
def pop_jump_if_true(machine: Machine, frame: Frame, argument: int) -> Outcome:
    return _pop_jump_if(True, machine, frame, argument)


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
