"""Places whose numbers moved are found below arguments and long-lived objects; what is gone or no number is not."""

from __future__ import annotations

from typing import Any

import torch

from framefuse.capture.entry import bind
from framefuse.capture.record import record
from framefuse.guards.changes import moving

RATE = 2.0


class Holder:
    def __init__(self, **named: Any) -> None:
        self.__dict__.update(named)


def program(x, holder, table, row):
    return x * holder.lr + table["n"] * row[1] + RATE + (1 if holder.name == "a" else 2)


def arguments(lr: Any = 0.5, n: Any = 3, element: Any = 7, name: Any = "a") -> tuple[Any, ...]:
    return torch.ones(2), Holder(lr=lr, name=name), {"n": n}, [0, element]


def found(*now: Any, **changed: Any) -> set[str]:
    trace = record(program, arguments(), {}).trace
    assert trace is not None
    values = now or arguments(**changed)
    return {str(source) for source in moving([trace.assumptions], bind(program, values, {}))}


def test_equal_numbers_do_not_move():
    assert found() == set()


def test_numbers_that_differ_move():
    assert found(lr=0.25, n=4) == {"args[1].lr", "args[2]['n']"}
    assert found(element=8) == {"args[3][1]"}


def test_minus_zero_differs_from_zero():
    trace = record(program, arguments(lr=0.0), {}).trace
    assert trace is not None
    moved = moving([trace.assumptions], bind(program, arguments(lr=-0.0), {}))
    assert {str(source) for source in moved} == {"args[1].lr"}


def test_another_type_is_another_trace():
    assert found(lr=1, n=True) == set()


def test_a_string_within_an_argument_moves():
    assert found(name="b") == {"args[1].name"}
    assert found(name=3) == set()


def test_what_is_gone_does_not_move():
    assert found(torch.ones(2), Holder(), {}, [1]) == set()
    assert found(torch.ones(2), None, None, None) == set()


def test_a_global_moves():
    global RATE
    trace = record(program, arguments(), {}).trace
    assert trace is not None
    RATE = 3.0
    try:
        moved = moving([trace.assumptions], bind(program, arguments(), {}))
    finally:
        RATE = 2.0
    assert {source.key for source in moved} == {"RATE"}


def test_a_place_that_moved_is_a_symbol_of_the_next_trace():
    first = record(program, arguments(), {}).trace
    assert first is not None
    moved = moving([first.assumptions], bind(program, arguments(lr=0.25), {}))
    second = record(program, arguments(lr=0.25), {}, moving=moved).trace
    assert second is not None
    kinds = {str(fact.source): fact.kind for fact in second.assumptions.facts}
    assert kinds["args[1].lr"] == "real"
    assert kinds["args[2]['n']"] == "int"
    # Once free, it stays free: its value needs no comparison any more.
    again = moving([first.assumptions, second.assumptions], bind(program, arguments(), {}))
    assert {str(source) for source in again} == {"args[1].lr"}
