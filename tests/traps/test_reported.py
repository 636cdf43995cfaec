"""Traps that users of compilers reported: managers around breaks, threads, aliases, results that are overwritten."""

from __future__ import annotations

import threading
from typing import Any

import torch
from tests.traps.trap import Table, Trap, hold, outcome
from torch import nn

TABLE = Table()
trap = TABLE.trap
TABLE_OF_ALL: dict[str, Any] = {"k": 2.0}


def ones(*sizes: int) -> torch.Tensor:
    return torch.ones(*sizes)


def steps(*sizes: int) -> torch.Tensor:
    return torch.arange(float(torch.Size(sizes).numel())).reshape(sizes)


class Counted:
    """A manager for which it matters how often it is entered."""

    def __init__(self) -> None:
        self.log: list[str] = []

    def __enter__(self) -> Counted:
        self.log.append("in")
        return self

    def __exit__(self, *error: Any) -> None:
        self.log.append("out")


@trap(traces=8, hits=2)
def a_manager_around_a_value_read(compiled):
    manager = Counted()

    @compiled
    def f(x):
        with manager:
            y = x + 1
            k = y.sum().item()
            y = y * k
        return y

    for size in (2, 2, 2, 2):
        yield f(ones(size)), list(manager.log)


@trap(traces=8, hits=1)
def a_gradient_mode_around_a_branch(compiled):
    @compiled
    def f(x):
        with torch.no_grad():
            y = x * 2 if x.sum() > 0 else x - 1
            inside = torch.is_grad_enabled()
        return y, inside, torch.is_grad_enabled()

    for sign in (1, -1, 1, -1):
        yield f(ones(2) * sign)


@trap(traces=1, hits=3)
def random_numbers_keep_their_order(compiled):
    @compiled
    def f(x):
        a = torch.rand(2)
        b = nn.functional.dropout(x, 0.5)
        c = torch.randn(2)
        return c + 0, b * 2, a * 3, torch.randperm(4)

    for _ in range(4):
        yield f(ones(2))


@trap(traces=1, hits=2, backend="eager")
def random_numbers_keep_their_order_with_another_backend(compiled):
    f = compiled(lambda x: (torch.rand(2) + x, torch.randn(2) * x, torch.bernoulli(x / 2)))
    for _ in range(3):
        yield f(ones(2))


@trap(traces=3, hits=1, waits="gradient training S021 autograd")
def an_input_written_without_gradients(compiled):
    @compiled
    def f(x, y):
        with torch.no_grad():
            x.mul_(2)
        return x * y

    for _ in range(3):
        x, y = steps(3).requires_grad_(), steps(3).requires_grad_()
        made = f(x, y)
        made.sum().backward()
        yield made, x, x.grad, y.grad


@trap(traces=2, hits=1, waits="alias")
def views_of_one_base_in_other_layouts(compiled):
    @compiled
    def f(a, b):
        a.mul_(2)
        return a + b.sum()

    for _ in range(3):
        base = steps(12)
        yield f(base[:6].view(2, 3), base.view(3, 4).t()), base
        base = steps(12)
        yield f(base[:6].view(2, 3), steps(12).view(3, 4).t()), base


@trap(traces=2, hits=2)
def one_object_by_two_ways(compiled):
    @compiled
    def f(x, table):
        table["k"] = table["k"] + 1
        return x * TABLE_OF_ALL["k"]

    TABLE_OF_ALL["k"] = 2.0
    for _ in range(3):
        yield f(ones(2), TABLE_OF_ALL), TABLE_OF_ALL["k"]
    for _ in range(3):
        other = {"k": 5.0}
        yield f(ones(2), other), TABLE_OF_ALL["k"], other["k"]


@trap(traces=2, hits=0, waits="gradient training S021 autograd")
def results_of_create_graph_have_a_graph(compiled):
    f = compiled(lambda x: (x**3).sum())
    for _ in range(3):
        x = steps(3).requires_grad_()
        (gradient,) = torch.autograd.grad(f(x), x, create_graph=True)
        yield gradient, gradient.requires_grad, gradient.grad_fn is not None


@trap(traces=2, hits=3)
def identity_of_small_ints(compiled):
    f = compiled(lambda x, a, b: x + 1 if a is b else x - 1)
    for a, b in ((3, 3), (3, 4), (5, 5), (-5, -5), (6, 7)):
        yield f(ones(2), a, b)


@trap(traces=1, hits=4)
def results_outlive_the_next_calls(compiled):
    @compiled
    def f(x):
        x.add_(1)
        return x, x * 2, (x * 3)[1:]

    kept, inputs = [], [steps(3) + k for k in range(5)]
    for x in inputs:
        kept.append(f(x))
    for x, parts in zip(inputs, kept, strict=True):
        yield parts[0] is x, parts


@trap(traces=4, hits=1)  # calls that meet the recording of another thread are eager
def many_threads_call_at_once(compiled):
    model = nn.Sequential(nn.Linear(4, 4), nn.ReLU()).requires_grad_(False)
    nn.init.ones_(model[0].weight)
    nn.init.ones_(model[0].bias)
    f = compiled(model)
    made: dict[int, torch.Tensor] = {}

    def work(number: int) -> None:
        for _ in range(20):
            made[number] = f(torch.full((2, 4), float(number)))

    threads = [threading.Thread(target=work, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    yield [made[number] for number in range(4)]


@trap(traces=16, hits=0)
def a_dict_is_changed_by_another_thread(compiled):
    table: dict[str, float] = {f"k{n}": 1.0 for n in range(50)}
    stop = threading.Event()

    def change() -> None:
        n = 0
        while not stop.is_set():
            table[f"new{n % 7}"] = 1.0
            table.pop(f"new{(n + 3) % 7}", None)
            n += 1

    f = compiled(lambda x: x * table["k3"] + table.get("k7", 5.0))
    thread = threading.Thread(target=change)
    thread.start()
    try:
        results = [f(ones(2)) for _ in range(30)]
    finally:
        stop.set()
        thread.join()
    yield results
    table["k3"] = 4.0
    yield f(ones(2)), outcome(f, ones(2))


@TABLE.parametrize()
def test_reported_traps(trap: Trap) -> None:
    hold(trap)
