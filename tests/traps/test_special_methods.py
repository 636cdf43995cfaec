"""Special methods that are no functions of Python: static methods, callable objects, descriptors, caches, mocks. What
they give is looked up at each call.
"""

from __future__ import annotations

import collections
import functools
import operator
from collections.abc import Callable, Iterator
from typing import Any
from unittest import mock

import pytest
import torch
from tests.traps.trap import Trap, hold

GIVEN: dict[str, tuple[Any, Any]] = {  # by the first calls, and by those after a change
    "__len__": (3, 5), "__bool__": (True, False), "__int__": (3, 5), "__float__": (1.5, 2.5), "__index__": (3, 5),
    "__str__": ("a", "b"), "__getitem__": (3, 5), "__contains__": (True, False), "__add__": (3, 5),
    "__radd__": (3, 5), "__neg__": (3, 5), "__lt__": (True, False), "__abs__": (3, 5), "__divmod__": (3, 5),
    "__complex__": (1j, 2j), "__matmul__": (3, 5), "__bytes__": (b"a", b"b"), "__rmul__": (3, 5),
    "__enter__": (3, 5), "__exit__": (None, False),
}  # fmt: skip


def asked(x: Any, o: Any) -> Any:
    with o as entered:
        x = x * entered
    return (
        x * 2, len(o), bool(o), int(o), float(o), operator.index(o), str(o), o[0], 1 in o, o + 1, 1 + o, -o, o < 1,
        abs(o), divmod(o, 2), complex(o), o @ 1, bytes(o), 2 * o,
    )  # fmt: skip


class Called:
    """A callable object, which Python calls without the object that it is asked for."""

    def __init__(self, given: list[Any]) -> None:
        self.given = given

    def __call__(self, *args: Any) -> Any:
        return self.given[0]


class Bound:
    def __init__(self, given: list[Any]) -> None:
        self.given = given

    def __get__(self, holder: Any, kind: Any) -> Callable[..., Any]:
        return lambda *args: self.given[0]


KINDS: dict[str, Callable[[list[Any]], Any]] = {
    "callable": Called,
    "descriptor": Bound,
    "static": lambda given: staticmethod(lambda *args: given[0]),
    "class": lambda given: classmethod(lambda kind, *args: given[0]),
    "property": lambda given: property(lambda self: lambda *args: given[0]),
    "partial": lambda given: functools.partialmethod(lambda self, extra, *args: given[0], 1),
    "cached": lambda given: functools.lru_cache(lambda self, *args: given[0]),
    "mock": lambda given: mock.Mock(side_effect=lambda *args: given[0]),
}


@pytest.mark.parametrize("name", KINDS)
def test_special_methods_that_are_no_functions(name: str) -> None:
    def program(compiled: Any) -> Iterator[Any]:
        given = {method: [first] for method, (first, _) in GIVEN.items()}
        methods = {method: KINDS[name](held) for method, held in given.items()}
        o = type("Kind", (), methods)()
        f = compiled(asked)
        for number in range(6):
            if number == 3:
                for method, (_, later) in GIVEN.items():
                    given[method][0] = later
                    if name == "cached":
                        methods[method].cache_clear()
            yield f(torch.arange(3.0) + number, o)

    hold(Trap(program, traces=200, hits=0 if name in ("cached", "mock") else 2))


class Positive:
    def __init__(self, w: Any) -> None:
        self.w = w

    def __bool__(self) -> bool:
        return bool(self.w > 0)


class Wrong:
    def __init__(self, w: Any) -> None:
        self.w = w

    def __bool__(self) -> Any:
        return 1 if self.w > 0 else "no"


class Row:
    """Counts its values."""

    def __init__(self, w: Any) -> None:
        self.w = w

    def __len__(self) -> int:
        return 2 if self.w > 0 else 0


def decided(x: Any) -> Any:
    p, q = Positive(x.sum()), Row(x.mean() - 1)
    y = x * 2 if p else x - 1
    if not q and p:
        y = y + 1
    some = any([q, p])
    try:
        raised = bool(Wrong(x.sum()))
    except TypeError as error:
        raised = str(error)
    return y * 3, not q, bool(p), (p or q) is p, (q and p) is p, some, [number for number in (1, 2) if q], raised


