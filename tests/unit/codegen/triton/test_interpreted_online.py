"""Rows that go in turns: the largest element and the sum of exponentials in one sweep, and sweeps that go back."""

import math

import pytest
import torch
from tests.unit.codegen.triton import interpreted
from tests.unit.codegen.triton.test_interpreted_graphs import fused, softmax
from tests.unit.fuse import graphs as machine
from tests.unit.fuse.graphs import check, kernels

from framefuse.codegen.specialisation import Specialisation
from framefuse.codegen.triton import blocks
from framefuse.codegen.triton.emitter import emit
from framefuse.ir import costs
from framefuse.ir.dtypes import BFLOAT16, FLOAT32, FLOAT64


@pytest.fixture(autouse=True)
def short_turns(monkeypatch):
    monkeypatch.setattr(machine, "interpret", interpreted.run)
    narrow = ("AGAIN_NARROW", (64, 2))
    for name, value in (("ROW", 64), ("TURN", (32, 1)), ("AGAIN", (64, 2)), narrow, ("ACROSS", (16, 8)), ("BUSY", 1)):
        monkeypatch.setattr(blocks, name, value)


def text_of(schedule):
    (kernel,) = kernels(schedule)
    return emit(kernel, Specialisation()).text


def spread(b, row, x):
    return b.expand(b.reshape(row, x.shape[0], 1), x.shape)


def largest_or_zero(b, x):
    top = b.reduce("amax", x, 1)
    return b.where(b.eq(b.abs(top), math.inf), 0.0, top)


def logsumexp(b, x):
    safe = largest_or_zero(b, x)
    total = b.reduce("sum", b.exp(b.sub(x, spread(b, safe, x))), 1)
    return b.add(b.log(total), safe)


