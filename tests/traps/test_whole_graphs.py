"""Programs that must be one graph, with ``fullgraph=True``: reductions of Python, older constructors, seeds."""

from __future__ import annotations

import functools
import operator
import warnings
from typing import Any

import pytest
import torch
import torch.utils._pytree as pytree
from tests.traps.trap import Table, Trap, hold

import framefuse

TABLE = Table()
GENERATOR = torch.Generator()


def trap(traces: int, hits: int, **options: Any):
    return TABLE.trap(traces, hits, fullgraph=True, **options)


def pairs(count: int = 4, rows: int = 4):
    return [(torch.randn(rows, 5), torch.randn(rows, 5)) for _ in range(count)]


# Trees of torch -----------------------------------------------------------------------------------


@trap(traces=1, hits=3)
def functions_called_by_trees(compiled):
    @compiled
    def f(a, b):
        tree = {"a": a, "b": [b, 3], "c": (None, a + b)}
        doubled = pytree.tree_map(lambda part: part * 2 if torch.is_tensor(part) else part, tree)
        summed = pytree.tree_map(lambda left, right: left + right, (a, [b]), (b, [a]))
        flat = pytree.tree_any(lambda part: part is None, tree, is_leaf=lambda part: part is None)
        only = pytree.tree_map_only(torch.Tensor, torch.sin, tree)
        pytree.tree_map_only_(torch.Tensor, lambda part: part.mul_(3), summed)
        return doubled, summed, only, flat, pytree.tree_all_only(int, lambda part: part > 2, tree)

    for a, b in pairs():
        yield f(a, b)


# Numbers that are checked -------------------------------------------------------------------------


@trap(traces=1, hits=5)
def counts_that_torch_checks(compiled):
    @compiled
    def f(a):
        count = (a > 0).sum().item()
        torch._check(count >= 0)
        torch._check(count <= 3, lambda: f"{count} are too many")
        return a[:count].sum(), torch.zeros(count)

    for values in ([1, -1, 2], [1, 2, -3], [-1, -2], [1, 2, 3, 4], [3, 2, 1, -1], [1, 1, 1, 1, 1], [2, -5, 4], [1]):
        try:
            yield f(torch.tensor(values, dtype=torch.float32))
        except RuntimeError as error:
            yield str(error)


# Reductions of Python -----------------------------------------------------------------------------


@trap(traces=1, hits=3)
def reduce_with_an_operator(compiled):
    f = compiled(lambda a, b: functools.reduce(operator.add, [a, b, a * b]))
    for a, b in pairs():
        yield f(a, b)


@trap(traces=1, hits=3)
def reduce_with_a_start_and_functions_of_torch(compiled):
    f = compiled(
        lambda a, b: (functools.reduce(torch.maximum, (a, b), a + 1), functools.reduce(torch.Tensor.mul, [a, b]))
    )
    for a, b in pairs():
        yield f(a, b)


@trap(traces=1, hits=3)
def reduce_of_sizes(compiled):
    f = compiled(
        lambda a: a.reshape(functools.reduce(operator.mul, a.shape)) * functools.reduce(operator.add, a.shape, 1)
    )
    for rows in (4, 6, 3, 9):
        yield f(torch.randn(rows, 5))


@trap(traces=1, hits=3)
def reduce_in_place(compiled):
    f = compiled(lambda a, b: functools.reduce(operator.iadd, [a.clone(), b, 2]))
    for a, b in pairs():
        yield f(a, b)


@trap(traces=1, hits=2)
def operators_in_place_write_their_tensor(compiled):
    def program(a, b):
        operator.imul(a, b)
        return operator.isub(a, 1), operator.iadd(3, 4)

    f = compiled(program)
    for a, b in pairs(3):
        yield f(a, b)
        yield a


# Constructors -----------------------------------------------------------------------------


@trap(traces=1, hits=3)
def new_with_sizes(compiled):
    f = compiled(lambda a: (a.new(a.size(0), 2).fill_(1) + 1, a.new(a.size()).zero_() + a, a.new().shape))
    for rows in (4, 6, 3, 9):
        yield f(torch.randn(rows, 5))


@trap(traces=1, hits=2)
def new_with_elements(compiled):
    f = compiled(lambda a: (a.new([1.0, 2.0]) + a[0, 0], a.new((3, 4)), a.new_tensor([a.shape[1], 2])))
    for a, _ in pairs(3):
        yield f(a)


@trap(traces=1, hits=2)
def older_constructors_of_numbers(compiled):
    def program(a):
        rows = a.index_select(0, torch.LongTensor([0, 2]))
        return rows, torch.FloatTensor([[1, 2.5], [True, 3]]), torch.BoolTensor([1, 0]), torch.Tensor((2, 3)) + a[0, 0]

    f = compiled(program)
    for a, _ in pairs(3):
        yield f(a)


