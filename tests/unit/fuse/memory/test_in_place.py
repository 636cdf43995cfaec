"""A kernel may overwrite an operand only if each element is read for the last time before it is written."""

import torch
from tests.unit.fuse.graphs import Builder, check, kernels, symbol
from tests.unit.fuse.test_schedule import softmax

from framefuse.fuse import fuse
from framefuse.fuse.memory.in_place import overwritable
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
