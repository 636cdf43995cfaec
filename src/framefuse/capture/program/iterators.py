"""Iterators that can be taken apart: CPython's own, made again by ``__reduce__``, and one over run-time ranges."""

from __future__ import annotations

import gc
import itertools
from collections import OrderedDict
from collections.abc import Callable, Iterator

from framefuse.ir.containers import base_of, size
from framefuse.ir.own_class import is_a
from framefuse.ir.values import Value

RangeObjectIterator = type(iter(range(0)))
KeyIterator: type = type(iter({}))
# Their __reduce__ gives a callable, its arguments and a position.
NATIVE_ITERATORS = frozenset(
    (
        type(iter([])), type(iter(())), type(iter("")), type(iter("\u20ac")), type(iter(b"")), type(reversed([])),
        KeyIterator, type(iter({}.values())), type(iter({}.items())), type(iter(set())),
        enumerate, zip, map, filter, itertools.chain, itertools.count, itertools.repeat,
    )
)  # fmt: skip
# What makes those of one sequence: it may be of a subclass that iterates otherwise.
OF_SEQUENCE: dict[type, Callable[[Value], Iterator[Value]]] = {
    type(iter([])): list.__iter__, type(iter(())): tuple.__iter__, type(iter("")): str.__iter__,
    type(iter("\u20ac")): str.__iter__, type(iter(b"")): bytes.__iter__, type(reversed([])): list.__reversed__,
}  # fmt: skip
SEQUENCE_ITERATORS = frozenset((*OF_SEQUENCE, RangeObjectIterator))
# Iterators over what may grow and shrink, each with what makes it; their __reduce__ tells the elements that are left,
# not whose they are.
VIEWS: dict[type, Callable[[Value], Iterator[Value]]] = {
    KeyIterator: dict.__iter__,
    type(iter({}.values())): lambda holder: iter(dict.values(holder)),
    type(iter({}.items())): lambda holder: iter(dict.items(holder)),
    type(iter(set())): lambda holder: base_of(holder).__iter__(holder),
}


# Views of a dict, each with what makes it.
VIEW_OBJECTS: dict[type, Callable[[Value], Value]] = {
    type(view(kind())): view
    for kind in (dict, OrderedDict)
    for view in (kind.keys, kind.values, kind.items)
}  # fmt: skip


def dict_behind(view: Value) -> Value:
    """The dict that a view or a proxy shows; of a proxy for another mapping a copy."""
    held = [part for part in gc.get_referents(view) if is_a(part, dict)]
    return held[0] if held else dict(view)


def reduced(iterator: Value) -> tuple[Value, tuple[Value, ...], Value]:
    """A callable that makes the iterator, its arguments, and a position or None."""
    make, args, *state = iterator.__reduce__()
    own: Value = OF_SEQUENCE.get(type(iterator))
    if own is not None:
        make, args = own, args if state else (own.__objclass__(),)  # at its end it has let go of the sequence
    return make, args, state[0] if state else None


def place_in_view(iterator: Value) -> tuple[Value, int] | None:
    """The dict or set behind an iterator of one of the VIEWS and the number of elements handed out; None at its end.

    Raises RuntimeError where its holder changed meanwhile, so that no fresh iterator goes on as this one does.
    """
    holder = next((held for held in gc.get_referents(iterator) if is_a(held, (dict, set, frozenset))), None)
    if holder is None:
        return None
    left, every = iterator.__reduce__()[1][0], list(VIEWS[type(iterator)](holder))
    given = len(every) - len(left)
    pairs = zip(left, every[max(given, 0) :], strict=False)
    if given < 0 or not all(_same_element(one, other) for one, other in pairs):
        raise RuntimeError("elements changed during iteration")
    return holder, given


def _same_element(one: Value, other: Value) -> bool:
    """Whether two elements of a view are the same; those of items are pairs, made anew each time."""
    if one is other:
        return True
    return type(one) is tuple is type(other) and len(one) == len(other) == 2 and all(map(_is, one, other))


def _is(one: Value, other: Value) -> bool:
    return one is other


def continue_view(kind: type, holder: Value, given: int, began: int) -> Value:
    """An iterator over ``holder`` behind its first ``given`` elements; it began when there were ``began``, and where
    there are others now it raises as CPython's does.
    """
    if size(holder) != began:
        changed: Value = dict.fromkeys(range(2)) if is_a(holder, dict) else {0, 1}
        iterator = VIEWS[kind](changed)
        changed.clear()
        return iterator
    iterator = VIEWS[kind](holder)
    for _ in range(given):
        next(iterator)
    return iterator


class RangeIterator:
    """Iterates ``range(at, stop, step)``; the bounds may be run-time numbers, so that a loop closes on itself."""

    __slots__ = ("at", "step", "stop")

    def __init__(self, at: Value, stop: Value, step: Value) -> None:
        self.at = at
        self.stop = stop
        self.step = step

    @property  # type: ignore[misc]
    def __class__(self) -> type:
        return RangeObjectIterator

    def __iter__(self) -> RangeIterator:
        return self

    def __next__(self) -> Value:
        value = self.at
        if not (value < self.stop if self.step > 0 else value > self.stop):
            raise StopIteration
        self.at = value + self.step
        return value

    def __length_hint__(self) -> int:
        return len(range(self.at, self.stop, self.step))
