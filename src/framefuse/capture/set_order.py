"""Finds an order of insertion after which a new set iterates as a given one does."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import Any

FEW = 5  # members of which every order is tried
HASHED_BY_VALUE = frozenset((int, float, complex, bool, str, bytes, type(None)))


def insertion_order(members: set[Any] | frozenset[Any]) -> list[Any] | None:
    """The members in such an order; None where none was found.

    Members whose hashes collide lie in the order in which they came, and a set that has shrunk is larger than a new
    one. Of members that are hashed by their address the order is another one in each run, under eager too.
    """
    wanted = list(frozenset.__iter__(members) if isinstance(members, frozenset) else set.__iter__(members))
    if not all(type(member) in HASHED_BY_VALUE for member in wanted):
        return wanted
    return next((order for order in _orders(wanted) if _same(list(set(order)), wanted)), None)


def _orders(wanted: list[Any]) -> Iterator[list[Any]]:
    yield wanted
    yield wanted[::-1]
    if len(wanted) <= FEW:
        yield from map(list, itertools.permutations(wanted))


def _same(one: list[Any], other: list[Any]) -> bool:
    return all(a is b for a, b in zip(one, other, strict=True))
