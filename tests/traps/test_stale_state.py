"""State that changes between calls in ways that other compilers miss: compiled code must see every change."""

from __future__ import annotations

import collections
import functools
import operator
import os
import weakref
from typing import Any

import torch
from tests.traps.trap import Table, Trap, hold
from torch import nn

TABLE = Table()
trap = TABLE.trap


def ones(*sizes: int) -> torch.Tensor:
    return torch.ones(*sizes)


def steps(count: int) -> torch.Tensor:
    return torch.arange(float(count))


# Aliasing ------------------------------------------------------------------------------------------------------------


def _flip_then_sum(a, b):
    a.copy_(a.flip(0))
    return (b * 2).sum(), b * 2


@trap(traces=2, hits=4)
def inputs_alias_on_a_later_call(compiled):
    f = compiled(_flip_then_sum)
    for _ in range(3):
        yield f(steps(4), steps(4))
    shared = steps(6)
    yield f(shared[:4], shared[2:]), shared
    yield f(shared[2:], shared[:4]), shared
    same = steps(4)
    yield f(same, same), same
    yield f(steps(4), steps(4))


@trap(traces=2, hits=3)
def inputs_alias_on_the_first_call_only(compiled):
    f = compiled(_flip_then_sum)
    shared = steps(6)
    yield f(shared[:4], shared[2:]), shared
    for _ in range(8):  # a recording in vain is followed by eager calls
        yield f(steps(4), steps(4))
    same = steps(4)
    yield f(same, same), same


@trap(traces=2, hits=4)
def the_same_tensor_passed_twice(compiled):
    @compiled
    def f(a, b):
        a.add_(1)
        return a * b

    for a, b in ((steps(3), steps(3)), (steps(3), steps(3))):
        yield f(a, b), a, b
    for _ in range(3):
        same = steps(3)
        yield f(same, same), same
    yield f(steps(3), steps(3))


@trap(traces=2, hits=3)
def the_same_list_passed_twice(compiled):
    @compiled
    def f(a, b, x):
        a.append(1)
        b.append(2)
        return x + 1

    for _ in range(3):
        a, b = [0], [0]
        yield f(a, b, ones(2)), a, b
    for _ in range(2):
        same = [0]
        yield f(same, same, ones(2)), same


class Box:
    def __init__(self, value: Any) -> None:
        self.value = value


@trap(traces=2, hits=3)
def the_same_object_passed_twice(compiled):
    @compiled
    def f(a, b, x):
        a.value = x + 1
        return b.value * 2

    for _ in range(3):
        a, b = Box(ones(2)), Box(ones(2))
        yield f(a, b, ones(2)), a.value, b.value
    for _ in range(2):
        same = Box(ones(2))
        yield f(same, same, ones(2)), same.value


@trap(traces=2, hits=2)
def the_same_dict_passed_twice(compiled):
    @compiled
    def f(a, b, x):
        a["v"] = x + 1
        return b["v"] * 2

    for _ in range(3):
        a, b = {"v": ones(2)}, {"v": ones(2)}
        yield f(a, b, ones(2)), a, b
    same = {"v": ones(2)}
    yield f(same, same, ones(2)), same


