"""What builtins, ``itertools`` and methods of C walk by calling the program is walked in the trace: module lists
backwards, classes with ``__iter__``, ``__next__`` or ``__getitem__`` alone, enumerations.
"""

from __future__ import annotations

import bisect
import collections
import enum
import itertools
import math
import operator
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import pytest
import torch
from tests.traps.trap import Trap, hold
from torch import Tensor, nn


class ByIndex:
    def __init__(self, *items: Any) -> None:
        self.items = items

    def __getitem__(self, place: Any) -> Any:
        return self.items[place]

    def __len__(self) -> int:
        return len(self.items)


class Given:
    def __init__(self, *items: Any) -> None:
        self.items = items

    def __iter__(self) -> Iterator[Any]:
        yield from self.items


class Stepped(Given):
    place = 0

    def __iter__(self) -> Iterator[Any]:
        return self

    def __next__(self) -> Any:
        if self.place == len(self.items):
            raise StopIteration
        self.place += 1
        return self.items[self.place - 1]


class Kind(enum.Enum):
    ADD = 1
    MUL = 2


class Mode(str, enum.Enum):  # noqa: UP042 - as programs write it
    LEFT = "left"
    RIGHT = "right"


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList([nn.Linear(4, 4) for _ in range(4)])
        self.named = nn.ModuleDict({str(number): nn.Linear(4, 4) for number in range(3)})
        self.values = nn.ParameterList([torch.randn(4) for _ in range(3)])
        self.steps = nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 4))
        self.plain = [nn.Linear(4, 4) for _ in range(3)]
        self.indexed = ByIndex(*self.plain)
        self.numbers = ByIndex(1.0, 2.0, 3.0)


def chain(layers: Iterable[Any], x: Tensor) -> Tensor:
    for layer in layers:
        x = layer(x)
    return x


def changed(container: Any, method: str, *args: Any) -> Any:
    getattr(container, method)(*args)
    return container


def pair(first: Any, *rest: Any) -> Any:
    return first * len(rest)


PROGRAMS: dict[str, Callable[[Net, Tensor], Any]] = {
    "reversed modules": lambda net, x: chain(reversed(net.layers), x),
    "listed backwards": lambda net, x: chain([*list(reversed(net.layers))[:-2], net.layers[0]], x),
    "reversed by index": lambda net, x: chain(reversed(net.indexed), x),
    "reversed sequential": lambda net, x: chain(reversed(net.steps), x),
    "reversed parameters": lambda net, x: sum(value * x for value in reversed(net.values)),
    "forth and back": lambda net, x: sum(a(x) + b(x) for a, b in zip(net.layers, reversed(net.layers), strict=True)),
    "by index": lambda net, x: chain(net.indexed, x),
    "numbers by index": lambda net, x: sum(x * number for number in net.numbers),
    "listed by index": lambda net, x: torch.tensor([*net.numbers]).sum() * x * len({*net.numbers}),
    "unpacked by index": lambda net, x: (lambda a, *b: x * a * len(b))(*net.numbers),
    "zipped by index": lambda net, x: sum(layer(x) * by for layer, by in zip(net.indexed, net.numbers, strict=True)),
    "itemgetter": lambda net, x: chain(operator.itemgetter(0, 2)(net.layers), x),
    "islice": lambda net, x: chain(itertools.islice(net.layers, 1, 3), x),
    "islice with a step": lambda net, x: x * sum(itertools.islice(Given(*range(9)), 1, 8, 3)),
    "cycle": lambda net, x: chain(itertools.islice(itertools.cycle(net.layers), 6), x),
    "pairwise": lambda net, x: sum(a(b(x)) for a, b in itertools.pairwise(net.layers)),
    "tee": lambda net, x: sum(a(b(x)) for a, b in zip(*itertools.tee(net.layers), strict=True)),
    "product": lambda net, x: sum(a(b(x)) for a, b in itertools.product(net.layers, net.plain)),
    "product of itself": lambda net, x: x * sum(a * b for a, b in itertools.product(Stepped(1, 2, 3), repeat=2)),
    "combinations": lambda net, x: sum(a(b(x)) for a, b in itertools.combinations(net.layers, 2)),
    "with replacement": lambda net, x: x * sum(
        a * b for a, b in itertools.combinations_with_replacement(ByIndex(1, 2, 3), 2)
    ),
    "permutations": lambda net, x: x * sum(a * b for a, b in itertools.permutations(Given(1, 2, 3), 2)),
    "zip_longest": lambda net, x: sum(
        a(x) * b for a, b in itertools.zip_longest(net.layers, Given(3.0, 2.0), fillvalue=0.5)
    ),
    "compress": lambda net, x: chain(itertools.compress(net.layers, [1, 0, 1, 0]), x),
    "deque": lambda net, x: chain(changed(collections.deque(net.layers), "rotate", 1), x),
    "deque of the last": lambda net, x: x * sum(collections.deque(Given(1, 2, 3), maxlen=2)),
    "until a value comes": lambda net, x: chain(iter(iter(net.layers).__next__, net.layers[3]), x),
    "fromkeys": lambda net, x: chain(dict.fromkeys(net.layers), x),
    "extend": lambda net, x: chain(changed([], "extend", net.layers), x),
    "extend a deque": lambda net, x: chain(changed(collections.deque(), "extendleft", net.layers), x),
    "update a dict": lambda net, x: chain(changed({}, "update", net.named).values(), x),
    "update a set": lambda net, x: x * len(changed(set(), "update", net.layers, net.plain)),
    "union": lambda net, x: x * len({1, 2}.union(Given(2, 3), ByIndex(5))),
    "intersection": lambda net, x: x * sum({1, 2, 3}.intersection(Given(2, 3), ByIndex(3, 4))),
    "difference": lambda net, x: x * sum(frozenset((1, 2, 3)).difference(Stepped(2))),
    "join": lambda net, x: x * len(",".join(Given("a", "b"))),
    "call with what is indexed": lambda net, x: pair(*ByIndex(x, 1, 2)),
    "prod": lambda net, x: x * math.prod(Given(1.5, 2.0), start=3),
    "indexOf": lambda net, x: x * operator.indexOf(Given(1, 2, 5), 2),
    "countOf": lambda net, x: x * operator.countOf(ByIndex(1, 2, 2), 2),
    "bisect": lambda net, x: x * bisect.bisect([1, 2, 4], 2),
    "bisect by index": lambda net, x: x * bisect.bisect_left(ByIndex(1, 2, 4), 2),
    "bisect with a key": lambda net, x: x * bisect.bisect_right([1, 2, 4], -2, key=lambda value: -value),
    "enumeration": lambda net, x: x * sum(kind.value for kind in Kind),
    "first of an enumeration": lambda net, x: x * next(kind.value for kind in Kind if kind is not Kind.ADD),
    "member by its value": lambda net, x: x * {Kind.ADD: 2.0, Kind.MUL: 3.0}[Kind(2)],
    "member by its text": lambda net, x: x if Mode("left") == Mode.LEFT else -x,
}


