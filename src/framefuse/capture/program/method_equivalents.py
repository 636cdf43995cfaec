"""Methods of C that walk what native code would iterate by calling the program, in Python."""

from __future__ import annotations

import types
from collections import deque

from framefuse.capture.program.equivalents import measured, walked
from framefuse.ir.values import Function, Value


def fill_(holder: Value, iterable: Value) -> None:
    for value in measured(iterable):
        holder.append(value)


def extend_(holder: Value, iterable: Value) -> None:
    for value in iterable:
        holder.append(value)


def extend_left_(holder: Value, iterable: Value) -> None:
    for value in iterable:
        holder.appendleft(value)


def add_all_(holder: Value, *iterables: Value) -> None:
    for iterable in iterables:
        for value in iterable:
            holder.add(value)


def sort_(holder: Value, *, key: Value = None, reverse: bool = False) -> None:
    values = [*holder]
    holder.clear()  # what keys and comparisons see of it
    try:
        values = sorted(values, key=key, reverse=reverse)
    finally:
        changed = len(holder) > 0
        holder[:] = values
    if changed:
        raise ValueError("list modified during sort")


def update_(holder: Value, given: Value = (), /, **named: Value) -> None:
    if hasattr(given, "keys"):
        for key in given.keys():
            holder[key] = given[key]
    else:
        holder.update(walked(given))
    for name, value in named.items():
        holder[name] = value


def fromkeys_(kind: Value, iterable: Value, value: Value = None) -> Value:
    made = {}
    for key in iterable:
        made[key] = value
    return made


def join_(text: Value, iterable: Value) -> Value:
    return text.join(walked(iterable))


def union_(holder: Value, *iterables: Value) -> Value:
    return holder.union(*[walked(iterable) for iterable in iterables])


def intersection_(holder: Value, *iterables: Value) -> Value:
    return holder.intersection(*[walked(iterable) for iterable in iterables])


def difference_(holder: Value, *iterables: Value) -> Value:
    return holder.difference(*[walked(iterable) for iterable in iterables])


# The owners are of these very types: what a class of the program overrides, the methods of C do not call.
METHODS: dict[tuple[type, str], Function] = {
    (list, "extend"): fill_,
    (list, "sort"): sort_,
    (deque, "extend"): extend_,
    (deque, "extendleft"): extend_left_,
    (set, "update"): add_all_,
    (dict, "update"): update_,
    (str, "join"): join_,
    (set, "union"): union_,
    (frozenset, "union"): union_,
    (set, "intersection"): intersection_,
    (frozenset, "intersection"): intersection_,
    (set, "difference"): difference_,
    (frozenset, "difference"): difference_,
}


def method_in_python(target: Value) -> Function | None:
    """What does in Python what a bound method of C does with its owner and arguments, where there is such."""
    if type(target) is not types.BuiltinFunctionType:
        return None
    owner = target.__self__
    if owner is dict and target.__name__ == "fromkeys":
        return fromkeys_
    return METHODS.get((type(owner), target.__name__))
