"""Numbers that change from call to call: arithmetic never compiles again, a branch is one more trace for each side."""

from __future__ import annotations

import types
from typing import Any

import torch
from tests.traps.trap import Table, Trap, hold, outcome
from torch import nn

TABLE = Table()
trap = TABLE.trap
SETTINGS = types.ModuleType("settings")
RATE: Any = 0.5
WIDTHS = [3, 1, 2, 7, 4, 9, 1, 0, 12, 5, 3, 8, 2, 6, 1, 10, 11, 0, 13, 3]  # 20 values, with 0, 1 and repeats
FLOATS = [0.5, 0.1, -0.0, 0.0, 2.5, -3.0, 1e10, 1e-10, 1.0, float("inf"), float("nan"), 7.0, 8.5, -1.5, 3.25] + [
    float(k) for k in range(5)
]
INTS = [3, 1, 0, -1, 2**40, -(2**40), 7, 8, 100, -3, 5, 6, 2, 9, 10, 11, 12, 13, 14, 15]


def ones(*sizes: int) -> torch.Tensor:
    return torch.ones(*sizes)


def steps(*sizes: int) -> torch.Tensor:
    return torch.arange(float(torch.Size(sizes).numel())).reshape(sizes)


class Plain:
    def __init__(self, **named: Any) -> None:
        self.__dict__.update(named)


# Arithmetic ----------------------------------------------------------------------------------------------------------


@trap(traces=1, hits=19)
def an_int_argument(compiled):
    f = compiled(lambda x, k: x * k + (k + 1))
    for k in INTS:
        yield f(ones(3), k)


@trap(traces=1, hits=19)
def a_computed_number_is_itself(compiled):
    def program(x, k):
        k = k * 1.5
        return x * (2 if k is k else 3), k is not k, k is None

    f = compiled(program)
    for k in FLOATS:
        yield f(ones(3), k)


@trap(traces=3, hits=5)
def a_power_of_false(compiled):
    f = compiled(lambda x, k: x**k)
    for k in (1, False, 0, False, 0, False, 0, False):
        x = torch.tensor([0.0, 1.0, -2.0], requires_grad=True)
        y = f(x, k)
        y.sum().backward()
        yield y, x.grad


@trap(traces=2, hits=2, waits="raises")
def a_text_times_itself(compiled):
    def program(x, k):
        k *= k
        return x * 2

    f = compiled(program)
    for k in (7, "a", "b", 7, 7, 2.0):
        yield outcome(f, ones(3), k)


@trap(traces=1, hits=19)
def a_float_argument(compiled):
    f = compiled(lambda x, k: (x * k + k / 3, -k))
    for k in FLOATS:
        yield f(ones(3), k)


@trap(traces=1, hits=19)
def a_keyword_argument_and_a_default(compiled):
    f = compiled(lambda x, *, lr=0.1, steps=3: x * lr - steps)
    for k, n in zip(FLOATS, INTS, strict=True):
        yield f(ones(3), lr=k, steps=n)