@pytest.mark.parametrize("name", PROGRAMS)
def test_walked_by_native_code(name: str) -> None:
    torch.manual_seed(0)
    net = Net()

    def program(compiled: Any) -> Iterator[Any]:
        f = compiled(PROGRAMS[name])
        for number in range(4):
            yield f(net, torch.arange(8.0).view(2, 4) * 0.1 + number)

    hold(Trap(program, traces=1, hits=3))


class Counted:
    """An iterator whose elements depend on what lies in it, and which is asked how long it may be."""

    def __init__(self, count: int, by: float, asked: list[str]) -> None:
        self.count, self.by, self.asked, self.given = count, by, asked, 0

    def __iter__(self) -> Iterator[float]:
        self.asked.append("iter")
        return self

    def __next__(self) -> float:
        if self.given == self.count:
            raise StopIteration
        self.given += 1
        return self.given * self.by

    def __length_hint__(self) -> int:
        self.asked.append("length")
        return self.count


def sliced(walked: Any) -> list[float]:
    values = [0.0]
    values[:] = walked
    return values


def grown(walked: Any) -> list[float]:
    values = [0.0]
    values += walked
    return values


FILLED: dict[str, Callable[[Any], Any]] = {
    "display": lambda walked: [*walked, 1],
    "tuple": lambda walked: (0, *walked),
    "list": list,
    "tuple by name": tuple,
    "sorted": sorted,
    "extend": lambda walked: changed([], "extend", walked),
    "in place": grown,
    "arguments": lambda walked: pair(2, *walked),
    "deque": collections.deque,
    "product": lambda walked: [*itertools.product(walked, [1])],
    "unpacked": lambda walked: (lambda a, b, *c: (a, b))(*walked),
}
UNASKED: dict[str, Callable[[Any], Any]] = {  # CPython asks their iterator once more, which is not told here
    "slice": sliced,
    "star": lambda walked: [rest for _, *rest in (walked,)],
    "first of them": lambda walked: [a + b for a, b in [walked] for _ in [0]],
}


@pytest.mark.parametrize("name", [*FILLED, *UNASKED])
def test_filled_by_an_iterator_of_the_program(name: str) -> None:
    fill = {**FILLED, **UNASKED}[name]

    def program(compiled: Any) -> Iterator[Any]:
        f = compiled(lambda x, walked: (fill(walked), x * 2))
        for number in range(8):
            asked: list[str] = []
            count = 2 if name == "first of them" else 2 + number % 2
            yield f(torch.arange(3.0) + number, Counted(count, float(number // 4), asked))
            yield asked if name in FILLED else None

    hold(Trap(program, traces=5, hits=2))


ERRORS: dict[str, Callable[[Tensor], Any]] = {
    "no value of an enumeration": lambda x: x * Kind(int(x[0].item())).value,
    "bounds of islice": lambda x: x * sum(itertools.islice(Given(1, 2), -1)),
    "a number of copies": lambda x: x * len(itertools.tee(Given(1, 2), -1)),
    "not in it": lambda x: x * operator.indexOf(Given(1, 2), 3),
    "not callable": lambda x: x * sum(iter(3, 3)),  # type: ignore[call-overload]
    "a pair of a dict": lambda x: x * len(changed({}, "update", Given((1, 2, 3)))),
    "keys without a hash": lambda x: x * len(dict.fromkeys(Given([1]))),
}


@pytest.mark.parametrize("name", ERRORS)
def test_errors_are_those_of_eager(name: str) -> None:
    def program(compiled: Any) -> Iterator[Any]:
        f = compiled(ERRORS[name])
        for number in range(4):
            try:
                yield f(torch.arange(3.0) + number)
            except Exception as error:
                yield type(error), str(error)

    hold(Trap(program, traces=4, hits=0))
