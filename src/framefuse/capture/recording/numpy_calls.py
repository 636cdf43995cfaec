"""Tells the calls of NumPy that make numbers of numbers alone: each is computed once, as a call of math would be."""

from __future__ import annotations

import types

import numpy as np

from framefuse.capture.facts.atoms import ATOMS
from framefuse.capture.facts.questions import Question, answered
from framefuse.capture.facts.sources import Sources
from framefuse.capture.program.leaves import NATIVE_KINDS
from framefuse.ir.numpy_numbers import SCALARS, is_numpy_number
from framefuse.ir.own_class import is_a
from framefuse.ir.values import Arguments, Function, Keywords, Value

# Functions of arrays that give one number for a sequence of numbers, or for one; others give arrays.
OF_SEQUENCES = frozenset(
    getattr(np, name) for name in "prod sum max min amax amin mean round around clip ndim size".split()
)
METHODS = frozenset(("item", "astype", "__int__", "__float__", "__index__", "__bool__", "__abs__", "__round__"))

# What NumPy does where a computation overflows, divides by zero or gives a NaN: nothing, a warning, an error.
ERRORS = Question(lambda: " ".join(map(str, np.geterr().values())))


def numbers_of_numpy(target: Value, args: Arguments, kwargs: Keywords) -> bool:
    """Whether a call computes a number of NumPy from numbers that no other call may find changed. A run-time number is
    none: NumPy asks for its value, which a step between two segments does without holding it.
    """
    if kwargs:
        return False
    if type(target) is np.ufunc:
        return 0 < len(args) <= target.nin and target.nout == 1 and all(map(_is_number, args))
    if type(target) in (*NATIVE_KINDS, types.MethodType):
        holder = getattr(target, "__self__", None)
        return target.__name__ in METHODS and is_numpy_number(holder) and all(map(_names_type, args))
    if is_a(target, type):
        return target in SCALARS and len(args) == 1 and _is_number(args[0])
    try:
        known = target in OF_SEQUENCES
    except TypeError:
        return False
    return known and bool(args) and all(_is_number(part) or _are_numbers(part) for part in args)


def heed_errors(sources: Sources, target: Function, args: Arguments, kwargs: Keywords) -> None:
    """States what NumPy does about errors where this computation of numbers, which is about to be made, has one."""
    try:
        with np.errstate(all="raise"):
            target(*args, **kwargs)
    except FloatingPointError:
        answered(sources, ERRORS)
    except Exception:  # the program's own call raises it
        return


def of_numbers(left: Value, right: Value) -> bool:
    """Whether an operator between these two is NumPy's, of numbers alone."""
    return (is_numpy_number(left) and _is_number(right)) or (is_numpy_number(right) and _is_number(left))


def _is_number(value: Value) -> bool:
    return type(value) in (int, float, bool) or is_numpy_number(value)


def _are_numbers(value: Value) -> bool:
    return type(value) in (tuple, list) and all(map(_is_number, value))


def _names_type(value: Value) -> bool:
    return is_a(value, (type, np.dtype)) or type(value) in ATOMS
