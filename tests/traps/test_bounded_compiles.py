"""Programs for which other compilers stop or compile at every call: here the number of compilations is bounded."""

from __future__ import annotations

import collections
import contextvars
import inspect
import random
import sys
import time

import pytest
import torch
from tests.traps.trap import Table, Trap, hold
from torch import nn

import framefuse

TABLE = Table()
trap = TABLE.trap
CONTEXT = contextvars.ContextVar("context", default=1.0)


def ones(*sizes: int) -> torch.Tensor:
    return torch.ones(*sizes)


class Counter(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.n = 0

    def forward(self, x):
        self.n += 1
        return x * self.n


@trap(traces=2, hits=7)
def a_counter_in_a_module(compiled):
    model = Counter()
    f = compiled(model)
    for _ in range(9):
        yield f(ones(2)), model.n
    model.n = 100
    yield f(ones(2)), model.n


@trap(traces=2, hits=6)
def a_counter_in_a_global(compiled):
    global CALLS
    CALLS = 0

    @compiled
    def f(x):
        global CALLS
        CALLS += 1
        return x + CALLS

    for _ in range(8):
        yield f(ones(2)), CALLS


@trap(traces=2, hits=6)
def a_counter_in_a_closure(compiled):
    count = 0

    @compiled
    def f(x):
        nonlocal count
        count += 1
        return x + count

    for _ in range(8):
        yield f(ones(2)), count


@trap(traces=1, hits=4)
def an_append_to_a_captured_list(compiled):
    seen: list[float] = []

    @compiled
    def f(x):
        seen.append(3)
        return x + 1

    for _ in range(5):
        yield f(ones(2)), list(seen)


class Lazy:
    def __init__(self) -> None:
        self.reads = 0

    @property
    def factor(self):
        self.reads += 1
        return 2.0

    def __getattr__(self, name):
        if name.startswith("f_"):
            return float(name[2:])
        raise AttributeError(name)


@trap(traces=2, hits=4)
def a_property_with_an_effect_and_a_getattr(compiled):
    lazy = Lazy()
    f = compiled(lambda x: x * lazy.factor + lazy.f_3)
    for _ in range(6):
        yield f(ones(2)), lazy.reads


@trap(traces=3, hits=4)
def an_item_in_an_if(compiled):
    @compiled
    def f(x):
        y = x + 1
        return y * 2 if y.sum().item() > 0 else y - 1

    for sign in (1, 1, -3, 1, -3, -3, 1):
        yield f(ones(2) * sign)


@trap(traces=4, hits=4)
def a_loop_over_tolist(compiled):
    @compiled
    def f(x):
        total = x.new_zeros(())
        for value in x.tolist():
            total = total + value
        return total

    for k in range(6):
        yield f(torch.arange(3.0) + k)


@trap(traces=4, hits=4)
def a_boolean_mask(compiled):
    @compiled
    def f(x):
        return x[x > 1].sum(), x.nonzero().shape[0], x[x > 1] * 2

    for k in range(6):
        yield f(torch.arange(4.0) * k)


@trap(traces=3, hits=3)
def a_random_number_of_python(compiled):
    f = compiled(lambda x: x * random.random())
    random.seed(5)
    for _ in range(5):
        yield f(ones(2)), random.getstate()[1][-1]


@trap(traces=3, hits=3)
def a_context_variable(compiled):
    f = compiled(lambda x: x * CONTEXT.get())
    for value in (1.0, 1.0, 2.0, 2.0, 1.0, 1.0):
        token = CONTEXT.set(value)
        yield f(ones(2))
        CONTEXT.reset(token)


@trap(traces=3, hits=3)
def an_iterator_partly_consumed(compiled):
    @compiled
    def f(x, numbers):
        return x * next(numbers)

    numbers = iter([1.0, 2.0, 3.0, 4.0, 5.0, 6.0])
    for _ in range(5):
        yield f(ones(2), numbers)
    yield list(numbers)


@trap(traces=3, hits=3, waits="gradient autograd training")
def a_backward_inside(compiled):
    w = ones(3).requires_grad_()

    @compiled
    def f(x):
        loss = (w * x).sum()
        loss.backward()
        return loss.detach()

    for k in range(5):
        yield f(ones(3) * k), w.grad


@trap(traces=3, hits=3)
def the_stack_is_inspected(compiled):
    f = compiled(lambda x: (x + 1, inspect.stack()[0].function, len(inspect.stack()) > 3))
    for _ in range(5):
        yield f(ones(2))


@trap(traces=3, hits=3)
def references_are_counted(compiled):
    @compiled
    def f(x):
        return x + 1, sys.getrefcount(x) > 1

    for _ in range(5):
        yield f(ones(2))


@trap(traces=3, hits=3)
def the_clock_is_read(compiled):
    @compiled
    def f(x):
        start = time.perf_counter()
        y = x * 2
        return y, time.perf_counter() >= start

    for _ in range(5):
        yield f(ones(2))


@trap(traces=3, hits=3, waits="gradient tensor-attribute autograd training")
def requires_grad_set_on_an_input(compiled):
    @compiled
    def f(x):
        x.requires_grad_()
        return (x * 2).requires_grad, x.requires_grad

    for _ in range(5):
        yield f(ones(2))


@trap(traces=3, hits=3)
def requires_grad_set_on_a_result(compiled):
    @compiled
    def f(x):
        y = (x + 1).requires_grad_()
        return y, y.is_leaf

    for _ in range(5):
        yield f(ones(2))


@trap(traces=3, hits=3)
def a_resize_inside(compiled):
    @compiled
    def f(x):
        y = x + 1
        y.resize_(2, 2)
        return y * 2

    for _ in range(5):
        yield f(ones(4))


@trap(traces=3, hits=3)
def a_print_in_the_middle(compiled):
    @compiled
    def f(x):
        y = x + 1
        print("middle", end="")
        return y * 2

    for _ in range(5):
        yield f(ones(2))


@trap(traces=6, hits=5)
def backward_hooks_of_modules_in_one_another(compiled):
    inner = nn.Sequential(nn.Linear(2, 2, bias=False), nn.Linear(2, 2, bias=False))
    for layer in inner:
        nn.init.constant_(layer.weight, 0.5)
    norms: list[float] = []
    inner.register_full_backward_hook(lambda module, before, after: norms.append(before[0].sum().item()))
    inner[1].register_full_backward_hook(lambda module, before, after: norms.append(after[0].sum().item()))
    f = compiled(inner)
    for call in range(6):
        f((ones(1, 2) * (call + 1)).requires_grad_()).square().sum().backward()
        yield list(norms), inner[0].weight.grad


@trap(traces=2, hits=5)
def a_node_of_autograd_that_is_looked_at(compiled):
    weight = ones(2).requires_grad_()

    @compiled
    def f(x):
        y = (x * weight).exp()
        node = y.grad_fn
        return (y * 2).sum(), node is not None

    for call in range(6):
        yield f(ones(2) * call)


@trap(traces=4, hits=5)
def a_full_backward_hook(compiled):
    model = nn.Linear(2, 2)
    nn.init.ones_(model.weight)
    nn.init.zeros_(model.bias)
    norms: list[float] = []
    model.register_full_backward_hook(lambda module, before, after: norms.append(after[0].sum().item()))
    f = compiled(model)
    for _ in range(6):
        f(ones(1, 2).requires_grad_()).sum().backward()
        yield list(norms), model.weight.grad


# Arguments -----------------------------------------------------------------------------------------------------------


@trap(traces=2, hits=6)
def sizes_from_nothing_to_many(compiled):
    f = compiled(lambda x: (x * 2 + 1).sum(0))
    for size in (3, 0, 1, 5, 3, 0, 1, 17):
        yield f(torch.arange(float(size * 2)).reshape(size, 2))


@trap(traces=4, hits=6)
def a_bool_an_int_and_a_float(compiled):
    f = compiled(lambda x, k: x * k + 1)
    for k in (True, 2, 2.5, False, 3, 3.5, True, 0, -1.0, 7, False, 1.5):
        yield f(ones(2), k)


@trap(traces=1, hits=3)
def keyword_arguments_in_another_order(compiled):
    f = compiled(lambda x, *, a, b: x * a + b)
    yield f(ones(2), a=2.0, b=3.0)
    yield f(ones(2), b=3.0, a=2.0)
    yield f(b=5.0, x=ones(2), a=1.0)
    yield f(a=2.0, x=ones(3), b=3.0)


@trap(traces=2, hits=2)
def free_keyword_arguments_in_another_order(compiled):
    f = compiled(lambda x, **named: (x * named["a"] + named["b"], list(named)))
    yield f(ones(2), a=2.0, b=3.0)
    yield f(ones(2), b=3.0, a=2.0)
    yield f(ones(2), a=5.0, b=3.0)
    yield f(ones(2), b=4.0, a=2.0)


@trap(traces=2, hits=3)
def a_dict_in_another_order(compiled):
    @compiled
    def f(x, table):
        for value in table.values():
            x = x * 2 + value
        return x, table["a"]

    for order in ("ab", "ba", "ab", "ba", "ab"):
        yield f(ones(2), {key: torch.full((2,), float(ord(key))) for key in order})


@trap(traces=1, hits=3)
def a_dict_read_by_key_in_another_order(compiled):
    f = compiled(lambda x, table: x * table["a"] + table["b"])
    for order in ("ab", "ba", "abc", "cba"):
        yield f(ones(2), {key: torch.full((2,), float(ord(key))) for key in order})


@trap(traces=3, hits=3)
def the_length_of_a_list(compiled):
    f = compiled(lambda parts: torch.cat(parts) * 2)
    for count in (2, 3, 1, 2, 3, 1):
        yield f([ones(2) * k for k in range(count)])


@trap(traces=3, hits=0, waits="native-call argument write")
def a_dict_keyed_by_the_id_of_a_tensor(compiled):
    table: dict[int, int] = {}
    kept = [ones(2) for _ in range(4)]

    @compiled
    def f(x):
        table[id(x)] = len(table)
        return x + 1

    for x in kept:
        yield f(x), len(table)


# The state of torch --------------------------------------------------------------------------------------------------


@trap(traces=2, hits=4)
def grad_mode_flipped(compiled):
    f = compiled(lambda x: (x * 2, torch.is_grad_enabled()))
    for on in (True, False, True, False, True, False):
        with torch.set_grad_enabled(on):
            yield f(ones(2))


@trap(traces=2, hits=4)
def autocast_flipped(compiled):
    weight = ones(3, 3)
    f = compiled(lambda x: x @ weight + 1)
    for on in (True, False, True, False, True, False):
        with torch.autocast("cpu", enabled=on):
            yield f(ones(2, 3))


@trap(traces=3, hits=3)
def the_dtype_of_autocast_changed(compiled):
    weight = ones(3, 3)
    f = compiled(lambda x: x @ weight)
    for dtype in (torch.bfloat16, torch.float16, torch.bfloat16, torch.float16, torch.bfloat16):
        with torch.autocast("cpu", dtype=dtype):
            yield f(ones(2, 3))


@trap(traces=2, hits=4)
def the_default_dtype_changed(compiled):
    f = compiled(lambda x: x + torch.ones(2))
    try:
        for dtype in (torch.float32, torch.float64, torch.float32, torch.float64, torch.float32, torch.float64):
            torch.set_default_dtype(dtype)
            yield f(torch.arange(2))
    finally:
        torch.set_default_dtype(torch.float32)


@trap(traces=2, hits=2, waits="torch-mode tensor-kind")
def the_default_device_changed(compiled):
    f = compiled(lambda n: torch.ones(2) * n)
    try:
        for device in ("cpu", "meta", "cpu", "meta", "cpu", "cpu", "cpu"):
            torch.set_default_device(device)
            made = f(2.0)
            yield str(made.device)
    finally:
        torch.set_default_device(None)


@trap(traces=3, hits=3)
def the_number_of_threads_changed(compiled):
    f = compiled(lambda x: (x * 2 + 1).sum())
    before = torch.get_num_threads()
    try:
        for count in (1, 2, 1, 2, 1):
            torch.set_num_threads(count)
            yield f(torch.arange(1000.0))
    finally:
        torch.set_num_threads(before)


@trap(traces=2, hits=3)
def the_number_of_threads_read_inside(compiled):
    f = compiled(lambda x: x * torch.get_num_threads())
    before = torch.get_num_threads()
    try:
        for count in (1, 2, 1, 2, 1):
            torch.set_num_threads(count)
            yield f(ones(2))
    finally:
        torch.set_num_threads(before)


@trap(traces=2, hits=4)
def deterministic_algorithms_flipped(compiled):
    f = compiled(lambda x: (x * 2, torch.are_deterministic_algorithms_enabled()))
    try:
        for on in (False, True, False, True, False, True):
            torch.use_deterministic_algorithms(on)
            yield f(ones(2))
    finally:
        torch.use_deterministic_algorithms(False)


@trap(traces=3, hits=2)
def a_grown_default_dict(compiled):
    table: collections.defaultdict[str, list[int]] = collections.defaultdict(list)

    @compiled
    def f(x, name):
        return x + len(table[name])

    for name in ("a", "a", "b", "a", "a"):
        yield f(ones(2), name), dict(table)


@TABLE.parametrize()
def test_compilations_are_bounded(trap: Trap) -> None:
    hold(trap)


def test_a_function_that_raises_at_every_call_is_recorded_ever_less() -> None:
    settings = {"w": 2.0}
    compiled = framefuse.compile(lambda x: x * settings["w"])
    for _ in range(2):
        compiled(torch.ones(2))
    del settings["w"]
    for _ in range(60):
        with pytest.raises(KeyError, match="w"):
            compiled(torch.ones(2))
    recorded = sum(count for reason, count in framefuse.explain(compiled).stops if reason.code == "raises")
    assert 4 <= recorded <= 8
    settings["w"] = 2.0
    assert compiled(torch.ones(2)).tolist() == [2.0, 2.0]
    assert framefuse.explain(compiled).hits == 2