@trap(traces=1, hits=3)
def older_constructors_of_sizes(compiled):
    def program(a):
        filled = torch.DoubleTensor(a.size(0), 2).fill_(2), torch.Tensor(a.size()).fill_(1) + a, torch.ShortTensor()
        return *filled, torch.IntTensor([a.size(0), 7])

    f = compiled(program)
    for rows in (4, 6, 3, 9):
        yield f(torch.randn(rows, 5))


# Generators -----------------------------------------------------------------------------


@trap(traces=1, hits=3)
def a_seed_inside(compiled):
    def program(a, seed):
        before = torch.rand(3)
        torch.manual_seed(seed)
        return a + torch.rand(4, 5), torch.randn(2), before

    f = compiled(program)
    for seed, (a, _) in zip((1, 7, -2, 7), pairs(), strict=True):
        yield f(a, seed)
        yield torch.rand(2), torch.initial_seed()


@trap(traces=1, hits=2)
def a_seed_after_torch_compile_wrapped_the_function(compiled):
    plain = torch.manual_seed
    torch.manual_seed = torch._disable_dynamo(torch.random.manual_seed)
    try:
        f = compiled(lambda a: (torch.manual_seed(4), a + torch.rand(5))[1])
        for a, _ in pairs(3):
            yield f(a)
    finally:
        torch.manual_seed = plain


@trap(traces=1, hits=2)
def a_state_is_put_back(compiled):
    def program(a):
        state = torch.get_rng_state()
        first = torch.rand(5)
        torch.set_rng_state(state)
        return a + first, first - torch.rand(5), state

    f = compiled(program)
    for a, _ in pairs(3):
        yield f(a)
        yield torch.rand(2)


@trap(traces=1, hits=2)
def a_state_is_kept_over_calls(compiled):
    held = [torch.get_rng_state()]

    def program(a):
        torch.set_rng_state(held[0])
        return a + torch.rand(5)

    f = compiled(program)
    for a, _ in pairs(3):
        yield f(a)
        held[0] = torch.Generator().manual_seed(len(a)).get_state()


@TABLE.trap(traces=5, hits=1, waits="random-state")  # where an accelerator is in use, its states are read as well
def a_fork_of_the_generator(compiled):
    def program(a):
        with torch.random.fork_rng():
            torch.manual_seed(1)
            inside = torch.rand(5)
        return a + inside, torch.rand(3)

    f = compiled(program)
    for a, _ in pairs(3):
        yield f(a)
        yield torch.rand(2)


@trap(traces=1, hits=2)
def a_generator_of_the_program(compiled):
    def program(a):
        GENERATOR.manual_seed(a.shape[0])
        first, state = torch.rand(5, generator=GENERATOR), GENERATOR.get_state()
        second = torch.rand(5, generator=GENERATOR)
        GENERATOR.set_state(state)
        return a + first, second - torch.rand(5, generator=GENERATOR)

    f = compiled(program)
    for a, _ in pairs(3):
        yield f(a)
        yield torch.rand(2, generator=GENERATOR)


@trap(traces=1, hits=2)
def a_failing_run_puts_the_seed_back(compiled):
    def program(a, index):
        torch.manual_seed(3)
        drawn = torch.rand(5)
        return a[index] + drawn

    f = compiled(program)
    for index in ([0, 1], [1, 2], [3, 3]):
        yield f(torch.randn(4, 5), torch.tensor(index))
        yield torch.rand(2)
    try:
        f(torch.randn(4, 5), torch.tensor([0, 9]))
    except IndexError as error:
        yield str(error)
    yield torch.rand(2)


# Sizes changed in place -------------------------------------------------------------------------


@trap(traces=1, hits=2)
def sizes_are_changed_in_place(compiled):
    def program(a):
        b, c, d = a * 1, a.clone(), a + 1
        b.unsqueeze_(0)
        c.t_()
        row = d[0]
        d.transpose_(0, 1).mul_(2)
        torch.ops.aten.unsqueeze_(c, -1)
        return b + 1, b, c, d, row, c.squeeze_() * 2, d.shape

    f = compiled(program)
    for a, _ in pairs(3):
        yield f(a)


@trap(traces=1, hits=2)
def sizes_are_changed_in_place_and_a_gradient(compiled):
    def program(a):
        b = a * 2
        b.unsqueeze_(1).squeeze_(1).t_()
        return b * b, b

    f = compiled(program)
    for _ in range(3):
        a = torch.randn(4, 5, requires_grad=True)
        first, second = f(a)
        (first.sum() + (second * 3).sum()).backward()
        yield first, second, a.grad


