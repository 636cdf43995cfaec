"""Names that are not there while a call is recorded, whose error the program catches, and that are there later."""

from __future__ import annotations

import gc
import sys
import types
from typing import Any

import torch
from tests.traps.trap import Table, Trap, hold

import framefuse

TABLE = Table()
trap = TABLE.trap
MODULE: Any = types.ModuleType("module_of_the_trap")
HERE: Any = sys.modules[__name__]


def ones(*sizes: int) -> torch.Tensor:
    return torch.ones(*sizes)


def asks_for_a_global(x):
    try:
        return x * later_global
    except NameError:
        return x * 5


def drops_a_global(x):
    global dropped_global
    try:
        del dropped_global
        return x * 2
    except NameError:
        return x * 3


def asks_for_a_variable_of_a_module(x):
    try:
        return x * MODULE.gain
    except AttributeError:
        return x * 5


@trap(traces=3, hits=3)
def a_global_that_is_made_later(compiled):
    f = compiled(asks_for_a_global)
    for value in (None, None, 2.0, 3.0, None):
        if value is None:
            vars(HERE).pop("later_global", None)
        else:
            HERE.later_global = value
        yield f(ones(2)), f(ones(3))
    vars(HERE).pop("later_global", None)


@trap(traces=2, hits=2)
def a_global_that_is_there_to_be_dropped(compiled):
    f = compiled(drops_a_global)
    for there in (False, False, True, False):
        if there:
            HERE.dropped_global = 1
        yield f(ones(2)), hasattr(HERE, "dropped_global")


@trap(traces=3, hits=3)
def a_variable_of_a_module_that_is_made_later(compiled):
    f = compiled(asks_for_a_variable_of_a_module)
    for value in (None, None, 2.0, None):
        if value is None:
            vars(MODULE).pop("gain", None)
        else:
            MODULE.gain = value
        yield f(ones(2)), f(ones(3))
    vars(MODULE).pop("gain", None)


@trap(traces=3, hits=2)
def a_module_that_learns_to_give_what_it_lacks(compiled):
    module = types.ModuleType("lacking")

    @compiled
    def f(x):
        try:
            return x * module.gain
        except AttributeError:
            return x * 5

    for _ in range(2):
        yield f(ones(2))
    module.__getattr__ = lambda name: 7.0  # type: ignore[method-assign]
    for _ in range(2):
        yield f(ones(2))


@trap(traces=3, hits=2)
def a_cell_that_is_filled_and_emptied(compiled):
    def make():
        def f(x):
            try:
                return x * held
            except NameError:
                return x * 5

        def fill(value):
            nonlocal held
            held = value

        def empty():
            nonlocal held
            del held

        held = 1.0
        del held
        return f, fill, empty

    function, fill, empty = make()
    f = compiled(function)
    for value in (None, None, 2.0, 2.0):
        if value is not None:
            fill(value)
        yield f(ones(2))
    empty()
    yield f(ones(2))


@trap(traces=3, hits=3)
def a_class_that_gets_subclasses(compiled):
    class Base:
        pass

    f = compiled(lambda x: x * (1 + len(Base.__subclasses__())))
    kept = []
    for _ in range(3):
        yield f(ones(2)), f(ones(2))
        kept.append(type("More", (Base,), {}))


@TABLE.parametrize()
def test_the_name_is_looked_for(trap: Trap) -> None:
    hold(trap)


def test_the_collector_is_the_programs_own() -> None:
    def f(x):
        on = gc.isenabled()
        gc.disable()
        return x * (2 if on else 3)

    threshold = gc.get_threshold()
    fast = framefuse.compile(f)
    try:
        for on, result in ((True, 2.0), (True, 2.0), (False, 3.0)):
            (gc.enable if on else gc.disable)()
            assert fast(ones(2)).tolist() == [result, result]
            assert not gc.isenabled() and gc.get_threshold() == threshold
    finally:
        gc.enable()
