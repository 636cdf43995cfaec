"""Numbers that change, in lists: what walks them and hands them on compiles nothing anew."""

from __future__ import annotations

import collections
import functools
import itertools
import math
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from tests.traps.trap import Trap, hold
from torch import Tensor

import framefuse
from framefuse import _native
from framefuse.api import compiled_function

# ruff: noqa: C417, RUF007  The programs say it in all the ways there are.

Pair = collections.namedtuple("Pair", "first second")
CALLS: dict[str, Callable[[Tensor, list[float]], Any]] = {
    "zip": lambda x, rates: [row * rate for row, rate in zip(x.unbind(0), rates)],
    "zip of neighbours": lambda x, rates: [x * (b - a) for a, b in zip(rates, rates[1:])],
    "zip of names": lambda x, rates: {key: x * rate for key, rate in dict(zip("ab", rates)).items()},
    "enumerate": lambda x, rates: [x * rate + place for place, rate in enumerate(rates)],
    "enumerate from 1": lambda x, rates: (list(enumerate(rates, 1)), x * rates[0]),
    "map": lambda x, rates: [x * rate for rate in map(lambda rate: rate * 2, rates)],
    "map of a builtin": lambda x, rates: [x * rate for rate in map(float, rates)],
    "filter": lambda x, rates: [x * rate for rate in filter(None, rates)],
    "sum": lambda x, rates: (x * sum(rates), sum(rates), sum(tuple(rates)) * x),
    "prod": lambda x, rates: x * math.prod(rates),
    "reversed": lambda x, rates: [x * rate for rate in reversed(rates)],
    "the kind of reversed": lambda x, rates: (type(reversed(rates)), type(iter(rates)), x * rates[0]),
    "returns": lambda x, rates: x * torch.tensor(list(itertools.accumulate(reversed(rates), lambda g, r: r + 0.9 * g))),
    "next": lambda x, rates: x * next(iter(rates)),
    "reduce": lambda x, rates: x * functools.reduce(lambda total, rate: total * 0.5 + rate, rates),
    "accumulate": lambda x, rates: [x * rate for rate in itertools.accumulate(rates)],
    "deque": lambda x, rates: x * sum(collections.deque(rates, maxlen=2)),
    "copy": lambda x, rates: [x * rate for rate in rates.copy()],
    "chain": lambda x, rates: [x * rate for rate in itertools.chain(rates, [rates[0] + 1])],
    "cycle": lambda x, rates: [row * rate for row, rate in zip(x.unbind(0), itertools.cycle([rates[0], 1.0]))],
    "cycle of theirs": lambda x, rates: [x * rate for rate, _ in zip(itertools.cycle(rates), range(3))],
    "repeat": lambda x, rates: [row * rate for row, rate in zip(x.unbind(0), itertools.repeat(rates[1]))],
    "repeat some times": lambda x, rates: [x * rate for rate in itertools.repeat(rates[0], 2)],
    "islice": lambda x, rates: [x * rate for rate in itertools.islice(rates, 1, None)],
    "pairwise": lambda x, rates: [x * a + b for a, b in itertools.pairwise(rates)],
    "zip_longest": lambda x, rates: [x * a + b for a, b in itertools.zip_longest(rates, rates[:1], fillvalue=0.5)],
    "what is left over": lambda x, rates: (
        itertools.repeat(rates[0]),
        itertools.chain(rates),
        iter(rates),
        reversed(rates),
        map(float, rates),
        x * 2,
    ),
    "their kinds": lambda x, rates: ([type(walk([rates[0]])) for walk in (itertools.cycle, itertools.chain)], x * 2),
    "the kind of a slice": lambda x, rates: (type(itertools.islice([rates[0]], 1)), x * 2),
}


def entered(x: Tensor, rates: list[float]) -> Any:
    a, b = rates
    chain, again = itertools.chain((a,), (b, a + 1)), itertools.repeat(b, 3)
    return next(chain), next(chain), next(again), chain, again, itertools.chain((a,)), x * a


CALLS["iterators that were entered"] = entered
LEAVING = ("what is left over", "iterators that were entered")


