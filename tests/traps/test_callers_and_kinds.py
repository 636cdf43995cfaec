"""What a recording took for fixed and a later call finds otherwise: classes, proxies, modes, the caller's exceptions;
and what a recording left behind in the program's objects.
"""

from __future__ import annotations

import functools
import gc
import sys
import types
import typing
import weakref
from typing import Any

import pytest
import torch
from tests.traps.trap import Table, Trap, hold
from torch import nn
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

import framefuse

TABLE = Table()
trap = TABLE.trap


def ones(scale: float = 1.0) -> torch.Tensor:
    return torch.ones(2) * scale


@typing.runtime_checkable
class Named(typing.Protocol):
    name: str


@trap(traces=3, hits=3)
def a_protocol_asked_about_an_object_whose_attributes_come_and_go(compiled):
    thing, other = types.SimpleNamespace(), type("Thing", (), {})()
    f = compiled(lambda x: x * isinstance(thing, Named) + 2 * isinstance(other, Named))
    for step in range(8):
        if step in (2, 5):
            thing.name = other.name = "here"
        elif step == 4:
            del thing.name, other.name
        yield f(ones(step))


@trap(traces=20, hits=3)
def a_proxy_of_a_dict_that_changes(compiled):
    behind = {"k": 2.0}
    proxy = types.MappingProxyType(behind)
    f = compiled(lambda x: (x * proxy.get("k", 1), list(proxy.items()), sorted(proxy.keys()), proxy.get("q")))
    for step in range(8):
        behind["q" if step % 3 else "k"] = step
        yield f(ones(step))


@trap(traces=3, hits=2)
def the_call_of_a_class_replaced(compiled):
    class Block(nn.Module):
        def forward(self, x):
            return x * 2

    class Scale:
        def __call__(self, x):
            return x * 3

    class Other(Scale):
        def __call__(self, x):
            return x - 7

    block, scale = Block(), Scale()
    f, g = compiled(block), compiled(scale)
    for step in range(4):
        yield f(ones(step)), g(ones(step))
    Block.__call__ = lambda self, x: x + 1
    Scale.__call__ = lambda self, x: x + 2
    yield f(ones()), g(ones(5))
    del Block.__call__
    scale.__class__ = Other
    yield f(ones()), g(ones(5))


class Told(TorchFunctionMode):
    def __init__(self, log: list[str]) -> None:
        self.log = log

    def __torch_function__(self, function, kinds, args=(), kwargs=None):
        self.log.append(function.__name__)
        return function(*args, **(kwargs or {}))


class ToldBelow(TorchDispatchMode):
    def __init__(self, log: list[str]) -> None:
        super().__init__()
        self.log = log

    def __torch_dispatch__(self, function, kinds, args=(), kwargs=None):
        self.log.append(str(function))
        return function(*args, **(kwargs or {}))


@trap(traces=8, hits=0, waits="torch-mode")
def modes_of_the_program_entered_inside(compiled):
    for kind in (Told, ToldBelow):
        log: list[str] = []

        def inner(x, kind=kind, log=log):
            y = x + 1
            with kind(log):
                z = torch.cos(y)
            return z * 2

        f = compiled(inner)
        for step in range(4):
            yield f(ones(step)), list(log)


@trap(traces=4, hits=4)
def an_operator_of_tensors_replaced(compiled):
    f = compiled(lambda x: x * 2.0 + 1)
    multiply = torch.Tensor.__mul__
    for step in range(6):
        if step == 3:
            torch.Tensor.__mul__ = lambda a, b: a - b
        try:
            yield f(ones(step))
        finally:
            torch.Tensor.__mul__ = multiply


@trap(traces=8, hits=1, waits="torch-mode")
def a_device_for_what_is_made_inside(compiled):
    def inner(x):
        with torch.device("meta"):
            made = torch.zeros(2)
        return x * 2, made.device, torch.zeros(1).device

    f = compiled(inner)
    for dtype in (torch.float32, torch.float64, torch.float64, torch.float32, torch.int32):
        yield f(ones().to(dtype))


