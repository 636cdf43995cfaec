"""Iterators that can be taken apart: those of CPython that tell how they are made, and one over run-time ranges."""

from __future__ import annotations

import itertools
from typing import Any

RangeObjectIterator = type(iter(range(0)))
# Their __reduce__ gives a callable, its arguments and a position.
NATIVE_ITERATORS = frozenset(
    (
        type(iter([])), type(iter(())), type(iter("")), type(iter(b"")), type(reversed([])),
        type(iter({})), type(iter({}.values())), type(iter({}.items())), type(iter(set())),
        enumerate, zip, map, filter, itertools.chain, itertools.count, itertools.repeat,
    )
)  # fmt: skip
SEQUENCE_ITERATORS = frozenset((type(iter([])), type(iter(())), type(iter("")), type(iter(b"")), RangeObjectIterator))


class RangeIterator:
    """Iterates ``range(at, stop, step)``; the bounds may be run-time numbers, so that a loop closes on itself."""

    __slots__ = ("at", "step", "stop")

    def __init__(self, at: Any, stop: Any, step: Any) -> None:
        self.at = at
        self.stop = stop
        self.step = step

    def __iter__(self) -> RangeIterator:
        return self

    def __next__(self) -> Any:
        value = self.at
        if not (value < self.stop if self.step > 0 else value > self.stop):
            raise StopIteration
        self.at = value + self.step
        return value

    def __length_hint__(self) -> int:
        return len(range(self.at, self.stop, self.step))
