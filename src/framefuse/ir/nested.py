"""Finds the run-time numbers inside nested values: arguments of calls, recipes, nodes."""

from __future__ import annotations

from collections.abc import Iterator

from framefuse.ir.graph import Node
from framefuse.ir.numbers import Expr, Real, Symbol
from framefuse.ir.trace import Build
from framefuse.ir.values import Value


def numbers_in(value: Value) -> Iterator[Expr | Real]:
    """The numbers in a nested value; of a node those in its shape and attributes."""
    if isinstance(value, (Expr, Real)):
        yield value
        return
    if isinstance(value, Node):
        value = (value.shape, value.attrs)
    elif isinstance(value, Build):
        value = (value.parts, value.base)
    elif isinstance(value, dict):
        value = tuple(value.values())
    elif isinstance(value, slice):
        value = (value.start, value.stop, value.step)
    if isinstance(value, (tuple, list)):
        for part in value:
            yield from numbers_in(part)


def symbols_in(value: Value) -> set[Symbol]:
    """The symbols of the numbers in a nested value."""
    return {symbol for number in numbers_in(value) for symbol in number.symbols}
