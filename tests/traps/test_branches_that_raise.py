"""Branches on tensors of which one way raises or warns: each run checks that it goes the other way, else it is eager's.

Assertions here are the interpreter's own: PYTEST_DONT_REWRITE.
"""

from __future__ import annotations

import functools
import math
import warnings

import pytest
import torch
from tests.traps.trap import Table, Trap, hold
from torch import distributions as d

import framefuse
from framefuse.api import compiled_function

TABLE = Table()
trap = TABLE.trap


def attempt(call, *args):
    try:
        return call(*args)
    except (ValueError, AssertionError, RuntimeError) as error:
        return type(error).__name__, str(error)


@trap(traces=1, hits=4)
def an_assertion(compiled):
    def positive(x):
        y = x.exp() + 1
        assert (y > 0).all(), f"of shape {tuple(x.shape)}"
        return y * 2

    f = compiled(positive)
    for seed in range(4):
        torch.manual_seed(seed)
        yield f(torch.randn(3, 4))
    yield attempt(f, torch.full((3, 4), torch.nan))
    yield f(torch.ones(3, 4))


@trap(traces=1, hits=3)
def an_error_leaves_what_eager_leaves(compiled):
    seen = []

    def step(x, total, limit):
        total.add_(x.sum())
        seen.append(len(seen))
        noise = torch.rand(2)
        if (total > limit).any():
            raise ValueError(f"more than {limit}")
        total.mul_(2)
        seen.append(-1)
        return noise * total

    f = compiled(step)
    total, limit = torch.zeros(2), torch.tensor(10.0)
    torch.manual_seed(0)
    for x in (1.0, 2.0, 0.5, 9.0, -30.0, 1.0):
        yield attempt(f, torch.full((2,), x), total, limit), total.clone(), list(seen), torch.rand(1)


@trap(traces=1, hits=3)
def a_module_in_training_that_looks_at_its_loss(compiled):
    torch.manual_seed(0)
    net = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.BatchNorm1d(8), torch.nn.ReLU(), torch.nn.Linear(8, 1))

    def loss(x):
        value = net(x).square().mean()
        if not torch.isfinite(value):
            raise RuntimeError("the loss is no number")
        return value

    f = compiled(loss)
    for scale in (1.0, 2.0, 3.0, torch.inf, 1.0):
        net.zero_grad()
        value = attempt(f, torch.randn(6, 4, generator=torch.Generator().manual_seed(3)) * scale)
        if isinstance(value, torch.Tensor):
            value.backward()
        yield value, [p.grad for p in net.parameters()], list(net.buffers())


@trap(traces=1, hits=5)
def validated_distributions(compiled):
    def log_prob(mean, scale, value):
        return d.Normal(mean, scale).log_prob(value), d.Exponential(scale).log_prob(value.abs())

    f = compiled(log_prob)
    for seed in range(5):
        torch.manual_seed(seed)
        yield f(torch.randn(5), torch.rand(5) + 0.1, torch.randn(5))
    yield attempt(f, torch.randn(5), -torch.rand(5), torch.randn(5))
    yield attempt(f, torch.full((5,), torch.nan), torch.rand(5), torch.randn(5))
    yield f(torch.zeros(5), torch.ones(5), torch.ones(5))


@trap(traces=3, hits=8)
def an_error_that_the_program_expects(compiled):
    def halves(x):
        try:
            if x.sum() > 10:
                raise OverflowError
            y = x * 2
        except OverflowError:
            y = x / 2
        return y + 1

    f = compiled(halves)
    for value in (1.0, 2.0, 9.0, 8.0, 7.0, 9.0, 1.0, 9.0, 1.0, 9.0, 1.0, 9.0, 9.0):
        yield f(torch.full((3,), value))


@trap(traces=1, hits=3)
def a_tensor_as_a_condition(compiled):
    def flagged(x, stop, z):
        if stop:
            raise ValueError("stopped")
        if z.sum():  # of complex numbers
            raise ValueError("not zero")
        return x + 1

    f = compiled(flagged)
    zero = torch.zeros(2, dtype=torch.complex64)
    for stop in (0.0, 0.0, 0.0, 2.0, 0.0):
        yield attempt(f, torch.ones(2), torch.tensor(stop), zero)
    yield attempt(f, torch.ones(2), torch.tensor(0.0), zero + 1j)
    yield attempt(f, torch.ones(2), torch.zeros(2), zero)