def shown(value: Any) -> Any:
    """The value, with the first elements of iterators in their place."""
    if isinstance(value, (list, tuple)):
        return [shown(part) for part in value]
    walks = isinstance(value, Iterator)
    return (type(value), list(itertools.islice(value, 3))) if walks else value


@pytest.mark.parametrize("kind", [tuple, Pair._make])
@pytest.mark.parametrize("name", ["zip", "enumerate", "chain", "map", "reduce", "sum", "deque"])
def test_numbers_walked_in_tuples(name: str, kind: Callable[[list[float]], Any]) -> None:
    def program(compiled: Any) -> Iterator[Any]:
        f = compiled(CALLS[name])
        for number in range(9):
            yield f(torch.arange(4.0).view(2, 2) + number, kind([0.1 * number, 2.0 + number]))

    hold(Trap(program, traces=2, hits=7))


@pytest.mark.parametrize("name", CALLS)
def test_numbers_walked(name: str) -> None:
    def program(compiled: Any) -> Iterator[Any]:
        f = compiled(CALLS[name])
        for number in range(9):
            yield shown(f(torch.arange(4.0).view(2, 2) + number, [0.1 * number, 2.0 + number]))

    hold(Trap(program, traces=2, hits=0 if name in LEAVING else 7))


def assigned(x: Tensor, rates: list[float]) -> Any:
    for place, rate in enumerate(rates):
        rates[place] = rate + 1
        x = x * rate
        x.tolist()
    return x


def appended(x: Tensor, rates: list[float]) -> Any:
    for rate in rates:
        if len(rates) < 4:
            rates.append(rate + 1)
        x = x * rate
        x.tolist()
    return x


def next_assigned(x: Tensor, rates: list[float]) -> Any:
    for a, b in zip(rates, rates):
        x = x * a + b
        x.tolist()
        rates[1] = a + 7
    return x


def extended(x: Tensor, rates: list[float]) -> Any:
    rows: list[float] = []
    rows.extend(rates)
    rows += rates
    return [x * row for row in rows], rows


def shrunk(x: Tensor, rates: list[float]) -> Any:
    seen = []
    for rate in reversed(rates):
        if len(rates) > 1:
            rates.pop()
        seen.append(x * rate)
    return seen


def held(x: Tensor, rates: list[float]) -> Any:
    walked = iter(rates)
    for rate in walked:
        x = x * rate
        x.tolist()
        return x, list(walked)


def read(x: Tensor, rates: list[float]) -> Any:
    for rate in rates:
        x = x * rate
        x.tolist()
    return x


def counted(x: Tensor, rates: list[float]) -> Any:
    for place, rate in enumerate(rates):
        x = x * rate + place
        x.tolist()
    return x


@pytest.mark.parametrize(
    ("body", "traces"),
    [
        (read, 8),
        (counted, 8),
        (extended, 2),
        (shrunk, 30),
        (assigned, 30),
        (appended, 60),
        (next_assigned, 30),
        (held, 30),
    ],
)
def test_a_loop_over_their_list_that_a_step_interrupts(body: Callable[[Tensor, list[float]], Any], traces: int) -> None:
    def program(compiled: Any) -> Iterator[Any]:
        f = compiled(body)
        for number in range(12):
            rates = [0.5 + number % 7, 2.0 + number]
            yield f(torch.ones(2), rates), rates

    hold(Trap(program, traces=traces, hits=0 if traces > 8 else 6))


def test_a_loop_is_the_one_holder_of_its_iterator_under_a_frame_hook_too() -> None:
    """Where a hook stands before each frame, CPython keeps the arguments of Python calls once more."""
    f = framefuse.compile(read)
    door = compiled_function(framefuse.compile(lambda x: x)).dispatch
    _native.open_door(door)
    try:
        for number in range(12):
            rates = [0.5 + number, 2.0 + number]
            assert torch.equal(f(torch.ones(2), rates), read(torch.ones(2), rates))
    finally:
        _native.close_door(door)
    assert len(compiled_function(f).products) <= 8
