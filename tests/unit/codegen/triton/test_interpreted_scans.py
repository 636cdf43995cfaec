"""Scans on a GPU, also in segments of rows, compute what torch computes, by Triton's interpreter."""

import math

import pytest
import torch
from tests.unit.codegen.triton import interpreted
from tests.unit.fuse import graphs as machine
from tests.unit.fuse.graphs import Builder, check, kernels, symbol

from framefuse.fuse import fuse
from framefuse.ir import costs
from framefuse.ir.dtypes import FLOAT32, FLOAT64, INT64, UINT8
from framefuse.ir.target import Target

GPU = Target("cpu", "triton", launch=2500.0, products=True, scratch=False)
SCANS = ("cumsum", "cumprod", "cummax", "cummin", "logcumsumexp")


@pytest.fixture(autouse=True)
def small_segments(monkeypatch):
    monkeypatch.setattr(machine, "interpret", interpreted.run)
    monkeypatch.setattr(costs, "GPU_SEGMENT", (8, 4))
    monkeypatch.setattr(costs, "GPU_SEGMENTS", 2)
    monkeypatch.setattr(costs, "GPU_SEGMENT_PROGRAMS", 1)


def fused(make, *inputs):
    """The graph of ``make`` for rank-2 inputs of sizes that are known at run time alone, recorded as 24."""
    b = Builder(s0=24, s1=24)
    nodes = [b.input((symbol("s0"), symbol("s1")), dtype) for dtype in inputs]
    results = make(b, *nodes)
    graph = b.graph(*(results if isinstance(results, tuple) else (results,)))
    return graph, fuse(graph, targets=lambda device: GPU, check=True)


def scan(b, op, x, axis):
    return b.node(op, (x,), x.shape, x.dtype, axis=axis)


def turned(b, x, axis):
    starts = [x.shape[axis] - 1 if place == axis else 0 for place in range(2)]
    return b.slice(x, starts, x.shape, [-1 if place == axis else 1 for place in range(2)])


def drawn(rows, columns, dtype):
    x = torch.randn(rows, columns) * 3
    return x.abs().to(dtype.torch) if dtype is UINT8 else x.to(dtype.torch)


def titles(schedule):
    return [kernel.title for kernel in kernels(schedule)]


KINDS = [(op, dtype) for op in SCANS for dtype in (FLOAT32, FLOAT64)]
KINDS += [("cumsum", INT64), ("cumprod", INT64), ("cummax", INT64), ("cummin", UINT8)]


@pytest.mark.parametrize("axis", [0, 1])
@pytest.mark.parametrize(("op", "dtype"), KINDS, ids=str)
def test_each_scan_in_segments(op, dtype, axis):
    graph, schedule = fused(lambda b, x: scan(b, op, x, axis), dtype)
    assert titles(schedule) == [f"{op}_totals", f"{op}_along", op]
    for rows, columns in ((1, 30), (13, 3), (3, 17)):
        x = drawn(rows, columns, dtype) * (0.3 if op == "cumprod" and dtype.is_float else 1)
        check(graph, schedule, x.to(dtype.torch), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("axis", [0, 1])
@pytest.mark.parametrize("op", SCANS)
def test_infinities_and_nan_begin_where_they_stand(op, axis):
    graph, schedule = fused(lambda b, x: scan(b, op, x, axis), FLOAT32)
    x = torch.randn(24, 10) * 0.5 if axis == 0 else torch.randn(10, 24) * 0.5
    for place, value in enumerate((math.inf, -math.inf, math.nan, 0.0)):
        x[(19, place) if axis == 0 else (place, 19)] = value
    x[(slice(None), 5) if axis == 0 else (5, slice(None))] = -math.inf
    check(graph, schedule, x, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("axis", [0, 1])
def test_from_the_end_on_with_what_is_around(axis):
    def make(b, x, y):
        back = turned(b, scan(b, "cumsum", turned(b, b.exp(x), axis), axis), axis)
        return b.mul(b.add(back, 1.0), y)

    graph, schedule = fused(make, FLOAT32, FLOAT32)
    assert len(titles(schedule)) == 3
    for rows, columns in ((9, 13), (25, 2)):
        check(graph, schedule, torch.randn(rows, columns), torch.randn(rows, columns), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("axis", [0, 1])
def test_a_scan_of_what_another_gives(axis):
    graph, schedule = fused(lambda b, x: scan(b, "cumsum", b.abs(scan(b, "cummax", x, axis)), axis), FLOAT64)
    assert len(titles(schedule)) == 5
    for rows, columns in ((9, 13), (25, 2)):
        check(graph, schedule, torch.randn(rows, columns, dtype=torch.float64))


def test_two_ways_are_two_kernels():
    def make(b, x):
        return b.add(scan(b, "cumsum", x, 1), turned(b, scan(b, "cumsum", turned(b, x, 1), 1), 1))

    graph, schedule = fused(make, FLOAT64)
    assert len(titles(schedule)) == 6
    check(graph, schedule, torch.randn(3, 50, dtype=torch.float64))


def test_many_rows_are_not_cut(monkeypatch):
    monkeypatch.setattr(costs, "GPU_SCAN_PROGRAMS", 0)
    graph, schedule = fused(lambda b, x: scan(b, "cumsum", x, 1), FLOAT32)
    assert titles(schedule) == ["cumsum"]
    check(graph, schedule, torch.randn(7, 50))
