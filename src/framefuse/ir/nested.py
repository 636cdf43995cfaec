"""Walks nested values, which are arguments of calls, recipes and attributes: their leaves, other leaves, numbers."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from framefuse.ir.graph import Node
from framefuse.ir.numbers import Expr, Real, Symbol
from framefuse.ir.trace import Build
from framefuse.ir.values import Value


def mapped(value: Value, leaf: Callable[[Value], Value]) -> Value:
    """The value with ``leaf`` of each part that is no plain tuple, list, dict or slice; the same object where that
    changes nothing, as containers of arguments are never written.
    """
    kind = type(value)
    if kind is tuple or kind is list:
        parts = [mapped(part, leaf) for part in value]
        return value if all(new is old for new, old in zip(parts, value, strict=True)) else kind(parts)
    if kind is dict:
        changed = {key: mapped(part, leaf) for key, part in value.items()}
        return value if all(changed[key] is part for key, part in value.items()) else changed
    if kind is slice:
        bounds = (value.start, value.stop, value.step)
        found = mapped(bounds, leaf)
        return value if found is bounds else slice(*found)
    return leaf(value)


def leaves(value: Value) -> Iterator[Value]:
    """What stands in nested tuples, lists, dicts (their keys do not count) and slices, in order."""
    if isinstance(value, dict):
        value = tuple(value.values())
    elif isinstance(value, slice):
        value = (value.start, value.stop, value.step)
    if isinstance(value, (tuple, list)):
        for part in value:
            yield from leaves(part)
    else:
        yield value


def numbers_in(value: Value) -> Iterator[Expr | Real]:
    """The numbers in a nested value; of a node those in its shape and attributes."""
    for leaf in leaves(value):
        if isinstance(leaf, (Expr, Real)):
            yield leaf
        elif isinstance(leaf, Node):
            yield from numbers_in((leaf.shape, leaf.attrs))
        elif isinstance(leaf, Build):
            yield from numbers_in((leaf.parts, leaf.base))


def symbols_in(value: Value) -> set[Symbol]:
    """The symbols of the numbers in a nested value."""
    return {symbol for number in numbers_in(value) for symbol in number.symbols}
