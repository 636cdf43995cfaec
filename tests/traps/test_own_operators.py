"""Operators of torch.library, however they are called and whatever they give, are calls of a whole graph."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from tests.traps.trap import Table, Trap, hold

TABLE = Table()
LIBRARY = torch.library.Library("framefuse_own", "DEF")
OWN = torch.ops.framefuse_own


def define(schema: str, function: Callable[..., Any], key: str = "CompositeExplicitAutograd") -> None:
    LIBRARY.define(schema)
    LIBRARY.impl(schema.partition("(")[0], function, key)


# Named as functions of torch that do something else.
ALIKE = ("size", "dim", "relu", "item", "setitem", "decided", "all_reduce", "dropout", "requires_grad_", "grad", "t_")
for name in ALIKE:
    define(f"{name}(Tensor x) -> Tensor", lambda x: x * 3 + 1)
define("rows(Tensor x) -> int", lambda x: 2 * x.shape[0])
define("average(Tensor x) -> float", lambda x: float(x.mean()))
define("positive(Tensor x) -> bool", lambda x: bool((x > 0.5).all()))
define("doubled(Tensor x) -> (Tensor, int)", lambda x: (x * 2, x.shape[0]))
define("named(Tensor x) -> (Tensor, bool)", lambda x: (x * 2, bool(x.mean() > 0.5)))
define("double_(Tensor(a!) x) -> Tensor(a!)", lambda x: x.mul_(2))


def silently(x: torch.Tensor) -> None:
    array = x.numpy()
    array *= 2


define("silently(Tensor(a!) x) -> ()", silently)


@torch.library.custom_op("framefuse_own::matmul", mutates_args=())
def matmul(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    return x * y


matmul.register_autograd(
    lambda ctx, g: (g * ctx.saved_tensors[1], g * ctx.saved_tensors[0]),
    setup_context=lambda ctx, inputs, output: ctx.save_for_backward(*inputs),
)


@torch.library.custom_op("framefuse_own::noisy", mutates_args=())
def noisy(x: torch.Tensor) -> torch.Tensor:
    return x + torch.rand_like(x)


@torch.library.custom_op("framefuse_own::add_one", mutates_args={"x"})
def add_one(x: torch.Tensor) -> None:
    x.add_(1)


def calls(fast, *, grad=False, count=5):
    """Results of several calls of other sizes, with gradients of the argument."""
    for number in range(count):
        x = torch.rand(2 + number, 6, requires_grad=grad)
        torch.manual_seed(number)
        yield fast(x)
        yield torch.rand(1)
        if grad:
            fast(x).sum().backward()
            yield x.grad


@pytest.mark.parametrize("name", ALIKE)
def test_an_operator_has_nothing_of_the_function_of_torch_with_its_name(name):
    def alike(compiled):
        yield from calls(compiled(lambda x: getattr(OWN, name)(x.sin()).cos()))
        yield from calls(compiled(lambda x: getattr(OWN, name).default(x.sin()).cos()))

    hold(Trap(alike, 2, 8))


@TABLE.trap(traces=1, hits=9)
def its_derivative_is_its_own(compiled):
    yield from calls(compiled(lambda x: matmul(x.sin(), x.cos()).exp()), grad=True)


@TABLE.trap(traces=1, hits=4)
def autocast_casts_nothing_of_it(compiled):
    def function(x):
        with torch.autocast("cpu", torch.bfloat16):
            return matmul(x.sin(), x.cos()) @ x.T

    yield from calls(compiled(function))


@TABLE.trap(traces=1, hits=4)
def one_that_draws_keeps_its_place_among_the_draws(compiled):
    def function(x):
        first = noisy(x.sin())
        second = torch.rand(x.shape)
        return second * 3 + torch.dropout(x, 0.5, True), first

    yield from calls(compiled(function))


@TABLE.trap(traces=1, hits=4)
def one_that_gives_a_whole_number(compiled):
    yield from calls(compiled(lambda x: x.sin() * OWN.rows(x)))


@TABLE.trap(traces=1, hits=4)
def one_that_gives_a_float(compiled):
    yield from calls(compiled(lambda x: x.sin() * OWN.average(x)))


@TABLE.trap(traces=2, hits=4)
def one_that_gives_a_truth_value(compiled):
    yield from calls(compiled(lambda x: x.sin() if OWN.positive(x) else x.cos()))


@TABLE.trap(traces=1, hits=4)
def one_that_gives_a_tensor_and_a_number(compiled):
    def function(x):
        y, rows = OWN.doubled(x.sin())
        return y * rows

    yield from calls(compiled(function))


@TABLE.trap(traces=2, hits=4)
def one_that_gives_a_tensor_and_a_truth_value(compiled):
    def function(x):
        y, positive = OWN.named(x)
        return y.sin() + 1 if positive else y.cos()

    yield from calls(compiled(function))


@TABLE.trap(traces=1, hits=4)
def one_that_writes_in_inference_mode(compiled):
    def function(x):
        y = x.sin()
        add_one(y)
        return OWN.double_(y.cos()) + y

    fast = compiled(function)
    with torch.inference_mode():
        yield from calls(fast)


@TABLE.trap(traces=2, hits=3)
def one_that_writes_and_counts_no_version(compiled):
    def function(x):
        y = x.sin()
        OWN.silently(y)
        return y.cos()

    yield from calls(compiled(function))


@torch.library.custom_op("framefuse_own::both", mutates_args={"x", "y"})
def both(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    x.mul_(2)
    y.add_(1)
    y.add_(1)
    return x + y


@TABLE.trap(traces=1, hits=3)
def versions_that_an_operator_counts(compiled):
    def written(x: torch.Tensor, y: torch.Tensor) -> Any:
        made = y * 2
        views = both(x[:2], x[2:]), both(made[:1], y[1:])
        return made, *views

    f = compiled(written)
    for number in range(4):
        x, y = torch.arange(4.0) + number, torch.arange(3.0) - number
        results = f(x, y)
        yield results, [tensor._version for tensor in (x, y, *results)]


@TABLE.parametrize()
def test_eager_and_compiled_agree(trap):
    hold(trap)
