"""Functions of run-time numbers: they make others, and an error of theirs is of its values only."""

from __future__ import annotations

import math
from typing import Any

import torch
from tests.traps.trap import Table, Trap, hold, outcome
from torch import nn

TABLE = Table()
trap = TABLE.trap
FLOATS = [0.5, 0.125, -0.0, 0.0, 2.5, -3.0, 1e5, 1e-10, 1.0, 7.5, 8.5, -1.5, 3.25, 0.1, -0.3, 12.0]
INTS = [3, 1, 0, -1, 2**40, -(2**40), 7, 8, 100, -3, 5, 6, 2, 9, 10, 11]


def ones(*sizes: int) -> torch.Tensor:
    return torch.ones(*sizes)


@trap(traces=1, hits=15)
def functions_of_the_c_library(compiled):
    @compiled
    def f(x, k):
        waves = math.sin(k) + math.cos(k) + math.tan(k) + math.atan(k) + math.tanh(k / 9)
        growth = math.exp(-abs(k) / 7) + math.expm1(k / 1e6) + math.sinh(k / 1e6) + math.cosh(k / 1e6)
        logs = math.log(1 + abs(k)) + math.log2(2 + abs(k)) + math.log10(3 + abs(k)) + math.log1p(abs(k))
        return x * waves, x + growth, x - logs, math.asinh(k), math.atan2(k, 2), math.log(4 + abs(k), 3)

    for k in FLOATS:
        yield f(ones(3), k)


@trap(traces=6, hits=8)
def the_least_and_greatest_of_ints_and_floats(compiled):
    @compiled
    def f(x, k):
        few = min(k, 2.0), max(k, 2.0), min((k, 2.0, 1.5)), max([k, 2.0]), min(2.0, k), max(True, k), max(k, 2, 1.5)
        return x, few, [type(part).__name__ for part in few]

    for k in (3, 1, 2, 0, 5, 2, 3, 1, -4, 2, 7, 0, 4, 3, 1):
        yield f(ones(2), k)


@trap(traces=1, hits=15)
def roots_powers_and_remainders(compiled):
    @compiled
    def f(x, k):
        roots = math.sqrt(abs(k)) + math.pow(abs(k), 0.3) + abs(k) ** 1.5 + math.fabs(k)
        return x * roots, k // 3, k % 3, k // -0.75, k % -0.75, math.fmod(k, 0.3), math.copysign(2, k), divmod(k, 7)

    for k in FLOATS:
        yield [str(part) for part in f(ones(3), k)]


@trap(traces=1, hits=15)
def degrees_and_radians(compiled):
    f = compiled(lambda x, n: (x * math.radians(n), math.degrees(n) + math.cos(n)))
    for n in INTS:
        yield f(ones(3), n)


@trap(traces=1, hits=15)
def a_float_as_an_int(compiled):
    f = compiled(lambda x, k: (x + int(k), round(k), math.floor(k), math.ceil(k), math.trunc(k), int(k * 3) + 1))
    for k in FLOATS:
        yield f(ones(3), k)


@trap(traces=1, hits=15)
def bits(compiled):
    f = compiled(lambda x, n: (x * (n & 6), n | 5, n ^ 3, ~n, n << 2, n >> 1, (n & 1) + 1))
    for n in INTS:
        yield f(ones(3), n)


@trap(traces=3, hits=7)
def powers_of_ints(compiled):
    f = compiled(lambda x, n: (x * n, 2**n, n**3, pow(n, 2), 2.0**n, (-1) ** n))
    for n in (3, 1, 0, 2, 10, 62, 70, 20, -2, 5):
        yield f(ones(3), n)


@trap(traces=2, hits=14)
def a_branch_on_an_int_and_a_float(compiled):
    f = compiled(lambda x, n, k: x * n if n > k else x - n)
    for n, k in zip(range(16), FLOATS, strict=True):
        yield f(ones(2), n, k)


@trap(traces=4, hits=6)
def ints_that_floats_do_not_hold(compiled):
    f = compiled(lambda x, n, k: x + 1 if n == k else x - 1)
    for n, k in ((3, 3.0), (4, 3.0), (2**53 + 1, 2.0**53), (5, 5.0), (2**53 + 1, 2.0**53), (2**53, 2.0**53), (7, 8.0)):
        yield f(ones(2), n, k)
    for n in (2**53 + 1, 6, 3):
        yield f(ones(2), n, math.inf)


