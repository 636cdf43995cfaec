"""Numbers in dicts, however the program gets at them: by key, by a view, by iterating, by a copy."""

from __future__ import annotations

import bisect
from collections import OrderedDict, defaultdict

import torch
from tests.traps.trap import Table, Trap, hold, outcome
from torch import nn

TABLE = Table()
trap = TABLE.trap
FLOATS = [0.5, 0.1, -0.0, 0.0, 2.5, -3.0, 1e10, 1e-10, 1.0, 7.5]
INTS = [3, 1, 0, -1, 2**40, -7, 7, 8, 100, 5]


def ones(*sizes: int) -> torch.Tensor:
    return torch.ones(*sizes)


def tables():
    for k, n in zip(FLOATS, INTS, strict=True):
        yield {"k": k, "n": n}


def _sum_of_items(x, table):
    for key, value in table.items():
        x = x * value + len(key)
    return x


def _by_keys(x, table):
    for key in table:
        x = x + table[key]
    for key in table.keys():
        x = x * table[key]
    for key in sorted(table):
        x = x - table[key]
    return x


def _taken_apart(x, table):
    k, n = table.values()
    (first, second), *_ = table.items()
    return x * k + n, first, second, [*table.values()], [value * 2 for value in table.values()]


def _by_builtins(x, table):
    found = list(table.values()), tuple(table.items()), sum(table.values()), sorted(table.items())
    for place, (_, value) in enumerate(table.items()):
        x = x * value + place
    return x, found, {key: value + 1 for key, value in table.items()}, any(value > 2 for value in table.values())


def _copies(x, table):
    new = {}
    new.update(table)
    return x * dict(table)["k"] + table.copy()["n"] + {**table}["k"] + new["n"], dict(table), new


def _as_arguments(x, table):
    def scaled(k, n):
        return x * k + n

    return scaled(*table.values()), scaled(**table)


def _mapped(x, table):
    return [x * value for value in map(float, table.values())]


for _function in (_sum_of_items, _by_keys, _taken_apart, _by_builtins, _copies, _as_arguments, _mapped):
    _branches = 2 if _function is _by_builtins else 0

    def _program(compiled, function=_function):
        f = compiled(function)
        for table in tables():
            yield f(ones(3), table)

    _program.__name__ = _function.__name__.lstrip("_")
    trap(traces=2 + _branches, hits=8 - _branches)(_program)


@trap(traces=2, hits=8)
def ordered_and_default_dicts(compiled):
    @compiled
    def f(x, ordered, counted):
        for key, value in ordered.items():
            x = x * value + len(key)
        for value in counted.values():
            x = x + value
        return x, list(ordered.items()), len(counted)

    for table in tables():
        yield f(ones(3), OrderedDict(reversed(table.items())), defaultdict(float, table))


@trap(traces=2, hits=8)
def losses_weighted_by_a_dict_of_a_module(compiled):
    class Criterion(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weights = {"box": 1.0, "class": 0.5}

        def forward(self, x):
            losses = {name: x.sum() for name in self.weights}
            return sum(losses[name] * weight for name, weight in self.weights.items())

    model = Criterion()
    f = compiled(model)
    for k in FLOATS:
        model.weights["box"], model.weights["class"] = k, k + 1
        yield f(ones(3))


@trap(traces=2, hits=8)
def an_average_kept_in_a_dict(compiled):
    averages = {"a": 1.0, "b": 2.0}

    @compiled
    def f(x, rate):
        for key, value in averages.items():
            averages[key] = value * rate + 1.0
        for key in averages:
            averages[key] = averages[key] - 0.25
        total = 0.0
        for value in averages.values():
            total += value
        return x * total

    for k in range(10):
        yield f(ones(3), k / 10), dict(averages)


@trap(traces=5, hits=7)
def entries_come_and_go(compiled):
    @compiled
    def f(x, table):
        for value in table.values():
            x = x * value
        return x

    for k in FLOATS[:4]:
        for table in ({"k": k}, {"k": k, "n": 2.0}, {"n": k, "k": 3.0}):
            yield f(ones(3), table)


@trap(traces=2, hits=1)
def a_dict_that_changes_while_it_is_iterated(compiled):
    @compiled
    def f(x, table):
        for key, value in table.items():
            x = x * value
            if value > 1:
                table[key + "s"] = value
        return x

    for k in (0.5, 0.75, 2.0, 3.0, 0.25, 4.0):
        table = {"k": k}
        yield outcome(f, ones(3), table), table


@trap(traces=5, hits=8)
def a_break_while_it_is_iterated(compiled):
    @compiled
    def f(x, table):
        for key, value in table.items():
            x = x * value + len(key)
            if x.sum().item() > 1e6:
                break
        return x, list(table)

    for k in FLOATS:
        yield f(ones(3), {"k": k, "n": k + 1})


@trap(traces=12, hits=12)
def a_step_among_milestones(compiled):
    counted, plain = {3: 1, 9: 2, "end": 3}, [3, 9]

    @compiled
    def f(x, n):
        if n in counted:
            x = x * 2
        return x + counted.get(n, 0) + (n in {4, 5.0}) + bisect.bisect(plain, n) + bisect.bisect_left(plain, n)

    for n in (0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 5, 3, 1):
        yield f(ones(3), n)
    counted[7] = 4
    del counted[3]
    for n in (3, 7, 8, 3, 7, 8):
        yield f(ones(3), n)


@trap(traces=10, hits=0)
def a_view_that_is_kept(compiled):
    @compiled
    def f(x, table):
        values = table.values()
        table["k"] = table["k"] * 2
        total = sum(values)
        return x * total, len(values), 0.5 in table.values()

    for table in tables():
        yield f(ones(3), table), table


class Counted(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.step, self.tag, self.losses, self.named = 0, "", {}, {"start": 0}

    def forward(self, x, n):
        self.step += 1
        self.tag = "step " + str(self.step) + "/" + repr(n)
        loss = (x * n).sum()
        self.losses[self.step] = loss
        self.named[f"step{self.step}"] = loss.item()
        self.named[self.tag] = n
        return x * n


@trap(traces=16, hits=10)
def entries_of_steps(compiled):
    module = Counted()
    f = compiled(module)
    for number in range(14):
        if number == 9:
            module.losses = {}
        if number == 11:
            module.step = 3
        yield f(ones(3) + number, number / 2), module.step, module.tag, dict(module.losses), dict(module.named)


@TABLE.parametrize()
def test_numbers_in_dicts(trap: Trap) -> None:
    hold(trap)
