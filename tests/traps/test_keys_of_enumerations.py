"""Dicts and sets whose keys are members of enumerations: registries and settings of libraries."""

from __future__ import annotations

import enum

import torch
from tests.traps.trap import Table, Trap, hold

TABLE = Table()
trap = TABLE.trap


class Plain(enum.Enum):
    FIRST = 1
    SECOND = 2


class Text(str, enum.Enum):  # noqa: UP042 - as programs write it
    FIRST = "first"
    SECOND = "second"


class Number(enum.IntEnum):
    FIRST = 1
    SECOND = 2


class Own(enum.Enum):
    FIRST = 1

    def __hash__(self):
        return 7


KINDS = (Plain, Text, Number)


@trap(traces=3, hits=9)
def a_registry_is_read(compiled):
    for kind in KINDS:
        registry = {kind.FIRST: 2.0, kind.SECOND: 3.0}
        names = {kind.FIRST: {"a", "b"}, kind.SECOND: {"a"}}

        @compiled
        def f(x, wanted, registry=registry, names=names, kind=kind):
            kept = {key: value for key, value in wanted.items() if key in names[kind.SECOND]}
            for key, value in registry.items():
                x = x * value if key is kind.FIRST else x + value
            return x * registry[kind.FIRST] + len(kept) + registry.get(kind.SECOND)

        for _ in range(4):
            yield f(torch.randn(3), {"a": 1, "b": 2})


@trap(traces=20, hits=9)
def entries_change_between_calls(compiled):
    for kind in KINDS:
        scales, chosen = {kind.FIRST: 2.0, kind.SECOND: 3.0}, {kind.FIRST}

        @compiled
        def f(x, scales=scales, chosen=chosen, kind=kind):
            return x * scales[kind.FIRST] * (2 if kind.SECOND in chosen else 1) * len(scales)

        for number in range(3):
            yield f(torch.randn(3))
            scales[kind.FIRST] = 2.5 + number
            yield f(torch.randn(3))
            (chosen.discard if number % 2 else chosen.add)(kind.SECOND)
            yield f(torch.randn(3))
        del scales[kind.SECOND]
        yield f(torch.randn(3))
        first = scales.pop(kind.FIRST)
        scales[kind.SECOND], scales[kind.FIRST] = 1.0, first
        yield f(torch.randn(3))


@trap(traces=20, hits=3)
def a_member_is_equal_to_its_text_or_number(compiled):
    for kind, key in ((Text, "first"), (Number, 1)):

        @compiled
        def f(x, y, table, kind=kind, key=key):
            before = table[kind.FIRST]
            table[key] = y
            return x * table[kind.FIRST] + before + len(table)

        for number in range(5):
            members = {kind.FIRST: torch.randn(3), kind.SECOND: torch.randn(3)}
            table = members if number != 3 else {key: torch.randn(3), Plain.FIRST: torch.randn(3)}
            yield f(torch.randn(3), torch.randn(3), table), list(table.items())


@trap(traces=20, hits=0)
def a_hash_of_the_programs_own_runs(compiled):
    table = {Own.FIRST: 2.0}
    f = compiled(lambda x: x * table[Own.FIRST])
    for _ in range(4):
        yield f(torch.randn(3))


@trap(traces=4, hits=6)
def a_member_of_a_size_beside_one_by_name(compiled):
    @compiled
    def f(x):
        member = Plain(x.shape[0] % 2 + 1)
        return x * member.value, member is Plain.FIRST, Plain["SECOND"].value

    for size in (3, 3, 5, 2, 3, 5, 1, 7, 4, 6):
        yield f(torch.randn(size, 2))


@TABLE.parametrize()
def test_keys_are_the_programs(trap: Trap) -> None:
    hold(trap)