def special(columns, dtype=torch.float32):
    """Rows with infinities of both signs, with NaN, of -inf alone, and whose largest comes first or last."""
    x = torch.randn(7, columns, dtype=dtype) * 3
    x[0, columns // 2], x[1], x[2, 7 % columns] = math.inf, -math.inf, math.nan
    x[3, : columns // 2], x[3, -1], x[4, 0], x[5, -1] = -math.inf, -math.inf, 50.0, 50.0
    return x


def with_a_sum(b, x):
    return b.sub(logsumexp(b, x), b.reduce("sum", b.mul(x, 0.5), 1))


@pytest.mark.parametrize("columns", [65, 301])
def test_a_sum_beside_the_largest_leaves_one_sweep(columns):
    graph, schedule = fused(with_a_sum, ((7, columns), FLOAT32))
    text = text_of(schedule)
    assert "device.rescaled" in text and text.count("for ") == 1
    check(graph, schedule, torch.randn(7, columns), rtol=1e-5, atol=1e-5)
    check(graph, schedule, special(columns), rtol=1e-5, atol=1e-4)


@pytest.mark.parametrize("columns", [65, 97, 301, 512])
@pytest.mark.parametrize("function", [softmax, logsumexp])
@pytest.mark.parametrize("dtype", [FLOAT32, FLOAT64], ids=str)
def test_one_sweep_finds_the_largest_and_the_sum(columns, function, dtype):
    graph, schedule = fused(function, ((7, columns), dtype))
    text = text_of(schedule)
    assert "device.rescaled" in text and text.count("for ") == (2 if function is softmax else 1)
    check(graph, schedule, special(columns, dtype.torch))
    check(graph, schedule, torch.full((7, columns), -80.0, dtype=dtype.torch))


def across(function):
    """The same of columns, which lie across memory."""

    def turned(b, x):
        result = function(b, b.permute(x, 1, 0))
        return b.permute(result, 1, 0) if len(result.shape) == 2 else result

    return turned


@pytest.mark.parametrize("rows", [65, 97])
@pytest.mark.parametrize("function", [softmax, logsumexp])
def test_one_sweep_finds_them_in_long_columns(rows, function, monkeypatch):
    for name, value in (("COLUMN", 32), ("GPU_SOFTMAX_COLUMNS", 64), ("GPU_LANES", 64), ("GPU_FEW_ROWS", (1, 1))):
        monkeypatch.setattr(costs, name, value)
    graph, schedule = fused(across(function), ((rows, 70), FLOAT32))
    text = text_of(schedule)
    assert "device.rescaled" in text and text.count("for ") == (2 if function is softmax else 1)
    values = torch.randn(rows, 70)
    values[:, :7] = special(rows).T
    check(graph, schedule, values)


def test_of_16_bit_floats(monkeypatch):
    monkeypatch.setattr(blocks, "TILE", 64)

    def make(b, x):
        wide = b.cast(b.cast(b.mul(b.cast(x, dtype=FLOAT32), 2.0), dtype=BFLOAT16), dtype=FLOAT32)
        return b.cast(softmax(b, wide), dtype=BFLOAT16)

    for columns in (200, 201, 333):
        graph, schedule = fused(make, ((5, columns), BFLOAT16))
        text = text_of(schedule)
        assert "device.rescaled" in text and ("shift" in text) == (columns % 8 != 0)  # where no vector begins
        check(graph, schedule, torch.randn(5, columns).bfloat16(), rtol=2e-2, atol=2e-2)


@pytest.mark.parametrize("columns", [65, 150])
@pytest.mark.parametrize("op", ["amax", "amin", "sum", "prod", "argmax", "argmin"])
def test_rows_of_16_bits_that_begin_anywhere(columns, op, monkeypatch):
    monkeypatch.setattr(blocks, "TILE", 64)

    def make(b, x, w):
        y = b.add(b.cast(x, dtype=FLOAT32), spread(b, w, x))
        found = b.reduce(op, y, 1)
        whole = b.cast(found, dtype=FLOAT32) if op.startswith("arg") else found
        return found, b.cast(b.sub(y, spread(b, whole, x)), dtype=BFLOAT16)

    graph, schedule = fused(make, ((9, columns), BFLOAT16), (9,))
    assert "shift" in text_of(schedule)
    x = torch.randn(9, columns).bfloat16()
    x[0, -1], x[1, 0], x[2, 0], x[3, -1], x[5, 3] = 9, 9, -9, -9, math.nan
    check(graph, schedule, x, torch.rand(9), rtol=2e-2, atol=2e-2)


def test_across_memory():
    def make(b, x):
        top = b.reduce("amax", x, 1)
        away = b.exp(b.sub(x, b.expand(b.reshape(top, 3, 1, 21), x.shape)))
        return b.div(away, b.expand(b.reshape(b.reduce("sum", away, 1), 3, 1, 21), x.shape))

    graph, schedule = fused(make, (3, 101, 21))
    assert "device.rescaled" in text_of(schedule)
    check(graph, schedule, torch.randn(3, 101, 21))


@pytest.mark.parametrize("other", [lambda b, x: b.mul(x, 2.0), lambda b, x: b.neg(x)], ids=["scaled", "negated"])
def test_a_sum_over_other_values_has_its_own_sweep(other):
    def make(b, x):
        return b.reduce("sum", b.exp(b.sub(other(b, x), spread(b, b.reduce("amax", x, 1), x))), 1)

    graph, schedule = fused(make, (5, 200))
    assert "device.rescaled" not in text_of(schedule)
    check(graph, schedule, torch.randn(5, 200))


@pytest.mark.parametrize("columns", [65, 128, 301])
def test_a_row_is_read_again_from_its_end(columns, monkeypatch):
    """Its last elements are what caches still hold; they keep what is read again, and no more than that."""
    monkeypatch.setattr(blocks, "BUSY", 512)

    def make(b, x):
        return b.div(x, spread(b, b.sqrt(b.reduce("sum", b.mul(x, x), 1)), x))

    graph, schedule = fused(make, (5, columns))
    text = text_of(schedule)
    assert text.count("for ") == 2 and text.count("for back") == 1
    assert text.count("evict_last") == 1 and text.count("evict_first") == 2
    check(graph, schedule, torch.randn(5, columns))
