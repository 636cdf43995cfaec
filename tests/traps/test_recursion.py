"""Recursion needs as much of Python's stack as it does eagerly: it reaches as deep, and ends where eager's ends."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

import pytest
import torch

import framefuse
from framefuse.api import compiled_function

DEEP = 700


def adds(x: Any, n: int) -> Any:
    return x if n == 0 else adds(x + 1, n - 1)


def reads(x: Any, n: int) -> Any:
    return x * x.sum().item() if n == 0 else reads(x + 1, n - 1)


def endless(x: Any) -> Any:
    return endless(x + 1)


def caught(x: Any) -> Any:
    try:
        return endless(x)
    except RecursionError:
        return x * 2


def sums(n: int) -> int:
    return sum(map(sums, [n - 1])) + 1 if n else 0


class Chain:
    """Each special method asks that of a shorter chain."""

    def __init__(self, n: int) -> None:
        self.n = n

    def shorter(self) -> Chain:
        return Chain(self.n - 1)

    @property
    def value(self) -> int:
        return self.shorter().value + 1 if self.n else 0

    def __getattr__(self, name: str) -> int:
        return getattr(self.shorter(), name) + 1 if self.n else 0

    def __add__(self, other: int) -> int:
        return self.shorter() + other + 1 if self.n else other

    def __len__(self) -> int:
        return len(self.shorter()) + 1 if self.n else 0

    def __bool__(self) -> bool:
        return bool(self.shorter()) if self.n else True

    def __eq__(self, other: object) -> bool:
        return self.shorter() == other if self.n else True

    def __str__(self) -> str:
        return str(self.shorter()) + "a" if self.n else ""


def _equal(function: Callable[..., Any], *args: Any, hits: int = 2) -> None:
    f = framefuse.compile(function)
    for start in range(4):
        x = torch.full((2,), float(start))
        assert torch.equal(f(x, *args), function(x, *args))
    assert compiled_function(f).dispatch.hits >= hits


@pytest.mark.parametrize("function", [adds, reads])
def test_a_function_that_calls_itself(function: Callable[..., Any]) -> None:
    _equal(function, DEEP)


@pytest.mark.parametrize(
    "ask",
    [
        lambda chain: chain.value, lambda chain: chain.missing, lambda chain: chain + 1, len, bool, str,
        lambda chain: chain == 1, lambda chain: sums(chain.n),
    ],
)  # fmt: skip
def test_special_methods_that_call_themselves(ask: Callable[[Any], Any]) -> None:
    _equal(lambda x, n: x * len(str(ask(Chain(n)))), 300)


def test_endless_recursion_is_the_error_that_eager_raises() -> None:
    f = framefuse.compile(endless)
    for _ in range(3):
        with pytest.raises(RecursionError, match="maximum recursion depth exceeded"):
            f(torch.ones(1))
    limit = sys.getrecursionlimit()
    _equal(caught, hits=0)
    assert sys.getrecursionlimit() == limit


def _below(depth: int, function: Callable[..., Any], *args: Any) -> Any:
    return function(*args) if depth == 0 else _below(depth - 1, function, *args)


def _frames_left(used: int = 0) -> int:
    """How many frames fit from here on; calls in C that the frames do not show take room as well."""
    try:
        return _frames_left(used + 1)
    except RecursionError:
        return used


@pytest.mark.parametrize("room", [8, 15, 40, 120])
def test_a_compiled_function_close_to_the_limit(room: int) -> None:
    f = framefuse.compile(lambda x: torch.relu(x * 2) + 1)
    depth = _frames_left() - room
    for start in range(3):
        assert _below(depth, f, torch.full((2,), float(start))).tolist() == [2.0 * start + 1] * 2


def test_the_limit_is_where_eager_has_it() -> None:
    def deepest(function: Callable[..., Any]) -> int:
        low, high = 1, sys.getrecursionlimit()
        while high - low > 1:
            middle = (low + high) // 2
            try:
                function(torch.zeros(1), middle)
                low = middle
            except RecursionError:
                high = middle
        return low

    assert abs(deepest(framefuse.compile(adds, dynamic=False)) - deepest(adds)) < 25
