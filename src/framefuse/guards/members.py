"""Turns a type into a snapshot of what lies on its classes, compared when its version tag has moved."""

from __future__ import annotations

from collections.abc import Mapping

from framefuse.ir.classes import immutable
from framefuse.ir.values import Value

Dicts = dict[type, dict[str, Value]]


class Members:
    """What lay on the classes of a type's method resolution order; calling it with the type says whether it still does.

    ``free`` are the places (class, name) that hold plain numbers which the trace reads anew at each call: there another
    number will do. ``known`` shares the snapshots of base classes between types.
    """

    __slots__ = ("free", "kind", "order", "seen")

    def __init__(self, kind: type, free: frozenset[tuple[type, str]], known: Dicts) -> None:
        self.kind = kind
        self.order = kind.__mro__
        self.free = free
        self.seen: list[tuple[type, Mapping[str, Value]]] = []
        for base in self.order:
            if not immutable(base):
                if base not in known:
                    known[base] = dict(vars(base))
                self.seen.append((base, known[base]))

    def __call__(self, kind: type) -> bool:
        order = kind.__mro__
        if len(order) != len(self.order) or not all(map(_same, order, self.order)):
            return False
        return all(self._agrees(base, seen) for base, seen in self.seen)

    def _agrees(self, base: type, seen: Mapping[str, Value]) -> bool:
        now = vars(base)
        if len(now) != len(seen):
            return False
        for name, value in now.items():
            if seen.get(name, _MISSING) is not value and not (
                name in seen and type(value) in (int, float) and (base, name) in self.free
            ):
                return False
        return True


_MISSING: object = object()


def _same(left: Value, right: Value) -> bool:
    return left is right
