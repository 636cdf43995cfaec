"""Traps in what C code asks of a program's own mappings, and in when a generator that nobody holds comes to its end."""

from __future__ import annotations

from typing import Any

import torch
from tests.traps.trap import Table, Trap, hold

TABLE = Table()
trap = TABLE.trap


def steps(number: int) -> torch.Tensor:
    return torch.arange(3.0) + number


class OtherKeys(dict[str, Any]):
    def keys(self) -> Any:
        return ["z"]


class OtherItems(dict[str, Any]):
    def __getitem__(self, key: str) -> Any:
        return 7.0


class OtherIteration(dict[str, Any]):
    def __iter__(self) -> Any:
        return iter(["a"])

    def __getitem__(self, key: str) -> Any:
        return 7.0


class OnlyKeys:
    def keys(self) -> Any:
        return (name for name in "ab")

    def __getitem__(self, key: str) -> Any:
        return ord(key)


def taken(**named: Any) -> dict[str, Any]:
    return named


@trap(traces=8, hits=8)
def a_display_of_a_mapping_takes_what_eager_takes(compiled):
    for kind in (OtherKeys, OtherItems, OtherIteration):
        f = compiled(lambda x, given: (x * len({**given}), {**given}))
        for number in range(4):
            yield f(steps(number), kind(a=1.0, b=2.0))
    f = compiled(lambda x, given: (x * len({**given}), {**given}))
    for number in range(4):
        yield f(steps(number), OnlyKeys())


@trap(traces=8, hits=8)
def keywords_of_a_mapping_are_what_eager_takes(compiled):
    for kind in (OtherKeys, OtherItems, OtherIteration):
        f = compiled(lambda x, given: (x + 1, taken(**given)))
        for number in range(4):
            yield f(steps(number), kind(a=1.0, b=2.0))
    f = compiled(lambda x, given: (x + 1, taken(**given)))
    for number in range(4):
        yield f(steps(number), OnlyKeys())


def doubling(x: torch.Tensor, count: int) -> Any:
    try:
        for number in range(count):
            yield x * number
    finally:
        x.mul_(2)


def first_of(generator: Any) -> Any:
    yield next(generator)


def failing(generator: Any) -> Any:
    yield next(generator)
    raise ValueError


def failed(x: torch.Tensor) -> torch.Tensor:
    try:
        list(failing(doubling(x, 3)))
    except ValueError:
        pass
    return x * 1


@trap(traces=1, hits=3)
def the_longer_generator_of_a_zip_ends_with_it(compiled):
    f = compiled(lambda x: ([*zip(doubling(x, 2), doubling(x, 5), strict=False)], x * 1))
    for number in range(4):
        x = steps(number)
        yield f(x), x


@trap(traces=1, hits=3)
def a_generator_that_another_held_ends_with_it(compiled):
    f = compiled(lambda x: (list(first_of(doubling(x, 3))), x * 1))
    for number in range(4):
        x = steps(number)
        yield f(x), x


@trap(traces=1, hits=3)
def a_generator_that_a_failed_one_held_ends_with_it(compiled):
    f = compiled(failed)
    for number in range(4):
        x = steps(number)
        yield f(x), x


@trap(traces=1, hits=3)
def a_generator_left_by_a_loop_ends_at_once(compiled):
    @compiled
    def f(x):
        for part in doubling(x, 3):
            first = part
            break
        return first, x * 1, any(part is None for part in doubling(x, 2)), x + 1

    for number in range(4):
        x = steps(number)
        yield f(x), x


def kept_by_a_name(x, told):
    steps = telling(x, told)
    return next(steps) * 2


def kept_by_an_iterator(x, told):
    pairs = zip(telling(x, told), enumerate(telling(x, told)))
    return next(pairs)[0] * 2


def kept_by_a_generator(x, told):
    found = any(part is x for part in telling(x, told))
    told.append("found")
    return x * found


def kept_by_an_exception(x, told):
    def failing():
        steps = telling(x, told)
        next(steps)
        raise ValueError

    try:
        failing()
    except ValueError:
        told.append("caught")
    told.append("after")
    return x * 2


def kept_over_a_break(x, told):
    if any(telling(x, told)):
        told.append("any")
    steps = telling(x, told)
    told.append(next(steps).tolist())
    told.append("after")
    return x * 2


def telling(x, told):
    try:
        yield x
        yield x * 2
    finally:
        told.append("closed")


@trap(traces=9, hits=12)
def a_suspended_generator_closes_when_its_last_holder_goes(compiled):
    for function in (
        kept_by_a_name, kept_by_an_iterator, kept_by_a_generator, kept_by_an_exception, kept_over_a_break,
    ):  # fmt: skip
        f = compiled(function)
        for number in range(4):
            told = []
            yield f(steps(number)[1:2] + 1, told), told


@TABLE.parametrize()
def test_mappings_and_generators(trap: Trap) -> None:
    hold(trap)
