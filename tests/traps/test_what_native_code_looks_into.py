"""Native code looks into the owner of a method, into what lies in containers, and into what it calls a function with:
another content is another result.
"""

from __future__ import annotations

import collections
import copy
import decimal
import functools
import itertools
import operator
from collections.abc import Callable, Iterator
from typing import Any

import numpy
import pytest
import torch
from tests.traps.trap import Trap, hold
from torch import Tensor


class Sized(tuple[int, ...]):
    pass


METHODS: dict[str, Callable[[Any], Any]] = {
    "length": lambda s: s.__len__(),
    "item": lambda s: s.__getitem__(0),
    "iterator": lambda s: list(s.__iter__()),
    "sum of two": lambda s: s.__add__(s),
    "twice": lambda s: s.__mul__(2),
    "text": lambda s: s.__repr__(),
    "text by object": lambda s: s.__str__(),
    "formatted": lambda s: f"{s} {s!r}",
    "kept method": lambda s: [s.__len__][0]() + [s.__getitem__][0](1),
    "method given to map": lambda s: list(map(s.__contains__, [2, 3])),
    "copy": lambda s: copy.copy(s),
    "deep copy": lambda s: copy.deepcopy(s),
    "of its own class": lambda s: type(s)(s),
}
SIZES = [(5, 2), (2, 3), (2, 3), (3, 2, 1), (3, 2, 1), (2, 3)]


@pytest.mark.parametrize("kind", [tuple, torch.Size, Sized, frozenset, list, collections.deque])
@pytest.mark.parametrize("name", METHODS)
def test_methods_of_a_container_that_was_given(name: str, kind: Any) -> None:
    if not hasattr(kind, "__getitem__") or not hasattr(kind, "__add__"):
        if name in ("item", "sum of two", "twice", "kept method"):
            return

    def program(compiled: Any) -> Iterator[Any]:
        f = compiled(lambda x, s: (x + 1, METHODS[name](s)))
        for number, sizes in enumerate(SIZES):
            yield f(torch.ones(2) + number, kind(sizes))

    hold(Trap(program, traces=8, hits=2))


NESTED: dict[str, Callable[[Any], Any]] = {
    "map of len": lambda f: list(map(len, f)),
    "map of sum": lambda f: list(map(sum, f)),
    "map of str": lambda f: ",".join(map(str, f)),
    "map of a getter": lambda f: list(map(operator.itemgetter(0), f)),
    "map over an iterator": lambda f: list(map(sum, iter(f))),
    "filter": lambda f: list(filter(None, f)),
    "all": lambda f: all(f),
    "dict": lambda f: dict(f),
    "ordered dict": lambda f: collections.OrderedDict(f),
    "sum": lambda f: sum(f, ()),
    "chain": lambda f: list(itertools.chain.from_iterable(f)),
    "starmap": lambda f: list(itertools.starmap(max, f)),
    "accumulate": lambda f: list(itertools.accumulate(f)),
    "max": lambda f: max(f),
    "max of two": lambda f: max(f[0], f[1]),
    "min": lambda f: min(f),
    "hash": lambda f: hash((f[0],)) % 97,
    "a slice of a new list": lambda f: collections.UserList([*f[0]])[0] + collections.UserList(list(f[0]))[1],
    "extend by map": lambda f: [0, *map(len, f)],
    "compress": lambda f: list(itertools.compress([1, 2], f)),
}
PAIRS = [[(5, 2), (2, 3)], [(2, 3), (5, 4)], [(2, 3), (5, 4)], [(), (1, 2)], [(4, 1), (3, 3)], [(2, 3), (5, 4)]]


@pytest.mark.parametrize("name", NESTED)
def test_containers_in_containers(name: str) -> None:
    def program(compiled: Any) -> Iterator[Any]:
        def run(x: Tensor, f: Any) -> Any:
            try:
                return x + 1, NESTED[name](f)
            except (ValueError, IndexError, TypeError) as error:
                return x + 2, type(error).__name__

        g = compiled(run)
        for number, parts in enumerate(PAIRS):
            yield g(torch.ones(2) + number, parts)

    hold(Trap(program, traces=8, hits=2))