@trap(traces=1, hits=3)
def a_condition_that_no_kernel_checks(compiled):
    memory = torch.zeros(3)

    def step(x, weights, z):
        memory.add_(x)
        weights.mul_(0.5).index_add_(0, torch.tensor([0, 0]), x[:2])
        drawn = torch.rand(3)
        if z.sum():  # of complex numbers
            raise ValueError("not zero")
        memory.mul_(2)
        return memory + drawn

    f = compiled(step)
    weights, zero = torch.ones(3), torch.zeros(2, dtype=torch.complex64)
    for z in (zero, zero, zero, zero + 1j, zero):
        yield attempt(f, torch.ones(3), weights, z), memory.clone(), weights.clone(), torch.rand(2)


@trap(traces=1, hits=3)
def functions_of_torch_that_assert(compiled):
    def program(x, limit):
        torch._assert((x < limit).all(), "over the limit")
        if (x > 3).any():
            text = "of many" if x.ndim > 1 else "of one"
            raise ValueError(text)
        return x - limit

    f = compiled(program)
    for value in (1.0, 2.0, -1.0, 4.0, 7.0, 0.0):
        yield attempt(f, torch.full((3,), value), torch.tensor(6.0))


@trap(traces=2, hits=3, waits="transform")
def inside_a_transform(compiled):
    def summed(x):
        y = x.square().sum()
        if (x > 5).any():
            raise ValueError("large")
        return y

    f = compiled(lambda x: torch.func.grad(summed)(x))
    for value in (1.0, 2.0, 3.0, 7.0, 1.0):
        yield attempt(f, torch.full((3,), value))


