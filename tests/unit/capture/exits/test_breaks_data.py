"""What opaque steps give (numbers, texts, tuples, iterators) is data: later calls see theirs, not the recorded."""

import collections
import functools
import itertools
import math
import re

import pytest
import torch
from tests.unit.capture.replay import equal

import framefuse
from framefuse.api import compiled_function


def giving(values):
    """A callable that the interpreter does not enter; it gives the values in turn."""
    left = itertools.cycle(values)
    return functools.singledispatch(lambda x: next(left))


def handed_on(x, step):
    value = step(x)
    return value, [value, x], (value, value), {"value": value}


def identity(x, step):
    value = step(x)
    return value is None, value, x + 1


def kinds(x, step):
    value = step(x)
    return type(value) is str, isinstance(value, str), bool(value), x * 2


def key(x, step):
    value = step(x)
    return {value: x}, {(1, 2): x, (3, 4): -x}.get(value, x * 3), value == (1, 2)


def hashed(x, step):
    value = step(x)
    return hash(value) == hash((1, 2)), (*value, 1), value * 2, value[1:], len(value)


def looped(x, step):
    return [n * x for n in step(x)], x


def partly_consumed(x, step):
    iterator = iter(step(x))
    first = next(iterator)
    return first, [value for value in iterator], x  # noqa: C416


def found(x, step):
    return [len(match.group()) for match in re.finditer("a.", step(x))], x


def zipped(x, step):
    total = 0
    for left, right in zip(step(x), range(9), strict=False):
        total = total + x * left + right
    return total


def unpacked(x, step):
    first, *rest = step(x)
    return first, rest, x + first


def copied(x, step):
    values = list(step(x))
    named = dict(enumerate(values))
    scale = x.sum().item()
    return values[:2], [*values], values + values, named, {**named}, list(named.values()), max(values) * scale


TEXTS = ["abac", None, "", "axay", 3]
TUPLES = [(1, 2), (3, 4), (5, 6, 7)]
LISTS = [[1, 2], (3, 4), [5], {1: 2}, {3, 4}, range(3), range(1, 2), []]
PROGRAMS = [
    (handed_on, [*TEXTS, *TUPLES, [1], True, 2.5]), (identity, TEXTS), (kinds, TEXTS), (key, [*TUPLES, "a", 3]),
    (hashed, TUPLES), (looped, LISTS), (partly_consumed, [[1, 2], (3, 4), [5, 6, 7]]), (found, ["abac", "axay", "b"]),
    (zipped, [[1, 2], [3, 4, 5], (1,)]), (unpacked, TUPLES), (copied, [[1, 2, 3], [4, 5, 6], [7, 8]]),
]  # fmt: skip


@pytest.mark.parametrize(("program", "values"), PROGRAMS, ids=lambda part: getattr(part, "__name__", ""))
def test_a_later_call_sees_its_own_data(program, values):
    compiled = framefuse.compile(program)
    theirs, ours = giving(values), giving(values)
    with torch.no_grad():
        for call in range(3 * len(values)):
            x = torch.full((3,), call + 1.0)
            expected, actual = program(x, theirs), compiled(x, ours)
            assert equal(expected, actual), (call, expected, actual)
    state = compiled_function(compiled)
    if program is not found:  # a match cannot live across a break
        assert state.dispatch.hits >= 2 * len(values), [str(reason) for reason in state.reasons]


def functions_of_a_number(x):
    n = x.norm().item()
    several = math.exp(-n), int(n * 10) % 7, min(n, 2.0), max(int(n), 1), abs(n - 1.5), math.floor(n), n // 1
    return x * several[0], several, divmod(n, 0.5), pow(n, 2), bool(n), round(n, 2), f"{n:.3f}", f"{n!r}"


def methods_of_a_number(x):
    n = x.norm().item()
    whole = int(n * 10)
    return n.__divmod__(0.5), n.is_integer(), n.hex(), whole.bit_length(), whole.__add__(3), whole.__floordiv__(2), x


def table_by_number(x):
    names = {n: f"class {n}" for n in range(40)}
    return names[int(x.norm().item() * 5)], x + 1