@TABLE.trap(traces=3, hits=2)
def sizes_of_an_argument_are_changed_in_place(compiled):
    def program(a):
        a.unsqueeze_(0)
        return a + 1

    f = compiled(program)
    for a, _ in pairs(4):
        yield f(a)
        yield a


# Extremes ---------------------------------------------------------------------------------------


@trap(traces=1, hits=2)
def extremes_of_tensors_and_numbers(compiled):
    def program(a):
        low = min(max(a, 0), 1)
        return max(low, a - 5, 0.25), min(3, a), low

    f = compiled(program)
    for number in (0.5, 0.5, -2.0, 0.75, 7.0, 0.5):
        yield f(torch.tensor(number))


@TABLE.trap(traces=6, hits=3)
def extremes_without_one_graph(compiled):
    f = compiled(lambda a: min(max(a.sum(), 0), 1) + a)
    for number in (0.1, 0.2, -2.0, 0.1, 7.0, -1.0):
        yield f(torch.full((3,), number))


# Traced inside ----------------------------------------------------------------------------------


@TABLE.trap(traces=9, hits=0)
def torch_traces_a_module_inside(compiled):
    def program(a):
        layer = torch.nn.Linear(5, 2)
        torch.nn.init.ones_(layer.weight)
        torch.nn.init.ones_(layer.bias)
        return torch.jit.trace(layer, (a,))(a * 2)

    f = compiled(program)
    for a, _ in pairs(3):
        yield f(a).detach()


# Numbers of tensors -----------------------------------------------------------------------------


@trap(traces=1, hits=3)
def an_element_only_computes(compiled):
    def program(a):
        scale, count = a.abs().max().item(), (a > 0).sum().item()
        return a / scale, a * count + float(a[0, 0]), int(a.sum() * 10) * 2 - count, [scale, -scale]

    f = compiled(program)
    for a, _ in pairs():
        yield f(a)


@trap(traces=1, hits=3)
def an_element_is_a_size(compiled):
    def program(a):
        n = (a[:, 0] > 0).sum().item()
        return a[:n] * 2, a.new_zeros(n, 2) + 1, torch.arange(n) * n

    f = compiled(program)
    for a, _ in pairs():
        yield f(a)


@trap(traces=1, hits=3)
def elements_of_all_dtypes(compiled):
    def program(a, n):
        halves, small = a.half().max(), n.to(torch.int8)
        return a * halves.item(), n.item() * 3, small.item() - 1, a.double().sum().item(), n.float().item() / 4

    f = compiled(program)
    for n in (3, -100, 0, 127):
        yield f(torch.randn(4, 5), torch.tensor(n))


@trap(traces=1, hits=3)
def what_no_float_equals(compiled):
    f = compiled(lambda a: (a * a.sum().item(), a.max().item()))
    for a in (1.0, float("nan"), float("inf"), -0.0):
        yield f(torch.tensor([a, a]))


@trap(traces=1, hits=3)
def elements_kept_in_objects(compiled):
    totals, history = {"loss": 0.0, "steps": 0}, []

    def program(a):
        loss = (a * a).max()
        history.append(loss.item())
        return loss, {"loss": loss.item(), "rows": a.shape[0]}

    f = compiled(program)
    for a, _ in pairs():
        yield f(a)
        yield list(history), totals


@trap(traces=1, hits=2)
def an_element_and_a_gradient(compiled):
    def program(a):
        loss = (a * a).sum()
        return loss * a.detach().max().item() + loss / loss.item()

    f = compiled(program)
    for _ in range(3):
        a = torch.randn(4, 5, requires_grad=True)
        loss = f(a)
        loss.backward()
        yield loss, a.grad


@trap(traces=1, hits=2)
def seeds_are_numbers(compiled):
    def program(a):
        torch.manual_seed(7)
        first = torch.initial_seed()
        torch.manual_seed(int(torch.seed() % 1000) * 0 + 5)
        return a * first + torch.rand(5), torch.initial_seed()

    f = compiled(program)
    for a, _ in pairs(3):
        yield f(a)


@TABLE.trap(traces=1, hits=0)
def an_int_that_64_bits_do_not_hold(compiled):
    f = compiled(lambda a: (int(a), a + 1))
    for value in (3.5, 1e30, float("nan"), 2.0):
        try:
            yield f(torch.tensor(value))
        except ValueError as error:
            yield str(error)


# Numbers of tensors that decide -----------------------------------------------------------------