@trap(traces=1, hits=4)
def a_check_inside_a_backward(compiled):
    class Checked(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            return x * 2

        @staticmethod
        def backward(ctx, gradient):
            if torch.isnan(gradient).any():
                raise RuntimeError("no number")
            return gradient * 2

    f = compiled(lambda x, s: (Checked.apply(x) * s).sum())
    for scale in (1.0, 2.0, 3.0, torch.nan, 4.0):
        x = torch.ones(3, requires_grad=True)
        value = f(x, torch.tensor(scale))
        yield attempt(value.backward), x.grad


@trap(traces=1, hits=3)
def a_generator_that_checks(compiled):
    def checked(rows):
        for row in rows:
            assert row.max() < 100
            yield row * 2

    f = compiled(lambda x: torch.stack(list(checked(x.unbind(0)))))
    for value in (1.0, 2.0, 3.0, 200.0, 4.0):
        yield attempt(f, torch.full((3, 2), value))


@trap(traces=2, hits=4)
def numbers_that_are_read(compiled):
    def scaled(x, limit):
        low, total = x.min().item(), x.sum().item()
        if math.isnan(total):
            raise ValueError("no number")
        if total > limit or not math.isfinite(low):
            raise ValueError(limit)
        count = int((x > 0).sum())
        if not count:
            raise RuntimeError(f"none of {len(x)}")
        assert -50 <= low <= total, (low, total)
        return x * total / count + low

    f = compiled(scaled)
    for seed in range(5):
        yield f(torch.rand(4, generator=torch.Generator().manual_seed(seed)), 10.0 + seed)
    for x in ([1.0, math.nan], [math.inf, 1.0], [9.0, 5.0], [-1.0, -2.0], [-60.0, 70.0]):
        yield attempt(f, torch.tensor(x), 10.0)
    yield f(torch.ones(4), 5.0)


@trap(traces=1, hits=3)
def a_number_that_stops_training(compiled):
    torch.manual_seed(0)
    net = torch.nn.Linear(4, 2)
    seen = []

    def step(x, total):
        loss = net(x).square().mean()
        total.add_(loss.detach())
        value = loss.item()
        if not math.isfinite(value):
            raise RuntimeError("stopped")
        seen.append(len(seen))
        return loss / 2, value

    f, total = compiled(step), torch.zeros(())
    for scale in (1.0, 2.0, 3.0, math.inf, 1.0):
        net.zero_grad()
        given = attempt(f, torch.randn(3, 4, generator=torch.Generator().manual_seed(3)) * scale, total)
        if isinstance(given[0], torch.Tensor):
            given[0].backward()
        yield given, total.clone(), list(seen), [p.grad for p in net.parameters()]


@trap(traces=3, hits=8)
def an_error_by_a_number_that_the_program_expects(compiled):
    def halves(x):
        try:
            if x.sum().item() > 10:
                raise OverflowError
            y = x * 2
        except OverflowError:
            y = x / 2
        return y + 1

    f = compiled(halves)
    for value in (1.0, 2.0, 9.0, 8.0, 7.0, 9.0, 1.0, 9.0, 1.0, 9.0, 1.0, 9.0, 9.0):
        yield f(torch.full((3,), value))


NO_NUMBER = torch.full((4,), torch.nan)


def heard(call, *args):
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        value = call(*args)
    return value, [(str(warning.message), warning.lineno) for warning in told]


@trap(traces=2, hits=3)
def a_branch_that_warns(compiled):
    def cleaned(x):
        if torch.isnan(x).any():
            warnings.warn(f"no numbers in {len(x)}", stacklevel=1)
            x = torch.nan_to_num(x)
        y = x * 2
        if y.abs().max().item() > 99:
            warnings.warn("large", stacklevel=1)
        else:
            y = y + 1
        if bool((y == 7).all()):
            warnings.warn("seven", stacklevel=1)
            return None
        return y.exp()

    f = compiled(cleaned)
    torch.manual_seed(0)
    for x in (torch.randn(4), torch.randn(4), torch.randn(6), NO_NUMBER, torch.randn(3), torch.full((2,), 3.0)):
        yield heard(f, x)
    yield heard(f, torch.full((3,), 200.0))
    yield heard(f, torch.randn(4))


@trap(traces=2, hits=6)
def padding_without_a_mask(compiled):
    told = []

    @functools.cache
    def warn_once(text):
        told.append(text)

    table = torch.nn.Embedding(9, 4)

    def embedded(ids, pad):
        if pad in ids[:, [-1, 0]]:
            text = "padded"
            if pad == 8:
                text += " at the end"
            warn_once(text)
        if 3 not in ids:
            warn_once("no three")
        if (ids < 0).any().item():
            raise ValueError("negative")
        return table(ids).sum(1)

    f = compiled(embedded)
    for row in ([1, 3, 5], [2, 3, 3, 4], [3, 8, 7], [1, 0, 3], [3, 4, 5, 6], [4, 4], [3, 4, 5]):
        yield f(torch.tensor([row, row]), 0), list(told)
    yield attempt(f, torch.tensor([[3, -1, 3]]), 0), list(told)
    yield f(torch.tensor([[3, 3, 3]]), 0), list(told)


@trap(traces=4, hits=8)
def a_warning_that_the_program_often_gives(compiled):
    told = []

    def warn(text):
        told.append(text)

    def limited(x):
        if x.max() > 1:
            warn("over one")
            x = x.clamp(max=1)
        return x * 2

    f = compiled(limited)
    for value in (0.5, 0.25, 2.0, 3.0, 0.5, 4.0, 5.0, 6.0, 0.5, 7.0, 0.5, 8.0, 9.0, 0.5, 3.0):
        yield f(torch.full((3,), value)), list(told)


@TABLE.parametrize()
def test_a_branch_that_raises(trap: Trap) -> None:
    hold(trap)


CALLS: list[float] = []


@torch.library.custom_op("framefuse_raising::noted", mutates_args=())
def noted(x: torch.Tensor) -> torch.Tensor:
    CALLS.append(float(x.sum()))
    return x + 1


@noted.register_fake
def _(x):
    return torch.empty_like(x)


def test_an_operator_of_the_users_is_called_once_where_the_branch_raises() -> None:
    def program(x):
        y = noted(x)
        if (y > 5).any():
            raise ValueError("large")
        return y * 2

    f = framefuse.compile(program)
    for value in (1.0, 1.0, 1.0):
        f(torch.full((2,), value))
    CALLS.clear()
    with pytest.raises(ValueError, match="large"):
        f(torch.full((2,), 8.0))
    assert CALLS == [16.0]


def test_a_whole_graph_may_assert() -> None:
    def program(x):
        assert torch.isfinite(x).all(), "not finite"
        return x * 2

    f = framefuse.compile(program, fullgraph=True)
    for seed in range(3):
        torch.manual_seed(seed)
        x = torch.randn(4)
        torch.testing.assert_close(f(x), x * 2)
    for _ in range(5):
        with pytest.raises(AssertionError, match="not finite"):
            f(torch.full((4,), torch.inf))
    dispatch = compiled_function(f).dispatch
    assert (dispatch.hits, dispatch.declines) == (2, 5)
