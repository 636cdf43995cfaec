"""Reads containers by the methods of their builtin classes, whatever a subclass makes of length, order and elements."""

from __future__ import annotations

from collections import OrderedDict, deque

from framefuse.ir.own_class import is_a
from framefuse.ir.values import Value

EXACT = frozenset((list, tuple, dict, set, frozenset, deque, OrderedDict))
BASES: tuple[Value, ...] = (list, tuple, OrderedDict, dict, set, frozenset, deque)  # the first that fits


def base_of(container: Value) -> Value:
    """The builtin class of a container."""
    return next(base for base in BASES if is_a(container, base))


def size(container: Value) -> int:
    """How many elements or entries there are."""
    count: int = len(container) if type(container) in EXACT else base_of(container).__len__(container)
    return count


def elements(container: Value) -> list[Value]:
    """The elements, members or keys, in order."""
    return list(container if type(container) in EXACT else base_of(container).__iter__(container))


def entries(content: Value) -> list[tuple[Value, Value]]:
    """Keys and values of a dict, in the order that the program sees; an OrderedDict has one of its own."""
    return list(base_of(content).items(content))


def held(container: Value) -> list[Value]:
    """The elements or members; of a dict the values."""
    return list(base_of(container).values(container)) if is_a(container, dict) else elements(container)


def inside(container: Value) -> list[Value]:
    """All that lies in it: the elements or members; of a dict the keys, then the values."""
    return [*elements(container), *held(container)] if is_a(container, dict) else elements(container)
