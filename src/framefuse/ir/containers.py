"""Reads containers by the methods of their builtin classes, whatever a subclass makes of length, order and elements."""

from __future__ import annotations

from collections import OrderedDict, deque
from typing import Any

EXACT = frozenset((list, tuple, dict, set, frozenset, deque, OrderedDict))
BASES: tuple[Any, ...] = (list, tuple, OrderedDict, dict, set, frozenset, deque)  # the first that fits


def base_of(container: Any) -> Any:
    """The builtin class of a container."""
    return next(base for base in BASES if isinstance(container, base))


def size(container: Any) -> int:
    """How many elements or entries there are."""
    count: int = len(container) if type(container) in EXACT else base_of(container).__len__(container)
    return count


def elements(container: Any) -> list[Any]:
    """The elements, members or keys, in order."""
    return list(container if type(container) in EXACT else base_of(container).__iter__(container))


def entries(content: Any) -> list[tuple[Any, Any]]:
    """Keys and values of a dict, in the order that the program sees; an OrderedDict has one of its own."""
    return list(base_of(content).items(content))


def held(container: Any) -> list[Any]:
    """The elements or members; of a dict the values."""
    return list(base_of(container).values(container)) if isinstance(container, dict) else elements(container)