@trap(traces=3, hits=12)
def questions_about_a_float(compiled):
    f = compiled(lambda x, k: x if math.isnan(k) else x + 1 if math.isinf(k) else x * k if math.isfinite(k) else None)
    for k in (1.0, math.nan, math.inf, -math.inf, 2.0, 0.0, -0.0, math.nan, 3.0, math.inf, 4.0, 5.0, 6.0, 7.0, 8.0):
        yield f(ones(2), k)


@trap(traces=2, hits=13)
def the_smallest_of_ints_and_floats(compiled):
    f = compiled(lambda x, n, k: x * max(n, k) + min(k, n, 2))
    for n, k in ((1, 2.5), (3, 1.5), (2, 9.0), (0, 0.5), (7, 0.1)) * 3:
        yield f(ones(2), n, k)


@trap(traces=3, hits=0)
def a_logarithm_to_a_base_that_no_float_holds(compiled):
    f = compiled(lambda x, k: x * math.log(k, 10**400))
    for k in (2.0, 3.0, 4.0):
        yield f(ones(2), k)


# Sizes ---------------------------------------------------------------------------------------------------------------


@trap(traces=1, hits=11)
def a_size_made_by_rounding(compiled):
    @compiled
    def f(x, scale):
        kept = max(1, int(x.shape[0] * scale))
        return x[:kept].sum(), torch.zeros(kept, 2), x.new_ones(math.ceil(x.shape[0] / 4))

    for size in (12, 9, 20, 7):
        for scale in (0.5, 0.3, 0.75):
            yield f(ones(size), scale)


@trap(traces=1, hits=7)
def the_side_of_a_square(compiled):
    @compiled
    def f(x):
        side = int(math.sqrt(x.shape[1]))
        return x.transpose(1, 2).reshape(x.shape[0], x.shape[2], side, side) * 2, side

    for side in (4, 3, 5, 6, 7, 2, 8, 9):
        yield f(torch.arange(2.0 * side * side * 3).reshape(2, side * side, 3))


