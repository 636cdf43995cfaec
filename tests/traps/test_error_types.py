"""Programs for which other compilers raise, or give another type of error or object: compiled code does as eager does.

PYTEST_DONT_REWRITE: an assert of a program fails with the text that Python gives it.
"""

from __future__ import annotations

import asyncio
import copy
import itertools
import pickle
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from tests.traps.trap import Table, Trap, hold, outcome
from torch import nn

TABLE = Table()
trap = TABLE.trap


@trap(traces=2, hits=3)
def a_write_in_place_that_torch_does_not_differentiate(compiled):
    def step(x):
        y = x * 1
        y.asinh_()
        return (y * 2).sum()

    f = compiled(step)
    for number in range(4):
        loss = f(torch.rand(3, generator=torch.Generator().manual_seed(number)).requires_grad_())
        yield outcome(loss.backward)


@trap(traces=1, hits=0, waits="gradient training S021")
def a_second_derivative(compiled):
    f = compiled(lambda x: (x**3).sum())
    for _ in range(3):
        x = torch.arange(3.0, requires_grad=True)
        (first,) = torch.autograd.grad(f(x), x, create_graph=True)
        (second,) = torch.autograd.grad(first.sum(), x)
        yield first, second


@trap(traces=4, hits=2)
def an_int_over_63_bits(compiled):
    f = compiled(lambda x, n: (x + 1, n * 3))
    for n in (2**70, 5, 6, 2**70, -(2**64), 2**63, 2**63 - 1, -(2**63)):
        yield f(torch.ones(2), n)


@trap(traces=2, hits=2)
def arithmetic_that_leaves_63_bits(compiled):
    f = compiled(lambda x, n: (x + 1, n * n + 1))
    for n in (3, 4, 2**40, 5, -(2**40), 2**31):
        yield f(torch.ones(2), n)


CALLS_THAT_RAISE = {
    "isinstance with a keyword": lambda x: isinstance(x, torch.Tensor, invalid=True),
    "len with a keyword": lambda x: len([x], of=1),
    "iter with a keyword": lambda x: iter([x], of=1),
    "vars of two": lambda x: vars(x, x),
    "locals of one": lambda x: locals(x),
    "globals of one": lambda x: globals(x),
    "any by a keyword": lambda x: any(iterable=[x]),
    "a sum of four": lambda x: sum([x], 0, 0, 0),
    "map without arguments": lambda x: map(len),
    "map over a number": lambda x: map(str, x.ndim),
    "filter over None": lambda x: filter(lambda part: part, None),
    "zip of a number": lambda x: zip([x], 1),
    "accumulate of a function": lambda x: itertools.accumulate(lambda part: part, [x]),
    "groupby of a number": lambda x: itertools.groupby(x.ndim, lambda part: part),
    "a map over no dimension": lambda x: map(torch.sin, x.sum()),
}


@pytest.mark.parametrize("name", CALLS_THAT_RAISE)
def test_a_call_that_builtins_refuse(name: str) -> None:
    def program(compiled: Any) -> Iterator[Any]:
        @compiled
        def f(x: Any) -> Any:
            y = x * 2
            try:
                CALLS_THAT_RAISE[name](y)
            except TypeError:
                return y + 1
            return y

        for number in range(3):
            yield f(torch.full((2,), float(number)))

    hold(Trap(program, traces=2, hits=1, waits=("raises",)))  # where the call is a step, its error ends the recording


@trap(traces=1, hits=2)
def arguments_of_builtins_by_name(compiled):
    @compiled
    def f(x):
        parts = itertools.accumulate([x, x + 1, x * 2], func=lambda a, b: a * b, initial=x)
        pairs = dict(((key, x * key) for key in (1, 2)), iterable=x)
        return list(parts), pairs

    for number in range(3):
        yield f(torch.full((2,), float(number)))


@trap(traces=1, hits=1)
def a_failing_assert_on_a_tensor(compiled):
    @compiled
    def f(x):
        assert x.sum() > 0, "not positive"
        return x * 2

    for sign in (1, 1, -1, 1, -1):
        yield outcome(f, torch.ones(2) * sign)


@trap(traces=1, hits=2)
def a_shape_error_inside(compiled):
    @compiled
    def f(a, b):
        return a @ b + 1

    for rows in (3, 3, 4, 3, 5):
        yield outcome(f, torch.ones(2, 3), torch.ones(rows, 2))


@trap(traces=1, hits=0, waits="raises")
def a_shape_error_on_the_first_call(compiled):
    f = compiled(lambda a, b: a + b)
    for size in (4, 4, 3, 3, 4, 3, 3):
        yield outcome(f, torch.ones(3), torch.ones(size))


class Marked(torch.Tensor):
    calls: list[str] = []

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        cls.calls.append(getattr(func, "__name__", str(func)))
        return super().__torch_function__(func, types, args, kwargs or {})


@trap(traces=2, hits=2)
def a_subclass_with_a_torch_function(compiled):
    Marked.calls.clear()
    f = compiled(lambda x: (x + 1) * 2)
    for _ in range(2):
        made = f(torch.ones(3))
        yield type(made).__name__, made
        made = f(torch.ones(3).as_subclass(Marked))
        yield type(made).__name__, made.as_subclass(torch.Tensor), list(Marked.calls)


@trap(traces=0, hits=0)
def an_async_function(compiled):
    @compiled
    async def f(x):
        await asyncio.sleep(0)
        return x + 1

    for _ in range(2):
        yield asyncio.iscoroutinefunction(f), asyncio.run(f(torch.ones(2)))


class Doubling(nn.Linear):
    def forward(self, x):
        return super().forward(x) * 2


@trap(traces=1, hits=1)
def the_object_stays_what_it_was(compiled):
    torch.manual_seed(0)
    f = compiled(Doubling(2, 2).requires_grad_(False))
    yield isinstance(f, nn.Linear), type(f).__name__, list(f.state_dict()), f.in_features
    yield f(torch.ones(1, 2)), f(torch.ones(1, 2) * 2)
    for made in (copy.deepcopy(f), pickle.loads(pickle.dumps(f))):
        yield isinstance(made, Doubling), list(made.state_dict()), made(torch.ones(1, 2)), made(torch.ones(1, 2) * 3)
    f.weight = nn.Parameter(torch.zeros(2, 2), requires_grad=False)
    yield f(torch.ones(1, 2)), made(torch.ones(1, 2))


@trap(traces=4, hits=4)
def text_that_is_none(compiled):
    class Told:
        def __init__(self, number):
            self.number = number

        def __format__(self, spec):
            return spec if self.number > 1 else self.number

    @compiled
    def f(x, told):
        try:
            return x * 2, f"{told:>3}", format(told)
        except TypeError as error:
            return x + 1, str(error)

    for number in (0, 0, 2, 1, 3, 0, 2, 0):
        yield f(torch.ones(2) + number, Told(number))


@TABLE.parametrize()
def test_types_are_eagers(trap: Trap) -> None:
    hold(trap)
