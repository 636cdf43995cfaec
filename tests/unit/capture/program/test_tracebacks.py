"""Exceptions have eager's type, text, causes and traceback, entry by entry, on recorded calls and on compiled ones."""

import json
import logging
import traceback
from collections.abc import Callable
from typing import Any

import pytest
import torch

import framefuse
from framefuse.api import compiled_function

T = torch.tensor
X = torch.arange(1.0, 4.0)
logger = logging.getLogger("framefuse.tests.tracebacks")
LINEAR = torch.nn.Linear(3, 2).requires_grad_(False)


def seen(error: BaseException | None) -> Any:
    """Type, text, all entries of the traceback with their columns, cause and context."""
    if error is None:
        return None
    places = [
        (entry.filename, entry.name, entry.lineno, entry.end_lineno, entry.colno, entry.end_colno)
        for entry in traceback.extract_tb(error.__traceback__)
    ]
    return type(error), str(error), places, seen(error.__cause__), seen(error.__context__)


def outcome(function: Callable[..., Any], args: tuple[Any, ...]) -> Any:
    try:
        result = function(*args)
    except Exception as error:
        return seen(error)
    return result.tolist() if isinstance(result, torch.Tensor) else result


def out_of_range(x, i):
    y = x * 2
    return y[i] + 1


def gathered(x, i):
    return (x * 2).gather(0, i) + 1


def divided(x, y):
    def inner(a):
        return a // y

    return inner(x + 1) * 2


def remainder(x, y):
    return (x + 1) % y


def multiplied(x, y):
    a = x + 1
    return (
        a
        @ y
    )  # fmt: skip


def added(x, y):
    return x * 2 + y


def viewed(x):
    return (x + 1).reshape(2, -1) + 1


def a_module(x):
    return LINEAR(x + 1)


def a_number_divides(x, n):
    return x * (4 // n)


def after_a_break(x, n):
    k = n.item()

    def inner(v):
        return v[k] + 1

    return inner(x * 2)


def in_a_step(x, text):
    def inner(v):
        return v + json.loads(text)

    return inner(x * 2)


def handled_after_a_step(x, text):
    y = x + 1
    try:
        n = json.loads(text)
    except json.JSONDecodeError as error:
        raise RuntimeError("bad") from error
    return y * n


def raised_on_a_value(x):
    y = x * 2
    if y.sum() < 0:
        raise ValueError(f"negative {y.sum().item()}")
    return y


def asserted(x):
    assert x.sum() > 0, "must be positive"
    return x + 1


def in_a_generator(x, fail):
    def made():
        yield x + 1
        if fail:
            raise LookupError("in a generator")

    return torch.stack([v * 2 for v in made()])


def logs(x, text):
    def inner(v):
        logger.warning("of %s", text)
        return v + 1

    return inner(x * 2)


ROWS = [  # function, arguments by call, the least number of calls that run compiled code
    (out_of_range, [(X, T([0, 1])), (X, T([0, 5])), (X, T([1, 1]))], 8),
    (gathered, [(X, T([0, 1])), (X, T([0, 5])), (X, T([1, 1]))], 8),
    (divided, [(T([4, 6]), T([2, 3])), (T([4, 6]), T([2, 0]))], 5),
    (remainder, [(T([4, 6]), T([2, 3])), (T([4, 6]), T([2, 0]))], 5),
    (multiplied, [(torch.ones(3, 4), torch.ones(4, 2)), (torch.ones(3, 4), torch.ones(5, 2))], 2),
    (added, [(X, X), (X, torch.ones(4))], 2),
    (viewed, [(torch.ones(2, 3),), (torch.ones(3, 3),)], 2),
    (a_module, [(torch.ones(2, 3),), (torch.ones(2, 4),)], 2),
    (a_number_divides, [(X, 2), (X, 0)], 2),
    (after_a_break, [(X, T(0)), (X, T(7)), (X, T(1))], 8),
    (in_a_step, [(X, "1"), (X, "x")], 2),
    (handled_after_a_step, [(X, "1"), (X, "x")], 2),
    (raised_on_a_value, [(X,), (-X,)], 5),
    (asserted, [(X,), (-X,)], 5),
    (in_a_generator, [(X, False), (X, True)], 2),
]


@pytest.mark.parametrize(("function", "calls", "hits"), ROWS, ids=lambda part: getattr(part, "__name__", None))
def test_exceptions_are_eagers(function: Callable[..., Any], calls: list[tuple[Any, ...]], hits: int) -> None:
    fast = framefuse.compile(function)
    failed = 0
    for turn in range(3):
        for args in calls:
            expected, given = [outcome(each, args) for each in (function, fast)]
            assert given == expected, f"turn {turn}"
            failed += isinstance(expected, tuple)
    state = compiled_function(fast)
    assert failed == 3 and state is not None
    assert state.dispatch.hits + state.dispatch.declines >= hits, (state.dispatch.hits, list(map(str, state.reasons)))


class Failing(logging.Handler):
    """Fails at every third record."""

    records = 0

    def emit(self, record: logging.LogRecord) -> None:
        self.records += 1
        if self.records % 3 == 0:
            raise OSError("the disk is full")


def test_an_effect_that_raises() -> None:
    fast, outcomes = framefuse.compile(logs), []
    for function in (logs, fast):
        logger.handlers, logger.propagate = [Failing()], False
        outcomes.append([outcome(function, (X, "a step")) for _ in range(7)])
    assert outcomes[0] == outcomes[1] and sum(type(found) is tuple for found in outcomes[0]) == 2
    state = compiled_function(fast)
    assert state is not None and state.dispatch.hits >= 5


def test_our_own_errors_keep_their_traceback() -> None:
    fast = framefuse.compile(lambda x: x * x.tolist()[0], fullgraph=True)
    with pytest.raises(ValueError, match="item") as caught:
        fast(X)
    assert traceback.extract_tb(caught.value.__traceback__)[-1].name == "miss"
