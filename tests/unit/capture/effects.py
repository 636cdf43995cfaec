"""Runs a program eagerly and compiled, several calls each, and compares results, state and aliasing."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Any

import torch
from tests.unit.capture.replay import equal

import framefuse
from framefuse.api import compiled_function

# A program: makes a function with fresh state, and says what can be seen of that state afterwards.
Made = tuple[Callable[..., Any], Callable[[], Any]]


def arguments(call: int) -> tuple[Any, ...]:
    """The arguments of a call unless the program gives its own: another size from the third call on."""
    generator = torch.Generator().manual_seed(call)
    return (torch.randn(3 if call < 2 else 5, generator=generator),)


def same_as_eager(
    make: Callable[[], Made], *, traces: int, calls: int = 6, args: Callable[[int], tuple[Any, ...]] = arguments,
    recorded: int | None = None,
) -> Any:
    """Holds ``calls`` calls of the compiled function to eager's. At most ``traces`` traces are compiled, no call runs
    eagerly, and all but the ``recorded`` (else: as many as there are traces) run compiled code. Gives the compiled
    function.
    """
    eager, see_eager = make()
    plain, see_plain = make()
    fast = framefuse.compile(plain)
    for call in range(calls):
        expected, given = outcome(eager, args(call)), outcome(fast, args(call))
        assert same(expected, given), f"call {call}: {expected!r} {given!r}"
        assert shape(expected) == shape(given), f"call {call}: the results alias in another way"
        one, two = see_eager(), see_plain()
        assert same(one, two), f"the state after call {call}: {one!r} {two!r}"
        assert shape(one) == shape(two), f"the state after call {call} aliases in another way"
    state = compiled_function(fast)
    assert state is not None and state.eager_calls == 0, [str(reason) for reason in state.reasons]
    assert 1 <= len(state.products) <= traces, len(state.products)
    assert state.dispatch.hits == calls - (len(state.products) if recorded is None else recorded)
    return fast


def outcome(function: Callable[..., Any], args: tuple[Any, ...]) -> Any:
    try:
        return ("value", function(*args), args)
    except Exception as error:
        return ("raises", type(error), str(error), args)


def same(left: Any, right: Any, depth: int = 0) -> bool:
    """Equal in type and content, tensors also in version and gradient flag."""
    if depth > 12:
        return True
    if isinstance(left, torch.Tensor):
        if type(left) is not type(right) or left.requires_grad != right.requires_grad:
            return False
        if (left.grad is None) != (right.grad is None) or not (left.grad is None or same(left.grad, right.grad)):
            return False
        return equal(left, right, exact=False) and left._version == right._version and left.stride() == right.stride()
    if type(left) is not type(right):
        return type(left).__name__ == type(right).__name__ and _same_parts(left, right, depth)
    if parts(left) is not None:
        return _same_parts(left, right, depth)
    return bool(equal(left, right, exact=False)) or type(left).__eq__ is object.__eq__


def _same_parts(left: Any, right: Any, depth: int) -> bool:
    one, two = parts(left), parts(right)
    return (
        one is not None and two is not None and len(one) == len(two)
        and all(same(a, b, depth + 1) for a, b in zip(one, two, strict=True))
    )  # fmt: skip


def parts(value: Any) -> list[Any] | None:
    """What lies in a container or object, in order; None for atoms and tensors."""
    if isinstance(value, dict):
        found = [part for pair in value.items() for part in pair]
    elif isinstance(value, (set, frozenset)):
        found = list(value) if all(isinstance(part, (int, str)) for part in value) else [len(value)]
    elif isinstance(value, (list, tuple, deque)):
        found = list(value)
    elif isinstance(value, BaseException):
        found = [*value.args]
    elif isinstance(value, slice):
        return [value.start, value.stop, value.step]
    elif hasattr(value, "__dict__") and not isinstance(value, (type, torch.Tensor)) and not callable(value):
        found = []
    elif getattr(type(value), "__slots__", None) and type(value).__module__ != "torch":
        found = [getattr(value, name, "unset") for name in type(value).__slots__]
    else:
        return None
    state = getattr(value, "__dict__", None)
    return found + ([part for pair in state.items() for part in pair] if isinstance(state, dict) else [])


def shape(value: Any) -> list[int]:
    """Which places hold the same object: the number of the first place that holds each, in order of a walk."""
    seen: dict[int, int] = {}
    keep: list[Any] = []

    def walk(part: Any) -> list[int]:
        if isinstance(part, (int, float, str, bytes, type(None), type)):
            return []
        if id(part) in seen:
            return [seen[id(part)]]
        seen[id(part)] = number = len(seen)
        keep.append(part)
        return [number, *[place for inner in parts(part) or () for place in walk(inner)]]

    return walk(value)