@trap(traces=2, hits=18)
def an_attribute_of_a_module(compiled):
    class Scaled(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.lr, self.shift = 0.5, 3

        def forward(self, x):
            return x * self.lr + self.shift

    model = Scaled()
    f = compiled(model)
    for lr, shift in zip(FLOATS, INTS, strict=True):
        model.lr, model.shift = lr, shift
        yield f(ones(3))


@trap(traces=3, hits=17)
def attributes_that_change_one_after_the_other(compiled):
    held = Plain(a=1.0, b=2)
    f = compiled(lambda x: x * held.a + held.b)
    for k in range(10):
        held.a = float(k)
        yield f(ones(3))
    for k in range(10):
        held.b = k
        yield f(ones(3))


@trap(traces=2, hits=18)
def a_value_of_a_config(compiled):
    config = Plain(optimizer=Plain(lr=0.5), sizes={"hidden": 3})
    f = compiled(lambda x: x * config.optimizer.lr + config.sizes["hidden"])
    for lr, size in zip(FLOATS, INTS, strict=True):
        config.optimizer.lr = lr
        config.sizes["hidden"] = size
        yield f(ones(3))


@trap(traces=2, hits=18)
def an_attribute_of_an_argument(compiled):
    f = compiled(lambda x, config: x * config.lr + config.n)
    for lr, n in zip(FLOATS, INTS, strict=True):
        yield f(ones(3), Plain(lr=lr, n=n))


@trap(traces=2, hits=18)
def entries_of_dicts_lists_and_tuples(compiled):
    f = compiled(lambda x, table, row, pair: x * table["k"] + row[1] - pair[0])
    for k, n in zip(FLOATS, INTS, strict=True):
        yield f(ones(3), {"k": k}, [0, n], (n, 5))


@trap(traces=2, hits=18)
def all_elements_of_a_list(compiled):
    @compiled
    def f(x, row):
        first, second = row
        for k in row:
            x = x * k
        return x + first - second

    for k, n in zip(FLOATS, INTS, strict=True):
        yield f(ones(3), [k, n])


@trap(traces=2, hits=18)
def values_of_a_dict(compiled):
    @compiled
    def f(x, table):
        for k in table.values():
            x = x * k
        return x + table.get("n", 1)

    for k, n in zip(FLOATS, INTS, strict=True):
        yield f(ones(3), {"k": k, "n": n})


@trap(traces=4, hits=0)
def a_view_of_a_dict_that_grows(compiled):
    @compiled
    def f(x, table):
        values = table.values()
        table["new"] = 7.0
        for k in values:
            x = x * k
        return x

    for k in (2.0, 3.0, 4.0, 5.0):
        table = {"k": k}
        yield f(ones(3), table), table


@trap(traces=2, hits=18)
def a_global(compiled):
    global RATE
    f = compiled(lambda x: x * RATE)
    for value in FLOATS:
        RATE = value
        yield f(ones(3))


@trap(traces=2, hits=18)
def a_variable_of_a_python_module(compiled):
    f = compiled(lambda x: x * SETTINGS.rate)
    for SETTINGS.rate in FLOATS:
        yield f(ones(3))


@trap(traces=2, hits=18)
def a_variable_of_a_closure(compiled):
    rate = 0.5

    @compiled
    def f(x):
        return x * rate

    for value in FLOATS:
        rate = value
        yield f(ones(3))


@trap(traces=2, hits=18)
def a_number_on_a_class(compiled):
    class Config:
        rate = 0.5

    held = Config()
    f = compiled(lambda x: x * held.rate + Config.rate)
    for Config.rate in FLOATS:
        yield f(ones(3))


@trap(traces=2, hits=18)
def a_counter_kept_outside(compiled):
    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.step = 0

        def forward(self, x):
            return x / (self.step + 1)

    model = Model()
    f = compiled(model)
    for model.step in range(20):
        yield f(ones(3))


@trap(traces=3, hits=16)
def an_int_that_becomes_a_float(compiled):
    held = Plain(k=1)
    f = compiled(lambda x, j: x * held.k + j)
    for k, j in zip(INTS[:10] + FLOATS[:10], FLOATS[:10] + INTS[:10], strict=True):
        held.k = k
        yield f(ones(3), j)


@trap(traces=2, hits=18)
def a_bool_argument(compiled):
    f = compiled(lambda x, on: x * on + (1 if on else 2))
    for k in range(20):
        yield f(ones(3), k % 3 == 0)


@trap(traces=1, hits=10)
def a_float_in_a_comparison_of_tensors(compiled):
    f = compiled(lambda x, k: torch.where(x > k, x, x.clamp(min=-k, max=k)))
    for k in FLOATS[:12]:
        yield f(steps(5) - 2, k)


@trap(traces=1, hits=10)
def a_float_given_to_functions_of_torch(compiled):
    f = compiled(lambda x, k: nn.functional.leaky_relu(x, k) + torch.full((2,), k)[0] + torch.add(x, x, alpha=k))
    for k in [0.5, 0.25, 1.0, 0.0, -1.0, 3.0, 0.1, 0.2, 0.3, 0.4, 0.6]:
        yield f(steps(5) - 2, k)


@trap(traces=1, hits=10)
def products_of_numbers(compiled):
    f = compiled(lambda x, a, b: (x * (a * b) + (a - b) ** 2, a // 3 + b % 5, a / 7))
    for k in range(11):
        yield f(ones(3), k - 4, 2 * k + 1)


@trap(traces=1, hits=3)
def constants_that_are_zeros_of_both_signs(compiled):
    f = compiled(lambda x, k: (x * (k * 0.0), x * (k * -0.0), k * 0.0, k * -0.0, x / (k + 0.0)))
    for k in (1.0, 2.0, -3.0, 0.5):
        yield [str(part) for part in f(ones(2), k)]


@trap(traces=2, hits=2)
def numbers_that_leave_64_bits(compiled):
    f = compiled(lambda x, n: (x + 1, n * n * n))
    for n in (3, 2**30, 5, -(2**35), 2**62, 7, 2**21):
        yield f(ones(2), n)


@trap(traces=3, hits=14)
def a_divisor_that_is_zero_at_times(compiled):
    f = compiled(lambda x, n: x * (6 // n) + 6 % n)
    for n in (3, 1, 2, 0, 5, -1, -4, 0, 6, 7, 8, 9, 10, 0, 11, 12, 13, 14):
        yield outcome(f, ones(2), n)


# Indices and shapes --------------------------------------------------------------------------------------------------


@trap(traces=3, hits=15)
def an_index(compiled):
    f = compiled(lambda x, k: x[k] * 2 + x[:, k])
    for k in (0, 1, 2, 3, -1, -2, 4, 0, 1, 3, -4, 2, 3, 1, 0, 4, -5, 2):
        yield f(steps(5, 5), k)
    yield outcome(f, steps(5, 5), 7)


@trap(traces=4, hits=16)
def the_bounds_of_a_slice(compiled):
    f = compiled(lambda x, a, b: x[a:b] * 2)
    for a, b in ((0, 3), (1, 4), (2, 2), (3, 9), (0, 0), (5, 7), (4, 3), (1, 10), (-3, 9), (0, -1)) * 2:
        yield f(steps(10), a, b)


@trap(traces=4, hits=14)
def a_slice_given(compiled):
    f = compiled(lambda x, part: x[part] * 2)
    for a, b in ((0, 3), (1, 4), (2, 5), (3, 9), (0, 1), (5, 7), (4, 8), (1, 10), (2, 9)) * 2:
        yield f(steps(10), slice(a, b))


@trap(traces=2, hits=16)
def a_shape(compiled):
    f = compiled(lambda x, n: torch.zeros(n, 2) + x)
    for n in WIDTHS:
        yield f(ones(2), n)


@trap(traces=2, hits=14)
def the_argument_of_view_and_expand(compiled):
    f = compiled(lambda x, n: x.view(n, -1).sum(0) + x.view(-1)[:1].expand(n)[0])
    for n in (1, 2, 3, 4, 6, 12, 1, 2, 3, 4, 6, 12, 2, 3, 4, 6):
        yield f(steps(12), n)


@trap(traces=2, hits=16)
def the_length_of_arange(compiled):
    f = compiled(lambda x, n: torch.arange(n).sum() + x)
    for n in WIDTHS:
        yield f(ones(2), n)


@trap(traces=4, hits=14)
def the_length_of_narrow(compiled):
    f = compiled(lambda x, a, n: x.narrow(0, a, n) * 2)
    for a, n in ((0, 3), (1, 4), (2, 0), (3, 6), (0, 0), (5, 2), (4, 1), (1, 9), (7, 3)) * 2:
        yield f(steps(10), a, n)


@trap(traces=2, hits=16)
def heads_of_an_attention(compiled):
    class Heads(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.heads = 2

        def forward(self, x):
            batch, length, width = x.shape
            return x.view(batch, length, self.heads, width // self.heads).transpose(1, 2).mean(-1)

    model = Heads()
    f = compiled(model)
    for model.heads in (2, 4, 3, 6, 12, 1, 2, 4, 3, 6, 12, 1, 2, 3, 4, 6, 12, 2):
        yield f(steps(2, 3, 12))


@trap(traces=4, hits=8)
def a_dimension_is_a_branch(compiled):
    f = compiled(lambda x, dim: x.sum(dim))
    for dim in (0, 1, 2, -1, 0, 1, 2, -1, 0, 1, 2, -1):
        yield f(steps(2, 3, 4), dim)


@trap(traces=5, hits=10)
def the_count_of_a_loop_is_a_branch(compiled):
    @compiled
    def f(x, n):
        for k in range(n):
            x = x * 2 + k
        return x

    for n in (3, 1, 0, 2, 4) * 3:
        yield f(ones(2), n)


# Branches ------------------------------------------------------------------------------------------------------------


@trap(traces=2, hits=18)
def a_branch_on_an_int(compiled):
    f = compiled(lambda x, n: x * n if n > 5 else x - n)
    for n in range(20):
        yield f(ones(2), n)


@trap(traces=3, hits=17)
def a_branch_on_an_int_attribute(compiled):
    held = Plain(step=0)
    f = compiled(lambda x: x * held.step if held.step >= 8 else x - held.step)
    for held.step in range(20):
        yield f(ones(2))


@trap(traces=2, hits=18)
def a_branch_on_a_float(compiled):
    f = compiled(lambda x, k: x * k if k > 1.5 else x - k)
    for k in range(20):
        yield f(ones(2), k / 4)


@trap(traces=3, hits=17)
def a_branch_on_a_float_attribute(compiled):
    held = Plain(rate=0.0)
    f = compiled(lambda x: x * held.rate if held.rate else x + 1)
    for k in range(20):
        held.rate = (k % 7) / 2
        yield f(ones(2))


@trap(traces=3, hits=17)
def a_branch_on_the_rest_of_a_division(compiled):
    f = compiled(lambda x, n: x + n if n % 3 == 0 else x * n if n % 3 == 1 else x - n)
    for n in range(20):
        yield f(ones(2), n)


@trap(traces=2, hits=14)
def a_branch_on_a_size(compiled):
    f = compiled(lambda x: x.sum() if x.shape[0] > 4 else x.mean() * x.shape[0])
    for n in (1, 2, 3, 4, 5, 6, 7, 8) * 2:
        yield f(ones(n))


@trap(traces=2, hits=10)
def the_smaller_of_two_numbers(compiled):
    f = compiled(lambda x, n: x[: min(n, x.shape[0])].sum() + max(n, 2))
    for n in (3, 5, 4, 9, 10, 20, 1, 0, 3, 7, 12, 30):
        yield f(steps(10), n)


@trap(traces=1, hits=9)
def the_larger_of_two_floats(compiled):
    f = compiled(lambda x, k: x * max(k, 0.5) + min(1.0, k, x.sum().item()))
    for k in (0.25, 0.75, 1.5, -0.0, 0.0, -3.0, float("inf"), 0.5, 1.0, 2.0):
        yield f(steps(4) - k / 2, k)


@trap(traces=1, hits=5)
def the_larger_of_what_tensors_hold(compiled):
    f = compiled(lambda x: x * max(1.0, x.norm(2).item() / 2) / max(x.sum().item(), 0.25, x[0].item()))
    for n in range(6):
        yield f(steps(4) * n / 5 - n % 2)


@trap(traces=1, hits=5, fullgraph=True)
def an_optimizer_that_reads_norms(compiled):
    weights = [nn.Parameter(steps(4, 3) / 5), nn.Parameter(steps(3) - 1)]
    optimizer = torch.optim.Adafactor(weights, 0.1)

    @compiled
    def step():
        optimizer.step()

    for n in range(7):
        for weight in weights:
            weight.grad = (steps(*weight.shape) - n).sin() * n
        (step if n else optimizer.step)()
        yield [weight.detach().clone() for weight in weights]


@trap(traces=2, hits=3)
def a_text_of_a_number_is_its_value(compiled):
    f = compiled(lambda x, n: (x + n, f"step {n}"))
    for n in (1, 2, 1, 2, 1):
        yield f(ones(2), n)


@TABLE.parametrize()
def test_numbers_do_not_recompile(trap: Trap) -> None:
    hold(trap)
