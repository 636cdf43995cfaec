"""Context variables that a call sets, reads and sets back, with breaks in between: so libraries collect outputs."""

from __future__ import annotations

import contextvars
import logging
from typing import Any

import torch
from tests.traps.trap import Table, Trap, hold

TABLE = Table()
trap = TABLE.trap
COLLECTED: contextvars.ContextVar[Any] = contextvars.ContextVar("COLLECTED", default=None)
LEVEL: contextvars.ContextVar[Any] = contextvars.ContextVar("LEVEL", default=0)


def pause(x: Any = None) -> None:
    """A break; it says what other code finds in the variables."""
    SEEN.append((LEVEL.get(), COLLECTED.get() is not None))
    print(end="")


class Hearer(logging.Handler):
    """Notes what it finds in the variable, and sets it."""

    def emit(self, record: logging.LogRecord) -> None:
        SEEN.append(LEVEL.get())
        LEVEL.set(LEVEL.get() + 10)


def logger(name: str, handler: logging.Handler) -> logging.Logger:
    made = logging.getLogger(name)
    made.propagate, made.handlers = False, [handler]
    return made


SAYS = logger("framefuse.traps.says", logging.NullHandler())
HEARD = logger("framefuse.traps.heard", Hearer())
SEEN: list[Any] = []
watched = torch.compiler.disable(pause)


def called(compiled: Any, function: Any, count: int = 5) -> Any:
    f = compiled(function)
    for number in range(count):
        SEEN.clear()
        yield f(torch.full((3,), number + 1.0)), LEVEL.get(), COLLECTED.get(), list(SEEN)


def collect(x: Any) -> Any:
    if (held := COLLECTED.get()) is not None:
        held["parts"].append(x)
    return x


@trap(traces=4, hits=4)
def a_variable_set_around_a_break(compiled):
    def f(x):
        held = {"parts": []}
        token = COLLECTED.set(held)
        try:
            y = collect(x * 2)
            watched()
            y = collect(y + 1)
        finally:
            COLLECTED.reset(token)
        return y, held["parts"]

    yield from called(compiled, f)


@trap(traces=4, hits=4)
def one_inside_the_other(compiled):
    def inner(x):
        token = LEVEL.set(LEVEL.get() + 1)
        try:
            watched()
            return x * LEVEL.get()
        finally:
            LEVEL.reset(token)

    def f(x):
        token = LEVEL.set(5)
        y = inner(x) + LEVEL.get()
        watched()
        LEVEL.reset(token)
        return y + LEVEL.get()

    yield from called(compiled, f)


@trap(traces=4, hits=4)
def a_branch_on_a_tensor_while_one_is_set(compiled):
    def f(x):
        token = LEVEL.set(3)
        y = x * 2 if x.sum() > 7 else x - 1
        y = y * LEVEL.get()
        LEVEL.reset(token)
        return y + LEVEL.get()

    yield from called(compiled, f, 6)


@trap(traces=3, hits=4)
def tokens_that_are_used_in_the_order_of_setting(compiled):
    def f(x):
        first, second = LEVEL.set(1), LEVEL.set(2)
        LEVEL.reset(first)
        y = x * (LEVEL.get() + 1)
        LEVEL.reset(second)
        y = y + LEVEL.get()
        LEVEL.set(0)
        return y

    yield from called(compiled, f)


@trap(traces=5, hits=8)
def one_that_stays_set(compiled):
    def f(x):
        LEVEL.set(LEVEL.get() + 1)
        print(end="")
        LEVEL.set(LEVEL.get() + 1)
        return x + LEVEL.get()

    yield from called(compiled, f, 12)
    LEVEL.set(0)


@trap(traces=4, hits=4)
def one_set_again_after_it_was_set_back_behind_a_break(compiled):
    def f(x):
        token = LEVEL.set(4)
        watched()
        LEVEL.reset(token)
        again = LEVEL.set(7)
        y = x * LEVEL.get()
        LEVEL.reset(again)
        watched()
        return y + LEVEL.get()

    yield from called(compiled, f)


@trap(traces=1, hits=4)
def one_set_and_set_back_after_something_was_said(compiled):
    def f(x):
        SAYS.warning("said")
        token = LEVEL.set(4)
        y = x * LEVEL.get()
        LEVEL.reset(token)
        again = LEVEL.set(7)
        y = y + LEVEL.get()
        LEVEL.reset(again)
        return y

    yield from called(compiled, f)


@trap(traces=4, hits=4)
def one_set_before_something_is_said_and_set_back_after_it(compiled):
    def f(x):
        token = LEVEL.set(4)
        HEARD.warning("said")
        again = LEVEL.set(LEVEL.get() + 1)
        y = x * LEVEL.get()
        LEVEL.reset(again)
        y = y + LEVEL.get()
        LEVEL.reset(token)
        return y + LEVEL.get()

    yield from called(compiled, f)


@trap(traces=2, hits=4)
def one_set_before_something_is_said_that_no_code_of_the_program_hears(compiled):
    def f(x):
        token = COLLECTED.set({"parts": []})
        level = LEVEL.set(LEVEL.get() + 1)
        SAYS.warning("said")
        try:
            y = collect(x * LEVEL.get())
            parts = COLLECTED.get()["parts"]
        finally:
            LEVEL.reset(level)
            COLLECTED.reset(token)
        SAYS.warning("again")
        LEVEL.set(LEVEL.get() + 1)
        return y, parts, LEVEL.get()

    yield from called(compiled, f)
    LEVEL.set(0)


@TABLE.parametrize()
def test_context_variables(trap: Trap) -> None:
    hold(trap)
