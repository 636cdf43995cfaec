"""Traps in sorting by what the program wrote: keys with comparisons of their own, functions that compare, lists sorted
in place; and generators of random numbers of other libraries.
"""

from __future__ import annotations

import functools
import random
from typing import Any

import numpy as np
import torch
from tests.traps.trap import Table, Trap, hold

TABLE = Table()
trap = TABLE.trap


def steps(number: int) -> torch.Tensor:
    return torch.arange(3.0) + number


class AlwaysEqual:
    __hash__ = None  # type: ignore[assignment]

    def __init__(self, value: int) -> None:
        self.value = value

    def __eq__(self, other: object) -> bool:
        return True

    def __lt__(self, other: AlwaysEqual) -> bool:
        return self.value < other.value


class Logged:
    def __init__(self, value: int, log: list[Any]) -> None:
        self.value, self.log = value, log

    def __lt__(self, other: Logged) -> bool:
        self.log.append((self.value, other.value))
        return self.value % 4 < other.value % 4


LISTS = ([1, 3, 2, 5, 0], [5, 4, 3, 2, 1], [2, 2, 1, 1, 2], [0, 1, 2, 3, 4], [4, 8, 0, 12, 1, 5, 3, 7, 2, 6, 6])


@trap(traces=1, hits=3)
def keys_that_say_they_are_equal_are_told_apart(compiled):
    f = compiled(lambda x: (x * 2, sorted([1, 3, 2, 5, 0], key=AlwaysEqual)))
    for number in range(4):
        yield f(steps(number))


@trap(traces=12, hits=10)
def keys_are_compared_as_often_as_by_eager(compiled):
    for values in LISTS:
        log: list[Any] = []

        def sorts(x, values=values, log=log):
            up = sorted(values, key=lambda value: Logged(value, log))
            return x * 2, up, sorted(values, key=lambda value: Logged(value, log), reverse=True)

        f = compiled(sorts)
        for number in range(3):
            yield f(steps(number)), list(log)


@trap(traces=8, hits=4)
def a_function_that_compares(compiled):
    @compiled
    def f(x, values):
        calls = []
        key = functools.cmp_to_key(lambda a, b: (calls.append(1), b - a)[1])
        ranked = sorted(values, key=key)
        return x * ranked[0], ranked, max(values, key=key), min(values, key=key), len(calls), key(2) < key(3)

    for values in LISTS[:3]:
        for number in range(3):
            yield f(steps(number), values)


@trap(traces=8, hits=4)
def a_list_sorted_in_place_by_a_function(compiled):
    @compiled
    def f(x, values):
        mine = [(2, x), (1, x * 2), (2, x * 3)]
        mine.sort(key=lambda pair: pair[0])
        values.sort(key=functools.cmp_to_key(lambda a, b: a % 3 - b % 3), reverse=True)
        return [part for _, part in mine], x * values[0]

    for values in LISTS[:3]:
        for number in range(3):
            given = list(values)
            yield f(steps(number), given), given


@trap(traces=8, hits=2)
def a_generator_of_numpy_made_inside(compiled):
    @compiled
    def f(x):
        generator = np.random.default_rng(3)
        scaled = x * generator.normal()
        return scaled + int(generator.integers(0, 10)), float(generator.random()), random.Random(4).random()

    for number in range(4):
        yield f(steps(number))


@TABLE.parametrize()
def test_sorted_by_the_program(trap: Trap) -> None:
    hold(trap)
