"""Finds an order of insertion after which a new set iterates as a given one does."""

from __future__ import annotations

import itertools
from collections.abc import Iterator

from framefuse.ir.own_class import is_a
from framefuse.ir.values import Value

FEW = 5  # members of which every order is tried
HASHED_BY_VALUE = frozenset((int, float, complex, bool, str, bytes, type(None)))


def insertion_order(members: set[Value] | frozenset[Value]) -> list[Value] | None:
    """The members in such an order; None where none was found.

    Members whose hashes collide lie in the order in which they came, and a set that has shrunk is larger than a new
    one. Members that are hashed by their address may be others when the set is made: any order does then.
    """
    wanted = list(frozenset.__iter__(members) if is_a(members, frozenset) else set.__iter__(members))
    by_value = all(type(member) in HASHED_BY_VALUE for member in wanted)
    if not by_value and not all(getattr(type(member), "__hash__", None) is object.__hash__ for member in wanted):
        return wanted
    kept = next((order for order in _orders(wanted) if _same(list(set(order)), wanted)), None)
    return wanted if kept is None and not by_value else kept


def _orders(wanted: list[Value]) -> Iterator[list[Value]]:
    yield wanted
    yield wanted[::-1]
    if len(wanted) <= FEW:
        yield from map(list, itertools.permutations(wanted))


def _same(one: list[Value], other: list[Value]) -> bool:
    return all(a is b for a, b in zip(one, other, strict=True))