class Scaled(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.a = nn.Parameter(steps(3), requires_grad=False)
        self.b = nn.Parameter(steps(3), requires_grad=False)

    def forward(self, x):
        self.a.mul_(2)
        return x * self.b + self.a


@trap(traces=2, hits=3)
def a_parameter_tied_to_another_later(compiled):
    model = Scaled()
    f = compiled(model)
    for _ in range(3):
        yield f(ones(3)), model.a, model.b
    model.b = model.a
    for _ in range(2):
        yield f(ones(3)), model.a, model.b


@trap(traces=2, hits=2)
def a_parameter_whose_data_becomes_that_of_another(compiled):
    model = Scaled()
    f = compiled(model)
    for _ in range(3):
        yield f(ones(3)), model.a, model.b
    model.b.data = model.a.data
    for _ in range(2):
        yield f(ones(3)), model.a, model.b


@trap(traces=2, hits=3)
def a_parameter_passed_as_the_argument_that_is_written(compiled):
    class Writes(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.w = nn.Parameter(steps(3), requires_grad=False)

        def forward(self, x):
            x.add_(1)
            return self.w * 2

    model = Writes()
    f = compiled(model)
    for _ in range(3):
        yield f(ones(3))
    yield f(model.w), model.w
    yield f(model.w.data), model.w
    yield f(ones(3))


# Modules and classes -------------------------------------------------------------------------------------------------


@trap(traces=3, hits=5)
def a_forward_hook_added_and_removed_later(compiled):
    model = nn.Sequential(nn.Linear(3, 3), nn.ReLU()).requires_grad_(False)
    f = compiled(model)
    for _ in range(2):
        yield f(ones(1, 3))
    handle = model[0].register_forward_hook(lambda module, args, result: result * 3)
    for _ in range(2):
        yield f(ones(1, 3))
    handle.remove()
    for _ in range(2):
        yield f(ones(1, 3))
    handle = model[1].register_forward_pre_hook(lambda module, args: (args[0] - 1,))
    for _ in range(2):
        yield f(ones(1, 3))


@trap(traces=2, hits=3)
def a_hook_for_all_modules_added_and_removed_later(compiled):
    model = nn.Sequential(nn.Linear(3, 3), nn.ReLU()).requires_grad_(False)
    f = compiled(model)
    for _ in range(2):
        yield f(ones(1, 3))
    handle = nn.modules.module.register_module_forward_hook(lambda module, args, result: result + 1)
    try:
        for _ in range(2):
            yield f(ones(1, 3))
    finally:
        handle.remove()
    yield f(ones(1, 3))


@trap(traces=2, hits=3)
def a_method_of_the_class_replaced(compiled):
    class M(nn.Module):
        def h(self, x):
            return x + 1

        def forward(self, x):
            return self.h(x) * 2

    f = compiled(M())
    for _ in range(3):
        yield f(ones(2))
    M.h = lambda self, x: x - 1
    for _ in range(2):
        yield f(ones(2))


@trap(traces=2, hits=4)
def a_method_replaced_on_the_instance_and_restored(compiled):
    class M(nn.Module):
        def h(self, x):
            return x + 1

        def forward(self, x):
            return self.h(x) * 2

    model = M()
    f = compiled(model)
    for _ in range(2):
        yield f(ones(2))
    model.h = lambda x: x - 1
    for _ in range(2):
        yield f(ones(2))
    del model.h
    for _ in range(2):
        yield f(ones(2))


class Reading:
    """A non-data descriptor that gives what its owner's list says."""

    def __get__(self, holder: Any, owner: Any = None) -> Any:
        return holder.readings[-1]


@trap(traces=2, hits=3)
def a_descriptor_whose_result_changes(compiled):
    class Sensor:
        value = Reading()

        def __init__(self) -> None:
            self.readings = [1.0]

    sensor = Sensor()

    @compiled
    def f(x):
        return x * sensor.value

    for _ in range(2):
        yield f(ones(2))
    sensor.readings = [1.0, 5.0]
    for _ in range(3):
        yield f(ones(2))


# Values --------------------------------------------------------------------------------------------------------------


@trap(traces=1, hits=3)
def minus_zero_after_zero(compiled):
    f = compiled(lambda x, k: x / k)
    for k in (0.0, -0.0, 0.0, -0.0):
        yield f(ones(2), k)


LIMIT: Any = 0.0


@trap(traces=2, hits=3)
def minus_zero_in_a_global(compiled):
    global LIMIT
    f = compiled(lambda x: torch.copysign(x, torch.full_like(x, LIMIT)))
    for value in (0.0, 0.0, -0.0, -0.0, 0.0):
        LIMIT = value
        yield f(ones(2))


@trap(traces=2, hits=4)
def an_ordered_dict_reordered(compiled):
    table = collections.OrderedDict(a=2.0, b=3.0)

    @compiled
    def f(x):
        for value in table.values():
            x = x * value + 1
        return x

    for _ in range(3):
        yield f(ones(2))
    table.move_to_end("a")
    for _ in range(2):
        yield f(ones(2))
    table.move_to_end("a", last=False)
    yield f(ones(2))


@trap(traces=2, hits=3)
def identity_of_equal_large_ints(compiled):
    @compiled
    def f(x, a, b):
        return x + 1 if a is b else x - 1

    big, twin = int("123456789012"), int("123456789012")
    for a, b in ((big, twin), (big, big), (big, twin), (7, 7), (twin, twin)):
        yield f(ones(2), a, b)


@trap(traces=2, hits=4)
def the_environment_changes(compiled):
    @compiled
    def f(x):
        return x * 2 if os.environ.get("FRAMEFUSE_TEST_TRAP", "0") == "1" else x

    try:
        for value in (None, None, "1", "1", "1", None):
            os.environ.pop("FRAMEFUSE_TEST_TRAP", None)
            if value:
                os.environ["FRAMEFUSE_TEST_TRAP"] = value
            yield f(ones(2))
    finally:
        os.environ.pop("FRAMEFUSE_TEST_TRAP", None)


@trap(traces=3, hits=4)
def a_cached_function_runs_its_body_once(compiled):
    calls = []

    @functools.lru_cache
    def factor(n):
        calls.append(n)
        return n * 2.0

    @compiled
    def f(x, n):
        return x * factor(n)

    for n in (2, 2, 3, 2, 3):
        yield f(ones(2), n), list(calls), factor.cache_info().misses
    factor.cache_clear()
    for _ in range(2):
        yield f(ones(2), 2), list(calls)


@trap(traces=3, hits=3)
def a_cached_function_given(compiled):
    def scaled_by(factor):
        return functools.lru_cache(maxsize=4)(lambda n: n * factor)

    f = compiled(lambda x, scaled: x * scaled(2.0))
    functions = [scaled_by(factor) for factor in (1.0, 2.0, 3.0)]
    for function in functions * 2:
        yield f(ones(2), function)


@trap(traces=1, hits=2)
def a_cached_function_made_inside(compiled):
    @compiled
    def f(x):
        calls = []
        factor = functools.lru_cache(maxsize=4)(lambda n: calls.append(n) or n + 1.0)
        return x * (factor(1) + factor(1) + factor(2)), calls, factor.cache_info().hits

    for _ in range(3):
        yield f(ones(2))


@trap(traces=3, hits=3)
def a_weak_reference_given(compiled):
    f = compiled(lambda x, there: x + there())
    tensors = [torch.full((2,), float(k)) for k in range(3)]
    references = [weakref.ref(tensor) for tensor in tensors]
    for reference in references * 2:
        yield f(ones(2), reference)


# Effects on tensors --------------------------------------------------------------------------------------------------


@trap(traces=1, hits=3)
def the_version_of_an_input_counts_one_write(compiled):
    @compiled
    def f(x):
        x.add_(1)
        return x * 2

    for _ in range(4):
        x = ones(3)
        before = x._version
        yield f(x), x._version - before


@trap(traces=1, hits=2)
def a_write_through_data_counts_no_version(compiled):
    @compiled
    def f(x):
        x.data.mul_(2)
        return x + 1

    for _ in range(4):
        x = ones(3)
        before = x._version
        yield f(x), x, x._version - before


@trap(traces=1, hits=3)
def random_numbers_are_eagers(compiled):
    f = compiled(lambda x: nn.functional.dropout(x, 0.5) + torch.rand(3))
    torch.manual_seed(3)
    for _ in range(4):
        yield f(ones(3)), torch.default_generator.get_state()


@trap(traces=1, hits=2)
def a_seed_set_inside(compiled):
    @compiled
    def f(x):
        torch.manual_seed(5)
        return x + torch.rand(3)

    for _ in range(3):
        yield f(ones(3)), torch.rand(2)


@trap(traces=2, hits=3)
def a_hook_removed_inside(compiled):
    model = nn.Linear(3, 2)
    handles = []

    @compiled
    def f(x):
        handles[-1].remove()
        return model(x), len(model._forward_hooks)

    for _ in range(4):
        if handles:
            handles[0].remove()
            model._forward_hooks[handles[0].id] = lambda module, args, result: result * 2
        else:
            handles.append(model.register_forward_hook(lambda module, args, result: result * 2))
        yield f(ones(3)), len(model._forward_hooks), model(ones(3))


@trap(traces=24, hits=1)
def a_hook_registered_and_removed_inside(compiled):
    model = nn.Linear(3, 2)

    @compiled
    def f(x):
        with model.register_forward_hook(lambda module, args, result: result * 2):
            x = model(x)
        return x, len(model._forward_hooks)

    for _ in range(6):
        yield f(ones(3)), len(model._forward_hooks), model(ones(3))


@trap(traces=10, hits=10)
def numbers_of_the_own_class_that_the_call_counts(compiled):
    class Counting(nn.Module):
        calls, total, scale = 0, 0.0, 2

        def forward(self, x):
            Counting.calls += 1
            type(self).total = self.total + x.shape[0] / 4
            return x * self.scale + self.bonus()

        def bonus(self):
            return 1

    class Louder(Counting):
        pass

    f = compiled(Louder())
    for number in range(16):
        if number == 9:
            Counting.calls = 100
        if number == 11:
            Counting.scale = 5
        if number == 13:
            Louder.bonus = lambda self: 7
        if number == 15:
            Counting.calls = 0.5
        yield f(ones(number % 3 + 1)), Counting.calls, Louder.total, Counting.total


@trap(traces=3, hits=9)
def a_number_of_a_class_that_is_counted_in_one_graph(compiled):
    class Meter:
        calls, seen, scale = 0, 0.5, 3

    class Finer(Meter):
        pass

    def f(x):
        before = Finer.calls
        Meter.calls += 1
        Meter.seen += x.shape[0] / 2
        return x * Finer().calls + Meter.scale, before, Meter.calls, Finer.calls

    f = compiled(f)
    for number in range(14):
        if number == 7:
            Meter.calls = 40
        if number == 9:
            Meter.scale = 5
        yield f(ones(number % 3 + 2)), Meter.calls, Meter.seen


@trap(traces=8, hits=8)
def a_number_of_a_class_that_a_subclass_replaces(compiled):
    class Meter:
        calls = 0

    class Own(Meter):
        calls = 10

    def f(x, kind):
        kind.calls += 2
        Meter.calls += 1
        return x + kind.calls, Meter.calls, Own.calls

    f = compiled(f)
    for number in range(16):
        if number == 8:
            del Own.calls
        if number == 12:
            Meter.calls = 0.25
        yield f(ones(number % 3 + 2), Own if number % 4 else Meter), Meter.calls, vars(Own).get("calls")


@trap(traces=4, hits=6)
def a_count_of_a_class_that_steps_ask_for(compiled):
    class Meter:
        calls = 0

    def f(x):
        Meter.calls += 1
        y = x + 1
        print("", end="", file=Writer())
        Meter.calls += 1
        return y * Meter.calls, operator.attrgetter("calls")(Meter), vars(Meter)["calls"], Meter.__dict__["calls"]

    class Writer:
        def write(self, text):
            seen.append(Meter.calls)

    seen = []
    f = compiled(f)
    for number in range(10):
        yield f(ones(number % 3 + 2)), Meter.calls, list(seen)


@TABLE.parametrize()
def test_change_is_seen(trap: Trap) -> None:
    hold(trap)
