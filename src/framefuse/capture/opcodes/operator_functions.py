"""Lets the functions of Python's ``operator`` module do what the instructions of the same name do."""

from __future__ import annotations

import operator

from framefuse.capture.interp.machine import Handler, Machine, Special
from framefuse.capture.interp.registry import special
from framefuse.capture.opcodes.operators import COMPARE, FUNCTIONS, IN_PLACE, binary_op, compare_op
from framefuse.capture.program.decoded import HANDLERS
from framefuse.capture.program.frame import Frame
from framefuse.capture.program.markers import MISSING, Outcome
from framefuse.capture.program.natives import COMPARISONS
from framefuse.ir.values import Arguments, Keywords


def _as_instruction(handler: Handler, argument: int, count: int) -> Special:
    def call(machine: Machine, frame: Frame, args: Arguments, kwargs: Keywords) -> Outcome:
        if len(args) != count or kwargs:
            return MISSING
        frame.stack.extend(args)
        return handler(machine, frame, argument)

    return call


@special(operator.call, pure=True)
def _call(machine: Machine, frame: Frame, args: Arguments, kwargs: Keywords) -> Outcome:
    return machine.calls.call(frame, args[0], args[1:], kwargs) if args else MISSING


IN = _as_instruction(HANDLERS["CONTAINS_OP"], 0, 2)


@special(operator.contains, pure=True, compares=COMPARISONS)
def _contains(machine: Machine, frame: Frame, args: Arguments, kwargs: Keywords) -> Outcome:
    return MISSING if len(args) != 2 or kwargs else IN(machine, frame, (args[1], args[0]), kwargs)


special(operator.neg, pure=True)(_as_instruction(HANDLERS["UNARY_NEGATIVE"], 0, 1))
special(operator.invert, pure=True)(_as_instruction(HANDLERS["UNARY_INVERT"], 0, 1))
special(operator.not_, pure=True)(_as_instruction(HANDLERS["UNARY_NOT"], 0, 1))
special(operator.getitem, pure=True)(_as_instruction(HANDLERS["BINARY_SUBSCR"], 0, 2))
special(operator.is_, pure=True)(_as_instruction(HANDLERS["IS_OP"], 0, 2))
special(operator.is_not, pure=True)(_as_instruction(HANDLERS["IS_OP"], 1, 2))
for _place, _function in enumerate(FUNCTIONS):
    special(_function, pure=True)(_as_instruction(binary_op, _place, 2))
for _place, _function in enumerate(IN_PLACE):
    special(_function)(_as_instruction(binary_op, 13 + _place, 2))
for _place, (_, _function) in enumerate(COMPARE):
    special(_function, pure=True, compares=COMPARISONS)(_as_instruction(compare_op, _place, 2))