def test_numbers_of_elements_of_sizes() -> None:
    def program(compiled: Any) -> Iterator[Any]:
        f = compiled(lambda x, s: x + s.numel() + x.shape.numel())
        for number, sizes in enumerate([(2, 3), (2, 3), (3, 2, 2), (2, 3), (4,), (3, 2, 2)]):
            yield f(torch.ones(1 + number), torch.Size(sizes))

    hold(Trap(program, traces=8, hits=2))


GETTERS: dict[str, Callable[[int], Any]] = {
    "item": lambda n: operator.itemgetter(n),
    "attribute": lambda n: operator.attrgetter("ndim" if n else "requires_grad"),
    "method": lambda n: operator.methodcaller("sum", n),
    "bound method": lambda n: [2, n].index,
    "partial": lambda n: functools.partial([1, 2].__getitem__, n),
}


@pytest.mark.parametrize("name", GETTERS)
def test_callables_that_hold_something(name: str) -> None:
    def program(compiled: Any) -> Iterator[Any]:
        f = compiled(lambda x, get: (x + 1, get(x if name != "bound method" else 1) if name != "partial" else get()))
        for number in (0, 1, 0, 1, 0, 1):
            yield _told(f, torch.ones(2, 3) + number, GETTERS[name](number))

    hold(Trap(program, traces=8, hits=0))


def _told(function: Any, *args: Any) -> Any:
    try:
        return function(*args)
    except ValueError as error:
        return str(error)


ASKED: dict[str, Callable[[Any], Any]] = {
    "is_tensor": lambda v: torch.is_tensor(v),
    "is_tensor_like": lambda v: torch.overrides.is_tensor_like(v),
    "in a dict": lambda v: v in {2: 3},
    "in a set": lambda v: v in {2, 5},
    "in a tuple": lambda v: v in ((2,), 2),
    "of a set": lambda v: len({v, 2}),
    "equal in a list": lambda v: [v] == [2],
}
GIVEN: list[Any] = [
    torch.ones(2), torch.ones(2), numpy.int64(3), numpy.int64(2), 2, 3, "2", (2,), (3,), decimal.Decimal(2),
]  # fmt: skip


@pytest.mark.parametrize("first", range(len(GIVEN)))
@pytest.mark.parametrize("name", ASKED)
def test_what_is_asked_of_values_of_several_types(name: str, first: int) -> None:
    given = [*GIVEN[first:], *GIVEN[:first]]
    if name == "equal in a list" or name == "in a tuple":  # a tensor has no truth there
        given = [value for value in given if not isinstance(value, torch.Tensor)]

    def program(compiled: Any) -> Iterator[Any]:
        f = compiled(lambda x, v: (x + 1, ASKED[name](v)))
        for number, value in enumerate(given):
            yield f(torch.ones(2) + number, value)

    hold(Trap(program, traces=12, hits=0))


SIZES_GIVEN = ((2, 3), (3, 2), (6, 1), (), (2, 3), (3, 2), (), (1,))


def _loop(x: Tensor, given: Any) -> Any:
    for sizes in ((2, 3), (3, 2), (6, 1)):
        print(end="")
        x = x.reshape(sizes) + len(given)
    return x


def _nested(x: Tensor, given: Any) -> Any:
    sizes = ((2, 3), 1)
    print(end="")
    return x.reshape(sizes[0]) + len(given)


def _empty(x: Tensor, given: Any) -> Any:
    nothing = ()
    print(end="")
    return x + len(nothing), len(given)


@pytest.mark.parametrize("function", [_loop, _nested, _empty])
def test_constants_that_are_the_very_object_that_was_given(function: Any) -> None:
    def program(compiled: Any) -> Iterator[Any]:
        f = compiled(function)
        for number, sizes in enumerate(SIZES_GIVEN):
            yield f(torch.arange(6.0) + number, sizes)

    hold(Trap(program, traces=30, hits=2))
