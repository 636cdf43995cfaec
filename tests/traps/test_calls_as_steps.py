"""Where no break is possible inside a call, the call is the step: the code before and after it is compiled."""

from __future__ import annotations

import dataclasses
import inspect
import types
from typing import Any, Optional, Union

import torch
from tests.traps.trap import Table, Trap, hold

TABLE = Table()
trap = TABLE.trap
DONE: list[Any] = []


def installed(text: str) -> dict[str, Any]:
    """The names of a text, as if it came from an installed library."""
    space: dict[str, Any] = {"torch": torch, "__name__": "a_library.modeling", "DONE": DONE}
    exec(compile(text, "/usr/lib/python3/site-packages/a_library/modeling.py", "exec"), space)
    return space


def counted(compiled: Any, function: Any, count: int = 6) -> Any:
    f = compiled(function)
    DONE.clear()
    for number in range(count):
        yield f(torch.full((3,), number + 1.0)), list(DONE)


def own(x: Any, k: float) -> Any:
    """A break while a used iterator of C is alive, which nothing can carry on."""
    left = iter(memoryview(b"ab"))
    next(left)
    DONE.append(k)
    print(end="")
    return x * k + next(left)


@trap(traces=3, hits=4)
def a_function_of_the_program(compiled):
    def f(x):
        y = (x.sin() * 2).cos()
        return (own(y, 3.0).exp() + 1).sum()

    yield from counted(compiled, f)


@trap(traces=3, hits=4)
def a_function_of_the_program_that_another_calls(compiled):
    def between(x):
        return own(x + 1, 2.0) - 1

    yield from counted(compiled, lambda x: between(x.sin()).cos() * 2)


LIBRARY = installed("""
class Log:
    def __init__(self):
        self.values = {}

    def __call__(self, name, value):
        for turn in range(200):
            self._one(name, turn, value)

    def _one(self, name, turn, value):
        left = iter(memoryview(b"ab"))
        next(left)
        print(end="")
        self.values[name, turn] = value
        DONE.append(next(left))
""")


@trap(traces=3, hits=3)
def a_call_into_a_library(compiled):
    log = LIBRARY["Log"]()

    def f(x):
        y = (x.sin() * 2).cos()
        log("y", y)
        return (y.exp() + 1).sum(), log.values["y", 199]

    yield from counted(compiled, f)


BUSY = installed("""
class State:
    pass

def told(x):
    State.a = 1
    State.b = State.a + 1
    State.c = State.b + 1
    State.d = State.c + 1
    State.e = State.d + 1
    State.f = State.e + 1
    State.g = State.f + 1
    State.h = State.g + 1
    DONE.append(State.h)
    return x * State.h
""")


@trap(traces=4, hits=6)
def a_library_that_ends_many_recordings(compiled):
    yield from counted(compiled, lambda x: (BUSY["told"](x.sin() * 2) + 1).cos().sum(), 14)


@dataclasses.dataclass
class Setting:
    k: float = 2.0


@trap(traces=1, hits=5)
def whether_an_object_is_a_dataclass(compiled):
    held = [Setting(), inspect.signature(own)]

    def f(x):
        return x * sum(dataclasses.is_dataclass(part) * 2 + 1 for part in held)

    yield from counted(compiled, f)


@trap(traces=2, hits=2)
def types_and_proxies_live_across_a_break(compiled):
    def f(x):
        told = Union[int, torch.Tensor], Optional[list[int]], types.MappingProxyType({"k": 2.0})  # noqa: UP007, UP045
        print(end="")
        return x * told[2]["k"], told[0] == Union[int, torch.Tensor], told[1]  # noqa: UP007

    yield from counted(compiled, f)


@TABLE.parametrize()
def test_a_call_is_the_step(trap: Trap) -> None:
    hold(trap)
