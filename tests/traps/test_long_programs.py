"""Long programs: unrolled loops, deep numbers and many pieces compile without deep recursion, and run compiled."""

from __future__ import annotations

import math
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import framefuse
from framefuse.api import compiled_function

LONG = 300
STACK = 200  # frames that a call may nest, far fewer than the statements of a program


@contextmanager
def little_stack() -> Iterator[None]:
    depth, frame = 0, sys._getframe()
    while frame is not None:
        depth, frame = depth + 1, frame.f_back  # type: ignore[assignment]
    before = sys.getrecursionlimit()
    sys.setrecursionlimit(depth + STACK)
    try:
        yield
    finally:
        sys.setrecursionlimit(before)


def real_chain(x: Tensor, s: float) -> Tensor:
    for _ in range(LONG):
        s = s * 0.999 + 0.001
        x = x * s
    return x


def real_sum(x: Tensor, s: float) -> Tensor:
    total = 0.0
    for step in range(LONG):
        total = total + math.sqrt(s + step)
    return x * total


def int_chain(x: Tensor, s: float) -> Tensor:
    number = int(s * 100)
    for step in range(LONG):
        number = number // 2 + step
        x = x + number
    return x


def chain(x: Tensor, s: float) -> Tensor:
    for _ in range(LONG):
        x = torch.relu(x) * 1.01 + 0.1
    return x


def steps(x: Tensor, s: float) -> Tensor:
    weight = torch.linspace(-0.5, 0.5, 16).view(4, 4)
    for _ in range(LONG):
        x = torch.tanh(x @ weight + x)
    return x


def outputs(x: Tensor, s: float) -> list[Tensor]:
    found = []
    for _ in range(LONG):
        x = torch.sin(x) + 0.5
        found.append(x)
    return found


def many_pieces(x: Tensor, s: float) -> Tensor:
    return torch.cat([x * number for number in range(LONG)], 0)


def stacked(x: Tensor, s: float) -> Tensor:
    return torch.stack([torch.tanh(x[number % 4]) * number for number in range(LONG)], 1)


def parts_of_one(x: Tensor, s: float) -> Tensor:
    long = x.repeat(LONG, 1)
    hidden = torch.zeros(4)
    for number in range(LONG):
        hidden = torch.tanh(long[number] + hidden)
    return hidden


def sums(x: Tensor, s: float) -> Tensor:
    return torch.stack([x[number % 4 :].sum() for number in range(LONG)])


def written(x: Tensor, s: float) -> Tensor:
    out = torch.zeros(LONG // 4, 4)
    for number in range(LONG // 4):
        out[number] = x[number % 4] * number
    return out


PROGRAMS = [
    real_chain, real_sum, int_chain, chain, steps, outputs, many_pieces, stacked, parts_of_one, sums, written,
]  # fmt: skip


@pytest.mark.parametrize("program", PROGRAMS, ids=lambda program: program.__name__)
@pytest.mark.parametrize("trains", [False, True], ids=["inference", "training"])
def test_long_programs(program: Any, trains: bool) -> None:
    made = framefuse.compile(program, options={"check": True})
    for turn in range(3):
        given = torch.randn(4, 4, generator=torch.Generator().manual_seed(turn)) * 0.5
        found = []
        for function in (program, made):
            x = given.clone().requires_grad_(trains)
            with little_stack():
                value = function(x, 1.0 + turn / 8)
                parts = [value] if isinstance(value, Tensor) else value
                if trains:
                    sum(part.sum() for part in parts).backward()  # type: ignore[union-attr]
            found.append(([part.detach() for part in parts], x.grad))
        torch.testing.assert_close(found[1], found[0], rtol=1e-3, atol=1e-4)
    assert compiled_function(made).dispatch.hits == 2  # type: ignore[union-attr]


def test_a_cell_that_is_unrolled() -> None:
    cell, readout = nn.LSTMCell(3, 5), nn.Linear(5, 2)

    def model(x: Tensor) -> Tensor:
        state = torch.zeros(2, 5), torch.zeros(2, 5)
        for step in range(LONG // 4):
            state = cell(x[step], state)
        return readout(state[0]).sum()

    made = framefuse.compile(model, options={"check": True})
    for turn in range(3):
        x = torch.randn(LONG // 4, 2, 3, generator=torch.Generator().manual_seed(turn))
        found = []
        for function in (model, made):
            cell.zero_grad()
            with little_stack():
                loss = function(x)
                loss.backward()
            found.append((loss.detach(), [p.grad for p in cell.parameters()]))
        torch.testing.assert_close(found[1], found[0], rtol=1e-4, atol=1e-5)
    assert compiled_function(made).dispatch.hits == 2  # type: ignore[union-attr]


TAPE: list[Any] = []


def test_numbers_in_a_tape_of_closures_are_plain_ones_in_the_next_recording() -> None:
    def forward(x: Tensor, scale: float) -> Tensor:
        size = x.shape[0]

        def outer(g: Tensor) -> Tensor:
            return g * scale + size

        TAPE.append(lambda g: outer(g) / size)
        return x * scale

    def backward(x: Tensor, scale: float) -> Tensor:
        while TAPE:
            x = TAPE.pop()(x) * scale
        return x

    calls = [framefuse.compile(f, options={"check": True}) for f in (forward, backward)]
    for turn, rows in enumerate((3, 4, 5, 5, 3)):
        x = torch.randn(rows, 2)
        expected = backward(forward(x, 1.5 + turn), 2.0)
        torch.testing.assert_close(calls[1](calls[0](x, 1.5 + turn), 2.0), expected)
    assert compiled_function(calls[0]).dispatch.hits == 4  # type: ignore[union-attr]