def size_by_number(x):
    count = int(x.abs().sum().item()) % 4 + 1
    return x[:count] + torch.zeros(count), count


def order_of_a_dict(x):
    groups = {}
    for value in x.tolist():
        groups.setdefault(value > 0, []).append(value)
    return groups, [len(values) for values in groups.values()]


def reported(x):
    lines = []

    def report(step, value):
        lines.append((step, round(value, 3), "%.2f" % value))  # noqa: UP031

    for step in range(3):
        x = torch.tanh(x * 1.5)
        report(step, x.mean().item())
    return x, lines


NUMBERS = [functions_of_a_number, table_by_number, size_by_number, reported]


@pytest.mark.parametrize(
    "program", [*NUMBERS, methods_of_a_number, order_of_a_dict], ids=lambda program: program.__name__
)
def test_values_that_python_computes_with_differ_from_call_to_call(program):
    """Powers of two in the data, so that kernels round as eager does."""
    compiled = framefuse.compile(program)
    torch.manual_seed(0)

    def some():
        return torch.randint(-8, 9, (4,)) / 4

    with torch.no_grad():
        for call in range(16):
            x = some()
            assert equal(program(x), compiled(x), exact=False), call
        state = compiled_function(compiled)
        before = len(state.products)
        if program in NUMBERS:
            for _ in range(8):
                x = some()
                assert equal(program(x), compiled(x), exact=False)
            assert len(state.products) == before, "an instruction that sees ever other values compiles for each"
    assert state.dispatch.hits >= 14, [str(reason) for reason in state.reasons]


def test_a_named_tuple_is_defined_inside():
    def f(x):
        pair = collections.namedtuple("pair", "left right")
        return pair(x, 2).right * x, pair._fields, pair.__name__

    compiled = framefuse.compile(f)
    with torch.no_grad():
        for _ in range(4):
            assert equal(f(torch.ones(3)), compiled(torch.ones(3)))


def test_a_tuple_argument_that_is_a_key_of_the_result():
    def f(x, where):
        return {where: x + 1}, (where, where)

    compiled = framefuse.compile(f)
    with torch.no_grad():
        for where in [(1, "a"), (2, "a"), (1, "b"), (1, "a")] * 2:
            assert equal(f(torch.ones(3), where), compiled(torch.ones(3), where))
    assert compiled_function(compiled).dispatch.hits >= 4


def test_a_constant_that_is_an_argument_too():
    """CPython makes equal constants of a module one object."""

    def f(x, mode=(1, 2)):
        return x + 1, (1, 2)

    compiled = framefuse.compile(f)
    with torch.no_grad():
        for args in [(), ((3, 4),), (), ((5,),)] * 2:
            assert equal(f(torch.ones(3), *args), compiled(torch.ones(3), *args))


class Metrics:
    def __init__(self):
        self.totals = {"loss": 0.0, "steps": 0}
        self.history = []

    def __call__(self, x):
        loss = (x * x).mean()
        self.totals["loss"] += loss.item()
        self.totals["steps"] += 1
        self.history.append(loss.item())
        if self.totals["steps"] % 3 == 0:
            mean = self.totals["loss"] / self.totals["steps"]
            print(f"step {self.totals['steps']}: loss {mean:.4f}", self.history[-1])
        return x * loss


def test_metrics_are_printed_without_a_break(capsys):
    theirs, ours = Metrics(), Metrics()
    compiled = framefuse.compile(ours)
    said = []
    with torch.no_grad():
        for step in range(18):
            x = torch.arange(4.0) + step % 4  # sums that no rounding changes
            for metrics in (theirs, compiled):
                made = metrics(x)
                said.append((made.tolist(), capsys.readouterr().out))
            assert said[-2] == said[-1]
            if step == 8:
                before = len(compiled_function(compiled).products)
    assert (theirs.totals, theirs.history) == (ours.totals, ours.history)
    state = compiled_function(compiled)
    assert len(state.products) == before, "a printed number compiles for each value"
    assert not state.breaks
    assert state.dispatch.hits >= 16
