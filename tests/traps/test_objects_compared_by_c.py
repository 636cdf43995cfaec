"""NumPy's numbers that a program reads from arrays, and other objects of C that never change themselves, are others in
each call, whoever in C compares or adds them.
"""

from __future__ import annotations

import datetime
import fractions
import functools
import heapq
import math
import operator
import types
from collections.abc import Callable, Iterator
from decimal import Decimal
from typing import Any

import numpy as np
import pytest
import torch
from tests.traps.trap import Trap, hold

Read = Callable[[Any], Any]
READS: dict[str, Read] = {
    "least of two": lambda c: min(c[0], c[1]),
    "least of a list": lambda c: min([c[0], c[1], c[2]]),
    "greatest with a default": lambda c: max((c[0], c[1]), default=0),
    "greatest by a key": lambda c: max(c[0], c[1], key=lambda v: -v),
    "greatest of an iterator": lambda c: max(iter([c[0], c[1]])),
    "greatest of two kinds": lambda c: max(c[0], 2),
    "least beside a float": lambda c: min(1.5, c[1], c[0].item()),
    "least of positions": lambda c: min(c.argmin(), c.argmax()),
    "sum compared": lambda c: sum([c[0], c[1]]) > c[2],
    "any": lambda c: any([c[0] > c[1], c[1] > c[2]]),
    "product": lambda c: math.prod([c[0], c[1]]),
    "index": lambda c: [c[0], c[1]].index(min(c[0], c[1])),
    "reduced": lambda c: functools.reduce(max, [c[0], c[1], c[2]]),
    "of pairs": lambda c: max(zip([c[0], c[1]], "ab", strict=True))[1],
    "by an item": lambda c: max({"a": c[0], "b": c[1]}.items(), key=operator.itemgetter(1))[0],
    "largest": lambda c: heapq.nlargest(2, [c[0], c[1], c[2]]),
    "times a tensor": lambda c: torch.ones(2) * min(c[0], c[1]),
}
ROWS = [[0, 2, 3.0], [1, 2, 3.0], [3, 2, 1.0], [2, 1, 3.0], [2, 3, 1.0], [5, 5, 5.0], [7, 1, 1.0], [1, 7, 7.0]]


@pytest.mark.parametrize("name", READS)
@pytest.mark.parametrize("backwards", [False, True])
def test_numbers_of_numpy(name: str, backwards: bool) -> None:
    def program(compiled: Any) -> Iterator[Any]:
        f = compiled(READS[name])
        for row in ROWS[::-1] if backwards else ROWS:
            yield f(np.array(row))

    hold(Trap(program, 60, 0))


class Length(float):
    """A number of a class of the program's."""


COMPUTED: dict[str, Read] = {
    "least of computed ones": lambda o: min(o.a + o.b, o.c + o.c),
    "greatest of differences": lambda o: max([o.a - o.b, o.b - o.a]),
    "truths": lambda o: (all([o.a, o.b]), any([o.a, o.b])),
    "product": lambda o: math.prod([o.a, o.b]),
}
KINDS: dict[str, Read] = {
    "decimal": lambda value: Decimal(int(value)),
    "time": lambda value: datetime.timedelta(seconds=float(value)),
    "day": lambda value: datetime.date(2020, 1, 1) + datetime.timedelta(days=int(value)),
    "fraction": lambda value: fractions.Fraction(int(value), 3),
    "class of float": Length,
    "array of one": np.array,
    "bytes": lambda value: bytearray([int(value)]),
}
BESTS: dict[str, Read] = {
    "least": lambda o: min(o.a, o.b),
    "greatest of a list": lambda o: max([o.a, o.b, o.c]),
    "smallest": lambda o: heapq.nsmallest(1, [o.a, o.b, o.c]),
    "reduced": lambda o: functools.reduce(max, [o.a, o.b, o.c]),
    "of an iterator": lambda o: max(iter([o.a, o.b])),
    "of pairs within pairs": lambda o: max([(((((o.a,),),),),), (((((o.b,),),),),)]),
}


def hold_of_objects(read: Read, kind: str) -> None:
    def program(compiled: Any) -> Iterator[Any]:
        f = compiled(read)
        for row in (*ROWS, *ROWS[::-1]):
            yield repr(f(types.SimpleNamespace(**dict(zip("abc", map(KINDS[kind], row), strict=True)))))

    hold(Trap(program, 60, 0))


@pytest.mark.parametrize("name", BESTS)
@pytest.mark.parametrize("kind", KINDS)
def test_bests_of_objects(name: str, kind: str) -> None:
    hold_of_objects(BESTS[name], kind)


@pytest.mark.parametrize("name", COMPUTED)
@pytest.mark.parametrize("kind", ["decimal", "fraction", "class of float", "array of one"])
def test_computed_and_asked_objects(name: str, kind: str) -> None:
    hold_of_objects(COMPUTED[name], kind)