@trap(traces=4, hits=3)
def the_callers_exception(compiled):
    f = compiled(lambda x: (x * 2, str(sys.exc_info()[1]), sys.exc_info()[0] is None))
    for step in range(6):
        yield f(ones(step))
        try:
            raise OSError(step)
        except OSError:
            yield f(ones(step))


@trap(traces=8, hits=3)
def numbers_hung_onto_tensors(compiled):
    def inner(x, k):
        y = x * 2
        y.meta = ("m", k, {"k": [k]})
        x.other = y
        return y

    f = compiled(inner)
    for k in (3, 4, 5, 3, 6):
        x = ones(k)
        y = f(x, k)
        yield [type(part) for part in y.meta], type(y.meta[2]["k"][0]), type(x.other.meta[1]), y


@trap(traces=2, hits=0, waits="finalizer")
def numbers_that_a_finalizer_sees(compiled):
    log = []

    class Held:
        def __init__(self, n):
            self.n = n

        def __del__(self):
            log.append((type(self.n).__name__, self.n))

    def inner(x, k):
        held = Held(k)
        y = x * held.n
        del held
        log.append("between")
        last = Held(-k)
        return y + last.n

    f = compiled(inner)
    for k in (0, 3, 4, 0, 5):
        yield f(ones(), k), list(log)


@trap(traces=1, hits=3)
def attributes_asked_for_in_a_class_that_counts(compiled):
    log = []

    class Counting:
        v = 2

        def __getattribute__(self, name):
            log.append(name)
            return object.__getattribute__(self, name)

        def m(self, x):
            return x * self.v

    a = Counting()
    f = compiled(lambda x: (a.m(x), [a], {"k": a}))
    for step in range(4):
        yield f(ones(step))[0], list(log)


@trap(traces=6, hits=8)
def a_partial_compiled(compiled):
    def scaled(a, b, *more, k=1):
        return a * b + k + sum(more)

    partial = functools.partial(scaled, ones(3), k=2)
    f = compiled(partial)
    for step in range(5):
        yield f(ones(step)), f(ones(step), 1.5, k=step)
    partial.keywords["k"] = 50
    yield f(ones()), f.args, f.keywords


@TABLE.parametrize()
def test_later_calls_find_what_eager_finds(trap: Trap) -> None:
    hold(trap)


def _late(x):
    return x + late  # noqa: F821


def _unset(x):
    del x
    return x  # noqa: F821


def _spread(x):
    return [*x.ndim]


def _no_class(x):
    return super().x


def _free(x):
    def inner():
        return value

    if x is None:
        value = x
    return inner()


@pytest.mark.parametrize("function", [_late, _unset, _spread, _no_class, _free])
def test_an_error_keeps_its_type_text_and_context(function: Any) -> None:
    """The reader of a traceback sees what else was being handled: nothing of ours hides it or stands in it."""

    def raised(call: Any) -> tuple[Any, ...]:
        try:
            try:
                raise OSError("before")
            except OSError:
                call(ones())
        except Exception as error:
            return type(error), str(error), error.__suppress_context__, repr(error.__context__), error.__cause__
        raise AssertionError("no error")

    compiled = framefuse.compile(function)
    for _ in range(3):
        assert raised(compiled) == raised(function)


class _Held:
    pass


@pytest.mark.skipif(sys.version_info >= (3, 12), reason="a traceback of the first call lives until it is collected")
def test_what_a_caught_exception_names_dies_without_the_collector() -> None:
    def inner(x, held):
        try:
            raise ValueError(held)
        except ValueError:
            return x + 1

    _lives_not(framefuse.compile(inner))


def test_a_recompilation_leaves_no_argument_to_the_collector() -> None:
    _lives_not(framefuse.compile(lambda x, held: x.sin() * 2))


def _lives_not(compiled: Any) -> None:
    gc.collect()
    gc.disable()
    try:
        for grad in (False, False, True, True):
            x, held = ones().requires_grad_(grad), _Held()
            y = compiled(x, held)
            dead = weakref.ref(x), weakref.ref(held)
            del x, held, y
            assert [ref() for ref in dead] == [None, None]
    finally:
        gc.enable()
    assert framefuse.explain(compiled).hits