@trap(traces=1, hits=7)
def padding_to_a_multiple(compiled):
    @compiled
    def f(x):
        missing = math.ceil(x.shape[-1] / 8) * 8 - x.shape[-1]
        return nn.functional.pad(x, (missing // 2, missing - missing // 2)) + missing

    for size in (5, 7, 11, 13, 21, 30, 9, 3):
        yield f(ones(2, size))


@trap(traces=1, hits=5)
def windows_of_a_picture_that_is_one_window(compiled):
    @compiled
    def f(x):
        batch, height, width, channels = x.shape
        windows = x.view(batch, height // 4, 4, width // 4, 4, channels).permute(0, 1, 3, 2, 4, 5).contiguous()
        windows = windows.view(-1, 4, 4, channels).view(-1, 16, channels) * 2
        return windows.view(-1, height // 4, width // 4, 4, 4, channels).sum((1, 2))

    for batch in (2, 2, 3, 5, 4, 6):
        yield f(torch.arange(batch * 16.0 * 3).reshape(batch, 4, 4, 3))


@trap(traces=1, hits=4)
def tensors_told_apart_beside_a_contiguous_one(compiled):
    @compiled
    def f(x):
        doubled, dense = x * 2, x.contiguous()
        return (doubled + 1 if doubled is x else doubled) + dense

    for rows in (2, 3, 4, 5, 6):
        yield f(ones(rows, 3))


@trap(traces=3, hits=5)
def a_contiguous_tensor_told_from_its_operand(compiled):
    @compiled
    def f(x):
        dense = x.contiguous()
        return (dense is x), dense + 1

    for x in (ones(3, 4), ones(4, 3).T, ones(3, 4), ones(4, 3).T, ones(5, 4), ones(4, 5).T, ones(5, 4), ones(4, 5).T):
        yield f(x)


# Schedules -----------------------------------------------------------------------------------------------------------


@trap(traces=2, hits=18)
def a_cosine_schedule(compiled):
    class Trainer:
        def __init__(self) -> None:
            self.step, self.lr = 0, 0.1

        def update(self, x):
            self.step += 1
            self.lr = 0.05 * (1 + math.cos(math.pi * self.step / 20)) if self.step > 4 else 0.1 * self.step / 4
            return x * self.lr

    held = Trainer()
    f = compiled(held.update)
    for _ in range(20):
        yield f(ones(3)), held.step, held.lr


@trap(traces=2, hits=18)
def a_learning_rate_that_warms_up(compiled):
    f = compiled(lambda x, step: x * (384**-0.5 * min(step**-0.5, step * 4000**-1.5)))
    for step in range(1, 21):
        yield f(ones(3), step * 300)


@trap(traces=1, hits=9)
def numbers_of_tensors(compiled):
    @compiled
    def f(x):
        k = x.sum().item()
        return x * math.exp(-abs(k)), int(k) + 1, math.floor(k / 2)

    for k in range(10):
        yield f(ones(3) * (k - 4) / 3)


# Errors --------------------------------------------------------------------------------------------------------------


@trap(traces=2, hits=7)
def an_error_that_is_caught(compiled):
    @compiled
    def f(x, k):
        try:
            rate = 1.0 / k
        except ZeroDivisionError:
            rate = 0.5
        return x * rate

    for k in (0.0, 0.0, 2.0, 4.0, 0.0, 8.0, -0.0, 1.0, 3.0, 0.0, 5.0, 6.0):
        yield f(ones(2), k)


@trap(traces=7, hits=6)
def errors_of_all_kinds(compiled):
    def caught(function, *args: Any) -> Any:
        try:
            return function(*args)
        except (ArithmeticError, ValueError) as error:
            return str(error)

    @compiled
    def f(x, n, k):
        found = [caught(lambda: 7 // n), caught(lambda: 7 % n), caught(math.sqrt, k), caught(math.log, k)]
        found += [caught(lambda: 10.0**k), caught(math.exp, k), caught(math.acos, k), caught(int, k)]
        found += [caught(lambda: 1 << n), caught(lambda: k // n), caught(lambda: n**-1), caught(lambda: k**0.5)]
        return x + len(found), found

    for n, k in ((1, 0.5), (0, 0.5), (2, 0.25), (3, -4.0), (0, 0.0), (4, 900.0), (5, 0.5), (-1, 0.75), (1, math.inf)):
        yield [str(part) for part in f(ones(2), n, k)]
    for n, k in ((6, 0.1), (7, 0.2), (8, 0.3), (2, math.nan), (0, -1.0), (3, 0.4)):
        yield [str(part) for part in f(ones(2), n, k)]


@trap(traces=1, hits=11)
def an_error_at_a_later_call(compiled):
    f = compiled(lambda x, k: x * math.sqrt(k) + math.log(k) + int(k))
    for k in (1.0, 2.0, -1.0, 3.0, 0.0, 4.0, math.inf, 5.0, math.nan, 6.0, 7.0, 8.0, 9.0, 10.0, 11.0, 12.0):
        yield outcome(f, ones(2), k)


UNUSED = {
    "divided": lambda k: 1 / k,
    "floored": lambda k: 1 // k,
    "left over": lambda k: 1 % k,
    "a remainder": lambda k: math.fmod(k, 2),
    "a root": math.sqrt,
    "a logarithm": math.log,
    "to a base": lambda k: math.log(2, k),
    "grown": math.exp,
    "an angle": math.acos,
    "a wave": math.sin,
    "a power": lambda k: k**200,
    "of a root": lambda k: abs(1 / math.sqrt(k) - 1),
    "a factor": lambda k: (ones(3) * (1 / k)).sum(),
    "a small one": lambda k: math.sqrt(k + 1.0) * 2 + math.log1p(k),
}


def _errors_of_what_nobody_uses(ask: Any) -> Any:
    def program(compiled):
        @compiled
        def f(x, k):
            try:
                ask(k)
            except (ArithmeticError, ValueError) as error:
                return x - 1, str(error)
            else:
                return x * 2, ""

        for k in (0.5, 0.75, 0.0, -3.0, 800.0, 1.0, math.inf, 2.5, math.nan, 0.25, -0.5, 0.125):
            yield f(ones(2), k)

    return program


for _name, _ask in UNUSED.items():
    _program = _errors_of_what_nobody_uses(_ask)
    _program.__name__ = f"{_name}, and not used"
    trap(traces=9, hits=3)(_program)


@TABLE.parametrize()
def test_functions_of_numbers_do_not_recompile(trap: Trap) -> None:
    hold(trap)