@TABLE.trap(traces=3, hits=5)
def an_element_decides_a_branch(compiled):
    def program(a):
        total = a.sum().item()
        return a + total if total > 0 else a - total

    f = compiled(program)
    for number in (1.0, 2.0, -1.0, 3.0, -2.0, 0.0):
        yield f(torch.full((3,), number))


@TABLE.trap(traces=6, hits=5)
def an_element_decides_how_often(compiled):
    def program(a):
        while a.norm().item() > 1:
            a = a / 2
        return a, [k * 2 for k in range(int(a.sum()))]

    f = compiled(program)
    for number in (1.0, 2.0, -1.0, 30.0, -2.0, 0.0):
        yield f(torch.full((3,), number))


@TABLE.trap(traces=9, hits=4)
def an_element_is_a_key_and_a_text(compiled):
    def program(a):
        count = (a > 0).sum().item()
        return a * {0: 5, 1: 6}.get(count, 7), f"{count} {a.max().item():.2f}"

    f = compiled(program)
    for number in (1.0, 2.0, -1.0, 1.0, -1.0, 1.0):
        yield f(torch.full((3,), number))


@TABLE.trap(traces=9, hits=4)
def elements_are_sorted(compiled):
    def program(a):
        total = a.sum().item()
        values = [total, -total, 2.0]
        values.sort()
        return values, sorted([1, 2, 3], key=lambda number: abs(number - total)), max(total, 0.5), round(total, 1)

    f = compiled(program)
    for number in (1.0, 2.0, -1.0, 1.0, -1.0, 1.0):
        yield f(torch.full((3,), number))


@TABLE.trap(traces=3, hits=2)
def an_element_divides(compiled):
    def program(a):
        total = a.sum().item()
        try:
            return a / (1 / total)
        except ZeroDivisionError:
            return a - 1

    f = compiled(program)
    for number in (1.0, 2.0, 0.0, 3.0, 0.0):
        yield f(torch.full((3,), number))


@TABLE.trap(traces=1, hits=3)
def metrics_of_a_custom_backend(compiled):
    f = compiled(lambda a: (a / a.max().item(), a + 1))
    for a, _ in pairs():
        yield f(a)


TABLE[-1].options["backend"] = "eager"


# Custom functions -----------------------------------------------------------------------------


class Doubled(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x * 2 if not torch.is_grad_enabled() else x

    @staticmethod
    def backward(ctx, g):
        return g * 3


@trap(traces=1, hits=2)
def a_custom_function_of_what_needs_no_gradient(compiled):
    f = compiled(lambda a: Doubled.apply(a) + 1)
    for a, _ in pairs(3):
        yield f(a)


@trap(traces=1, hits=2)
def a_custom_function_through_an_instance(compiled):
    f = compiled(lambda a: Doubled().apply(a) + 1)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        for a, _ in pairs(3):
            yield f(a)


@TABLE.trap(traces=3, hits=2)
def a_custom_function_that_later_needs_a_gradient(compiled):
    f = compiled(lambda a: Doubled.apply(a * 1) + 1)
    for needs in (False, False, True, True, False):
        a = torch.randn(4, 5, requires_grad=needs)
        result = f(a)
        yield result
        if needs:
            result.sum().backward()
            yield a.grad


class Untraceable(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return torch.from_numpy(x.numpy() * 2)

    @staticmethod
    def backward(ctx, g):
        return g


@TABLE.trap(traces=3, hits=2)
def a_custom_function_whose_forward_leaves_torch(compiled):
    f = compiled(lambda a: Untraceable.apply(a + 1) * 3)
    for a, _ in pairs(5):
        yield f(a)


@trap(traces=2, hits=3)
def lists_of_integers(compiled):
    f = compiled(
        lambda a, parts, boxes: (
            [part.sum(0) * len(parts) for part in a.split(parts.tolist())],
            [a[y : y + 2, x:].mean() * y for y, x in boxes.tolist()],
        )
    )
    for first in (1, 2, 3, 2, 1):
        a, boxes = torch.randn(4, 5), torch.randint(0, 3, (2, 2))
        yield f(a.requires_grad_(), torch.tensor([first, 4 - first]), boxes)


@TABLE.parametrize()
def test_it_is_one_graph(trap: Trap) -> None:
    hold(trap)


@pytest.mark.parametrize("kind", [torch.LongTensor, torch.ByteTensor, torch.FloatTensor])
def test_older_constructors_raise_what_they_raise(kind: Any) -> None:
    f = framefuse.compile(lambda a, data: kind(data) + a)
    for data in ([1, [2]], ["a"]):
        for _ in range(3):
            with pytest.raises(Exception) as eager:
                kind(data)
            with pytest.raises(type(eager.value)):
                f(torch.ones(1), data)
