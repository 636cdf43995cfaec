"""Dicts and sets with floats as keys: tables of rates, of the bases of rotary embeddings."""

from __future__ import annotations

import torch
from tests.traps.trap import Table, Trap, hold

NAN = float("nan")
TABLE = Table()
trap = TABLE.trap


@trap(traces=1, hits=3)
def a_table_is_read(compiled):
    table, chosen, layers = {1e4: 2.0, 5.5: 3.0}, {1.5, 2.5}, [1e4, 5.5, 0.0]

    @compiled
    def f(x):
        for key, value in table.items():
            x = x * key + value
        for base in layers:
            x = x * table[base] if base else x + table.get(7.5, 1)
        return x + (1.5 in chosen) + len(chosen & {2.5})

    for _ in range(4):
        yield f(torch.randn(3))


@trap(traces=20, hits=6)
def entries_change_between_calls(compiled):
    table, chosen = {1.0: 2.0, 2.5: 3.0}, {1.5}

    @compiled
    def f(x):
        return x * table[1] + table[2.5] + (2.5 in chosen) + sum(table)

    for change in (
        lambda: None, lambda: table.update({1: 5.0}), lambda: chosen.add(2.5), lambda: table.update({0.5: 1.0}),
        lambda: (table.pop(1.0), table.update({True: 7.0})), lambda: chosen.clear(),
    ):  # fmt: skip
        change()
        for _ in range(3):
            yield f(torch.randn(3))


@trap(traces=20, hits=4)
def a_key_of_another_class_names_the_same_entry(compiled):
    for key, other in ((1.0, 1), (1, 1.0), (1.0, True), (0.0, -0.0)):
        table = {key: 2.0}

        @compiled
        def f(x, table=table, key=key, other=other):
            before = table[key]
            table[other] = table[key] + 1
            return x * table[key] + table[other] + before, len(table)

        for _ in range(4):
            yield f(torch.randn(3)), dict(table)


@trap(traces=40, hits=3)
def a_nan_is_found_as_the_object_that_it_is(compiled):
    def looks_up(x, k):
        table = {k: 2.0}
        table[k] = table.get(k, 0) + 1
        return x * table.get(k, 5), k in table, len({k, k}), [k].index(k), k in (k,), [k].count(k), {k: 1} == {k: 1}

    def compares(x, k):
        return x, {NAN: 2}.get(k), NAN in (k,), k in [NAN], NAN in [1.0, k], k * 0 in [k]

    def elements(x, held):
        return x, held.count(held[0]), held[1] in {held[0]}

    f, g, h = map(compiled, (looks_up, compares, elements))
    for k in (NAN, NAN, float("nan"), 1.0, NAN, 2.0, float("nan"), 3.0, NAN):
        yield f(torch.randn(3), k), g(torch.randn(3), k)
    for held in ([NAN, 1.0], [NAN, NAN], [float("nan"), NAN], [NAN, NAN]):
        yield h(torch.randn(3), held)


class Settings:
    rate = 1.0


@trap(traces=80, hits=10)
def a_nan_is_one_object_from_step_to_step(compiled):
    def from_item(x):
        v = x.sum().item()
        w, table = v * 2, {v: 1}
        table[w] = 2
        return table[v], v in table, len(table), [w, v].index(v), {v, v} == {v}, x + 1

    def largest(x):
        values = [x[i].item() for i in range(2)]
        best = max(values[0], values[1])
        return values.index(best), {values[0]: 1, values[1]: 2}[best], x * 2

    def around_breaks(x):
        v = float(x.mean())
        table = {}
        table[v] = 2
        print(end="")
        table[v] = table[v] + 1
        return len(table), table[v], x + 1

    def of_an_object(x):
        table = {Settings.rate: 1}
        table[x.sum().item()] = 2
        return len(table), table[Settings.rate], x + 1

    def returned(x, k):
        held = [k]
        return k in held, held, {k: x * k}

    functions = [compiled(each) for each in (from_item, largest, around_breaks, of_an_object)]
    last = compiled(returned)
    for turn in range(7):
        x = torch.full((3,), float(turn))
        if turn % 2:
            x[turn // 2 % 2] = NAN
        Settings.rate = float(turn) if turn % 3 else float("nan")
        yield [f(x) for f in functions]
        k = float(turn) if turn % 3 else float("nan")
        found = last(x, k)
        yield found[0], k in found[1], k in found[2]
    Settings.rate = 1.0


@TABLE.parametrize()
def test_keys_are_the_programs(trap: Trap) -> None:
    hold(trap)