def test_a_branch_on_a_tensor_in_what_says_the_truth_is_a_break() -> None:
    def program(compiled: Any) -> Iterator[Any]:
        f = compiled(decided)
        for number in range(12):
            yield f(torch.full((3,), float((0, 3, -2)[number % 3])) + number / 16)

    hold(Trap(program, traces=40, hits=6))


def test_a_cached_method_of_a_class_without_a_place_in_a_module_is_a_step() -> None:
    def program(compiled: Any) -> Iterator[Any]:
        class Tables:
            def __init__(self, k: float) -> None:
                self.k = k

            @functools.lru_cache(maxsize=2)  # noqa: B019
            def table(self, count: int) -> Any:
                return torch.ones(count) * self.k

            @classmethod
            @functools.cache
            def common(cls, count: int) -> Any:
                return torch.ones(count)

        tables = [Tables(1.0), Tables(2.0)]
        f = compiled(lambda x, holder: torch.stack([x, holder.table(3)]).sum(0) + holder.common(3))
        for number in range(8):
            yield f(torch.full((3,), float(number)), tables[number % 2])
            if number == 5:
                tables[0].k = 7.0
                Tables.table.cache_clear()

    hold(Trap(program, traces=8, hits=4))


class Steps:
    """Goes on while its values are small."""

    def __init__(self, w: Any) -> None:
        self.w = w

    def __iter__(self) -> Any:
        return self

    def __next__(self) -> Any:
        if (self.w * self.w).sum() > 100:
            raise StopIteration
        self.w = self.w * 2 + 1.3
        return self.w


class Signed:
    """Its index, its text and its elements depend on the sign of what it holds."""

    def __init__(self, w: Any) -> None:
        self.w = w

    def __index__(self) -> int:
        return 1 if self.w.sum() > 0 else 0

    def __format__(self, spec: str) -> str:
        return f"{spec}+" if self.w.sum() > 0 else f"{spec}-"

    def __repr__(self) -> str:
        return "P" if self.w.sum() > 0 else "N"

    def __len__(self) -> int:
        return 3 if self.w.sum() > 0 else 2

    def __getitem__(self, number: int) -> Any:
        if number > 2:
            raise IndexError
        return self.w * number if self.w.sum() > 0 else self.w


def _joined(*parts: Any) -> Any:
    return sum(parts)


def iterated(x: Any) -> Any:
    total = x * 0
    for part in Steps(x):
        total = total + part
    iterator = Steps(x)
    first = next(iterator, None)
    return total, [*Steps(x)], list(Steps(x)), first, next(Steps(x * 100), "ended"), dict(zip("ab", Steps(x)))


def unpacked(x: Any) -> Any:
    a, b, c = Signed(x + 1)
    first, *rest = Steps(x)
    drawn = (part * 2 if part.sum() > 0 else part for part in (x, x + 1))
    p, q = drawn
    last = _joined(x, *(y.abs() if y.sum() > 0 else y for y in (x, x)))
    return a + b + c, first, rest, p, q, _joined(*Signed(x)), last


def told(x: Any) -> Any:
    y = x * 2
    p = Signed(x)
    return y + 1, f"{p:q} {p!r:>3} {p!s} {p!a}", [10, 20][p], repr(p)


def filled(x: Any) -> Any:
    def made() -> int:
        return 1 if x.sum() > 0 else 2

    entries: Any = collections.defaultdict(made)
    y = x * entries["a"] + entries["b"]
    return y, dict(entries)


@pytest.mark.parametrize("function", [iterated, unpacked, told, filled])
def test_a_branch_on_a_tensor_in_what_an_instruction_asks_is_a_break(function: Any) -> None:
    def program(compiled: Any) -> Iterator[Any]:
        f = compiled(function)
        for number in range(12):
            yield f(torch.full((3,), float((1, 3, -2)[number % 3])) + number / 16)

    hold(Trap(program, traces=80, hits=4))
