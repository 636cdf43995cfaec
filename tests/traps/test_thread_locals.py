"""Objects of classes derived from threading.local keep what belongs to a thread apart from class and object."""

from __future__ import annotations

import contextlib
import threading

import torch
from tests.traps.trap import Table, Trap, hold

TABLE = Table()
trap = TABLE.trap


class State(threading.local):
    depth = 1
    tensor = None

    def __init__(self):
        self.scale = 2.0

    @property
    def both(self):
        return self.depth + self.scale

    def twice(self, x):
        return x * self.scale * 2


class Asked(threading.local):
    def __getattr__(self, name):
        return len(name)


def inputs():
    return (torch.full((3,), float(number + 1)) for number in range(6))


@trap(traces=4, hits=3)
def a_default_of_the_class(compiled):
    state = State()
    f = compiled(lambda x: x * state.depth + state.scale)
    for number, x in enumerate(inputs()):
        if number == 2:
            state.depth = 7
        if number == 4:
            del state.depth
        yield f(x)


@trap(traces=3, hits=3)
def through_a_property_and_a_method(compiled):
    state = State()
    f = compiled(lambda x: state.twice(x) + state.both)
    for number, x in enumerate(inputs()):
        if number == 2:
            state.scale = 5.0
        yield f(x)


@trap(traces=3, hits=3)
def a_method_replaced_in_one_thread(compiled):
    state = State()
    f = compiled(lambda x: state.twice(x))
    for number, x in enumerate(inputs()):
        if number == 3:
            state.twice = lambda x: x - 1
        yield f(x)


@trap(traces=2, hits=4)
def counted_by_the_call(compiled):
    state = State()

    def count(x):
        state.depth += 1
        return x * state.depth

    f = compiled(count)
    for x in inputs():
        yield f(x), state.depth, State.depth, state.__dict__


@trap(traces=3, hits=3)
def set_for_a_while(compiled):
    state = State()

    @contextlib.contextmanager
    def scaled(by):
        before, state.scale = state.scale, by
        try:
            yield
        finally:
            state.scale = before

    def within(x):
        with scaled(state.scale + 1):
            y = x * state.scale
        return y + state.scale

    f = compiled(within)
    for number, x in enumerate(inputs()):
        if number == 3:
            state.scale = 10.0
        yield f(x), state.scale


@trap(traces=3, hits=2)
def in_another_thread(compiled):
    state = State()
    f = compiled(lambda x: x * state.depth + state.scale)
    state.depth, found = 9, []
    for x in inputs():
        worker = threading.Thread(target=lambda x=x: found.append(f(x)))
        worker.start()
        worker.join()
        yield f(x), found[-1]


@trap(traces=3, hits=3)
def a_tensor_of_a_thread(compiled):
    state = State()
    f = compiled(lambda x: x if state.tensor is None else x * state.tensor)
    for number, x in enumerate(inputs()):
        if number >= 2:
            state.tensor = x + number
        yield f(x)


@trap(traces=12, hits=0)
def names_that_are_computed(compiled):
    asked = Asked()
    f = compiled(lambda x: x * asked.some)
    for number, x in enumerate(inputs()):
        if number == 3:
            asked.some = 100
        yield f(x)


@trap(traces=12, hits=0)
def all_that_a_thread_has(compiled):
    state = State()
    f = compiled(lambda x: x * len(state.__dict__) + sum(vars(state).values()))
    for number, x in enumerate(inputs()):
        if number == 3:
            state.more = 100
        yield f(x)


@TABLE.parametrize()
def test_thread_locals(trap: Trap) -> None:
    hold(trap)
