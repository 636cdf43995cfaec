"""A plan that keeps parameters from call to call gives what eager gives, whatever happens to the parameters."""

from __future__ import annotations

import gc
import sys
import weakref
from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
from tests.unit.native.plans import Writer

import framefuse
from framefuse import _native
from framefuse.ir.plan import GuardProgram

Backend = Callable[[torch.fx.GraphModule, Sequence[Any]], Callable[..., Any]]


class Net(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first = torch.nn.Linear(4, 4)
        self.scale = torch.nn.Parameter(torch.randn(4))
        self.register_buffer("shift", torch.randn(4))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.tanh(self.first(x)) * self.scale + self.shift


def as_it_is(graph: torch.fx.GraphModule, inputs: Sequence[Any]) -> Callable[..., Any]:
    return graph


@pytest.fixture(autouse=True)
def without_gradient() -> Any:
    with torch.no_grad():
        yield


def compiled(net: torch.nn.Module, backend: Backend | None) -> Any:
    fast = framefuse.compile(net) if backend is None else framefuse.compile(net, backend=backend)
    fast(torch.randn(3, 4))
    gc.collect()  # the compiler's own cycles
    return fast


def state_of(fast: Any) -> Any:
    return fast.__framefuse__


def hit(fast: Any, *args: Any) -> Any:
    """The answer of one call that compiled code has to give."""
    before = state_of(fast).dispatch.hits
    result = fast(*args)
    assert state_of(fast).dispatch.hits == before + 1 and state_of(fast).dispatch.declines == 0
    return result


BACKENDS = pytest.mark.parametrize("backend", [None, as_it_is], ids=["native", "call"])


@BACKENDS
def test_a_replaced_parameter_is_used_at_once_and_the_old_one_goes(backend: Backend | None) -> None:
    net = Net().eval()
    fast, x = compiled(net, backend), torch.randn(3, 4)
    for turn in range(4):
        torch.testing.assert_close(hit(fast, x), net(x))
        old = weakref.ref(net.scale if turn % 2 else net.first.weight)
        if turn % 2:
            net.scale = torch.nn.Parameter(torch.randn(4))
        else:
            net.first.weight = torch.nn.Parameter(torch.randn(4, 4))
        torch.testing.assert_close(hit(fast, x), net(x))
        assert old() is None
    assert len(state_of(fast).products) == 1


@BACKENDS
def test_parameters_that_change_where_they_are(backend: Backend | None) -> None:
    net = Net().eval()
    fast, x = compiled(net, backend), torch.randn(3, 4)
    hit(fast, x)
    net.scale.data = torch.randn(4)  # other memory
    torch.testing.assert_close(hit(fast, x), net(x))
    net.shift.set_(torch.randn(8)[4:])
    torch.testing.assert_close(hit(fast, x), net(x))
    net.first.bias.mul_(3)
    torch.testing.assert_close(hit(fast, x), net(x))
    misses = state_of(fast).dispatch.misses
    net.scale.data = torch.randn(4, dtype=torch.float64)
    assert fast(x).dtype is torch.float64 and state_of(fast).dispatch.misses == misses + 1
    torch.testing.assert_close(fast(x), net(x))
    net.shift = None
    with pytest.raises(TypeError):
        fast(x)


def test_parameters_that_are_replaced_while_a_call_uses_them() -> None:
    net, moves = Net().eval(), [False]

    def backend(graph: torch.fx.GraphModule, inputs: Sequence[Any]) -> Callable[..., Any]:
        def call(*args: Any) -> Any:
            if moves[0]:
                moves[0] = False
                net.scale = torch.nn.Parameter(torch.zeros(4))
                net.first.weight = torch.nn.Parameter(torch.zeros(4, 4))
                gc.collect()
                inner.append(fast(args[0] if args[0].shape == (3, 4) else x))  # the same plan, with the new ones
            return graph(*args)

        return call

    fast, x, inner = compiled(net, backend), torch.randn(3, 4), []
    for _ in range(3):
        net.scale = torch.nn.Parameter(torch.randn(4))
        net.first.weight = torch.nn.Parameter(torch.randn(4, 4))
        old = [weakref.ref(net.scale), weakref.ref(net.first.weight)]
        torch.testing.assert_close(hit(fast, x), net(x))
        expected, moves[0] = net(x), True
        before = state_of(fast).dispatch.hits
        found = fast(x)
        assert state_of(fast).dispatch.hits == before + 2
        torch.testing.assert_close(found, expected)
        torch.testing.assert_close(inner.pop(), net.shift.expand(3, 4))
        torch.testing.assert_close(hit(fast, x), net(x))
        assert [ref() for ref in old] == [None, None]


def test_a_bound_method_as_the_whole_step() -> None:
    """It borrows the place in front of the arguments, and replaces what it was given."""
    net = Net().eval()

    def backend(graph: torch.fx.GraphModule, inputs: Sequence[Any]) -> Callable[..., Any]:
        class Step:
            def __call__(self, *args: Any) -> Any:
                return graph(*args)

            def bound(self, *args: Any) -> Any:
                net.first._parameters.update(weight=torch.nn.Parameter(torch.ones(4, 4)))
                return self(*args)

        return Step().bound

    fast, x = compiled(net, backend), torch.randn(3, 4)
    for _ in range(3):
        net.first.weight = torch.nn.Parameter(torch.randn(4, 4))
        expected = net(x)
        torch.testing.assert_close(hit(fast, x), expected)
        torch.testing.assert_close(net.first.weight, torch.ones(4, 4))


@BACKENDS
def test_a_trace_that_is_not_called_keeps_no_replaced_parameter(backend: Backend | None) -> None:
    net = Net().eval()
    fast = compiled(net, backend)
    x, y = torch.randn(3, 4), torch.randn(2, 3, 4)
    fast(y)
    gc.collect()
    hit(fast, x)
    hit(fast, y)
    assert len(state_of(fast).dispatch.entries) == 2
    old = weakref.ref(net.scale)
    net.scale = torch.nn.Parameter(torch.randn(4))
    torch.testing.assert_close(hit(fast, y), net(y))
    assert old() is None
    torch.testing.assert_close(hit(fast, x), net(x))


def test_a_parameter_whose_end_calls_the_function_again() -> None:
    net = Net().eval()
    fast, x, seen = compiled(net, None), torch.randn(3, 4), []
    for _ in range(3):
        hit(fast, x)
        watch = weakref.ref(net.scale, lambda ref: seen.append(fast(torch.ones(3, 4))))
        net.scale = torch.nn.Parameter(torch.randn(4))
        torch.testing.assert_close(fast(x), net(x))
        assert watch() is None
        torch.testing.assert_close(seen.pop(), net(torch.ones(3, 4)))


@BACKENDS
def test_calls_count_no_reference_twice(backend: Backend | None) -> None:
    net = Net().eval()
    fast, x = compiled(net, backend), torch.randn(3, 4)
    held = [net.scale, net.shift, net.first.weight, x]
    first = [sys.getrefcount(each) for each in held]
    hit(fast, x)
    before = [sys.getrefcount(each) for each in held]
    assert before == [first[0] + 1, first[1] + 1, first[2] + 1, first[3]]  # kept by the plan, all but the argument
    for _ in range(50):
        hit(fast, x)
    assert [sys.getrefcount(each) for each in held] == before
    fast.__framefuse__.reset()
    gc.collect()
    last = [sys.getrefcount(each) for each in held]
    assert all(left <= right for left, right in zip(last, first, strict=True))


def test_a_plan_belongs_to_one_entry() -> None:
    guards = _native.GuardSet(GuardProgram(None, (("arg", 0, 0),), 1, 0, ("",)))
    plan = _native.PlanProgram(Writer().plan(("const", 1)))
    _native.Compiled(guards, plan)
    with pytest.raises(ValueError, match="has an entry already"):
        _native.Compiled(guards, plan)
