"""A kernel may overwrite an operand only if each element is read for the last time before it is written."""

import torch
from tests.unit.fuse.graphs import Builder, check, kernels, symbol
from tests.unit.fuse.test_schedule import softmax

from framefuse.fuse import fuse
from framefuse.fuse.memory.in_place import overwritable
from framefuse.ir.dtypes import FLOAT32
from framefuse.ir.loops import Buffer, Kernel, Let, Load, Local, Loop, LoopKind, Number, Store
from framefuse.ir.numbers import Symbol
from framefuse.ir.schedule import RunKernel

S, T = symbol("s0"), symbol("s1")


def pairs(make):
    b = Builder(s0=3, s1=3)
    x = b.input((S, S))
    (kernel,) = kernels(fuse(b.graph(make(b, x))))
    return overwritable(kernel)


def test_pointwise_and_rows():
    assert pairs(lambda b, x: b.exp(x)) == {"b0": ("b1",)}
    assert pairs(softmax) == {"b0": ("b1",)}


def test_moved_elements_and_later_reads():
    assert pairs(lambda b, x: b.add(x, b.permute(x, 1, 0))) == {}
    assert pairs(lambda b, x: b.slice(x, (0, S - 1), (S, S), (1, -1))) == {}
    assert pairs(lambda b, x: b.reduce("sum", x, 1)) == {}


def kernel(*stores, step=2):
    axis = Symbol("i0")
    lets = tuple(Let(f"v{n}", Load("b1", axis.expr * step + read, FLOAT32)) for n, (_, read) in enumerate(stores))
    places = (axis.expr * step + place for place, _ in stores)
    writes = tuple(Store("b0", place, Local(f"v{n}", FLOAT32)) for n, place in enumerate(places))
    count = Symbol("n0")
    loop = Loop(axis, count.expr, (*lets, *writes), LoopKind.PARALLEL_VECTOR)
    buffers = (Buffer("b0", FLOAT32, True), Buffer("b1", FLOAT32, False))
    return Kernel("k", buffers, (Number(count, False),), (loop,), count.expr)


def test_neighbours_that_one_turn_reads_and_writes():
    assert overwritable(kernel((0, 1), (1, 0))) == {"b0": ("b1",)}
    assert overwritable(kernel((0, 0), (1, 0))) == {"b0": ("b1",)}
    assert overwritable(kernel((0, 1), (1, 2))) == {}  # the next turn writes what this one reads
    assert overwritable(kernel((0, 1), (1, 0), step=1)) == {}
    assert overwritable(kernel((0, 1), (2, 0))) == {}


def test_a_schedule_writes_over_dead_buffers():
    b = Builder(s0=3)
    x, w = b.input((S, 4)), b.input((4, 4))
    for _ in range(3):
        x = b.matmul(b.sin(b.matmul(x, w)), w)
    graph = b.graph(x)
    schedule = fuse(graph)
    calls = [item for item in schedule.items if isinstance(item, RunKernel)]
    assert all(call.kernel.buffers[0].aliases == "b1" for call in calls)
    check(graph, schedule, torch.randn(3, 4), torch.randn(4, 4))
