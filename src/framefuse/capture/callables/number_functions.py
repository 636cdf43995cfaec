"""Builtins and functions of math over run-time numbers: what they make is one as well."""

from __future__ import annotations

import math
import operator
from collections.abc import Callable

from framefuse.capture.callables.specials import method_of
from framefuse.capture.facts.numbers import (
    NUMBERS,
    Float,
    Integer,
    applied,
    as_real,
    bare,
    computed,
    floating,
    plain_number,
    rounded,
)
from framefuse.capture.facts.owner import Owner
from framefuse.capture.interp.machine import Machine
from framefuse.capture.interp.registry import special
from framefuse.capture.program.frame import Frame
from framefuse.capture.program.markers import MISSING, Outcome
from framefuse.capture.program.natives import CONVERSIONS
from framefuse.capture.recording import element_reads
from framefuse.ir.numbers import C_FUNCTIONS, Real, constant_real
from framefuse.ir.values import Arguments, Function, Keywords, Value

# Functions of math -> operations on reals with the same results; where one raises an error the other declines.
FUNCTIONS: dict[Function, tuple[str, int]] = {getattr(math, name): (name, 1) for name in C_FUNCTIONS} | {
    math.sqrt: ("sqrt", 1), math.fabs: ("abs", 1), math.pow: ("pow", 2), math.fmod: ("fmod", 2),
    math.atan2: ("atan2", 2), math.copysign: ("copysign", 2),
}  # fmt: skip
# CPython multiplies by these.
SCALES = {math.degrees: 180.0 / math.pi, math.radians: math.pi / 180.0}


def _in_range(value: Value) -> bool:
    """Whether a number is a float, or an int that can be one; math takes the logarithm of larger ones too."""
    return type(value) is not int or -(2**63) <= value < 2**63


def run_time(args: Arguments, kwargs: Keywords, *counts: int) -> Owner | None:
    """The recorder of a run-time number among ``args``, None where there is none or they are no numbers."""
    if kwargs or len(args) not in counts or not all(type(part) in NUMBERS and _in_range(part) for part in args):
        return None
    return next((part.owner for part in args if type(part) in (Integer, Float)), None)


@special(int, pure=True, reads_value=True)
def _int(machine: Machine, frame: Frame, args: Arguments, kwargs: Keywords) -> Outcome:
    if len(args) == 1 and not kwargs:
        if type(args[0]) in (Integer, Float):
            frame.stack.append(args[0] if type(args[0]) is Integer else rounded("trunc", int, args[0]))
            return None
        return method_of(machine, frame, args[0], "__int__")
    return MISSING


@special(float, pure=True, reads_value=True)
def _float(machine: Machine, frame: Frame, args: Arguments, kwargs: Keywords) -> Outcome:
    if len(args) != 1 or kwargs:
        return MISSING
    if type(args[0]) is Integer:
        frame.stack.append(args[0] / 1 if abs(int.__index__(args[0])) < 2**53 else args[0].plain() / 1)
        return None
    if type(args[0]) is Float:
        frame.stack.append(args[0])
        return None
    return method_of(machine, frame, args[0], "__float__")


@special(abs, pure=True)
def _abs(machine: Machine, frame: Frame, args: Arguments, kwargs: Keywords) -> Outcome:
    if len(args) == 1 and type(args[0]) in (Integer, Float):
        frame.stack.append(abs(args[0]))
        return None
    return method_of(machine, frame, args[0], "__abs__") if len(args) == 1 else MISSING


@special(pow, pure=True, asks=CONVERSIONS)
def _pow(machine: Machine, frame: Frame, args: Arguments, kwargs: Keywords) -> Outcome:
    if run_time(args, kwargs, 2) is None:
        return MISSING
    base, exponent = args
    frame.stack.append(applied(operator.pow, base, exponent, "__rpow__"))
    return None


@special(divmod, pure=True, asks=CONVERSIONS)
def _divmod(machine: Machine, frame: Frame, args: Arguments, kwargs: Keywords) -> Outcome:
    if run_time(args, kwargs, 2) is None:
        return MISSING
    left, right = args
    if right == 0:
        divmod(plain_number(left), plain_number(right))  # its error has a text of its own
    quotient = applied(operator.floordiv, left, right, "__rfloordiv__")
    frame.stack.append((quotient, applied(operator.mod, left, right, "__rmod__")))
    return None


def _rounding(op: str, function: Callable[[Value], int]) -> None:
    @special(function, pure=True, reads_value=function is round, asks=CONVERSIONS)
    def call(machine: Machine, frame: Frame, args: Arguments, kwargs: Keywords) -> Outcome:
        if run_time(args, kwargs, 1) is None:
            return MISSING
        frame.stack.append(args[0] if type(args[0]) is Integer else rounded(op, function, args[0]))
        return None


for _op in ("floor", "ceil", "trunc"):
    _rounding(_op, getattr(math, _op))
_rounding("round", round)


def _function(function: Function, op: str, count: int) -> None:
    @special(function, pure=True, asks=CONVERSIONS)
    def call(machine: Machine, frame: Frame, args: Arguments, kwargs: Keywords) -> Outcome:
        owner = run_time(args, kwargs, count)
        if owner is None:
            return MISSING
        value = computed(function, *args)
        frame.stack.append(floating(value, Real(op, tuple(map(as_real, args))), owner))
        return None


for _target, (_name, _count) in FUNCTIONS.items():
    if _target is not math.log:
        _function(_target, _name, _count)


@special(math.log, pure=True, asks=CONVERSIONS)
def _log(machine: Machine, frame: Frame, args: Arguments, kwargs: Keywords) -> Outcome:
    """With a base, the quotient of two logarithms, as in CPython."""
    owner = run_time(args, kwargs, 1, 2)
    if owner is None:
        return MISSING
    value = computed(math.log, *args)
    forms = [Real("log", (as_real(part),)) for part in args]
    frame.stack.append(floating(value, forms[0] if len(forms) == 1 else Real("div", tuple(forms)), owner))
    return None


def _scaling(function: Function, factor: float) -> None:
    @special(function, pure=True, asks=CONVERSIONS)
    def call(machine: Machine, frame: Frame, args: Arguments, kwargs: Keywords) -> Outcome:
        owner = run_time(args, kwargs, 1)
        if owner is None:
            return MISSING
        form = Real("mul", (as_real(args[0]), constant_real(factor)))
        frame.stack.append(floating(function(bare(args[0])), form, owner))
        return None


for _target, _factor in SCALES.items():
    _scaling(_target, _factor)


def _asking(function: Function, holds: Callable[[Value], bool]) -> None:
    @special(function, pure=True, asks=CONVERSIONS)
    def call(machine: Machine, frame: Frame, args: Arguments, kwargs: Keywords) -> Outcome:
        if run_time(args, kwargs, 1) is None:
            return MISSING
        outcome = element_reads.compared(machine.recorder, frame, frame.step, function.__name__, *args)
        frame.stack.append(holds(args[0]) if outcome is None else outcome)
        return None


_asking(math.isnan, lambda number: type(number) is Float and not number == number)
_asking(math.isinf, lambda number: type(number) is Float and abs(number) == math.inf)
_asking(math.isfinite, lambda number: type(number) is Integer or abs(number) < math.inf)
