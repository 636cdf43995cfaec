"""Looks for tracked numbers within containers, which native code reads without asking them."""

from __future__ import annotations

from collections import deque

import torch

from framefuse.capture.facts.numbers import TRACKED, bare, is_nan, plain_number
from framefuse.ir.containers import elements, held
from framefuse.ir.own_class import is_a
from framefuse.ir.values import Value


def sought(value: Value, holder: Value) -> Value:
    """A number, plain, as it is looked for in ``holder``: a NaN as the element that is the same object, which lies
    there with its expression or without, since C finds it by that alone.
    """
    value = plain_number(value)
    members = elements(holder) if is_nan(value) and is_a(holder, (list, tuple, deque)) else ()
    return next((member for member in members if bare(member) is value), value)


def reads_values(value: Value, depth: int = 0) -> bool:
    """Whether nested containers hold a number of a class whose C code takes the other operand by its value: what
    compares or adds the elements would ask no tracked number.
    """
    if type(value) in (bool, float, complex):
        return True
    if depth > 4 or not is_a(value, (tuple, list, dict)):
        return False
    return any(reads_values(part, depth + 1) for part in held(value))


def pin_nested(value: Value, depth: int = 0) -> None:
    """States the values of the tracked numbers in nested containers: native code is about to read them."""
    kind = type(value)
    if kind in TRACKED:
        value.plain()
    elif depth < 4:
        if is_a(value, (tuple, list)):
            for part in elements(value):
                pin_nested(part, depth + 1)
        elif kind is dict:
            for part in value.values():
                pin_nested(part, depth + 1)
        elif kind is slice:
            for part in (value.start, value.stop, value.step):
                pin_nested(part, depth + 1)


def strip(value: Value) -> Value:
    """A copy of nested arguments with plain numbers."""
    kind = type(value)
    if kind in TRACKED:
        return bare(value)
    if kind is tuple:
        return tuple([strip(part) for part in value])
    if kind is torch.Size:  # torch's older constructors take a tuple for elements
        return torch.Size([strip(part) for part in value])
    if kind is list:
        return [strip(part) for part in value]
    if kind is dict:
        return {key: strip(part) for key, part in value.items()}
    if kind is slice:
        return slice(strip(value.start), strip(value.stop), strip(value.step))
    return value
