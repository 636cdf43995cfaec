"""The loops that a CPU gets: which axis is a vector loop where the axis innermost in memory is short."""

import pytest
import torch
from tests.unit.fuse.graphs import Builder, check, kernels, text_of

from framefuse.fuse import fuse
from framefuse.ir.loops import Loop, LoopKind
from framefuse.ir.loops.walk import statements


def lengths(schedule):
    """The extents of the innermost vector loops."""
    loops = [s for kernel in kernels(schedule) for s in statements(kernel.body) if isinstance(s, Loop)]
    return [loop.extent.constant for loop in loops if loop.kind is LoopKind.VECTOR]


@pytest.mark.parametrize("colours", [2, 3])
def test_a_short_inner_axis_is_no_vector_loop(colours):
    b = Builder()
    x = b.input((colours, 64, 128))
    graph = b.graph(b.mul(b.permute(x, 1, 2, 0), 2.0))
    schedule = fuse(graph)
    assert lengths(schedule) == [64 * 128], text_of(graph)
    check(graph, schedule, torch.randn(colours, 64, 128))


def test_an_axis_that_nothing_lies_along_is_no_better():
    b = Builder()
    x, signs = b.input((64, 2)), b.input((2,))
    graph = b.graph(b.mul(x, b.expand(signs, (64, 2))))
    schedule = fuse(graph)
    assert lengths(schedule) == [2]
    check(graph, schedule, torch.randn(64, 2), torch.randn(2))


@pytest.mark.parametrize("colours", [4, 5])
def test_a_longer_inner_axis_stays_one(colours):
    b = Builder()
    x = b.input((colours, 8, 9))
    graph = b.graph(b.mul(b.permute(x, 1, 2, 0), 2.0))
    schedule = fuse(graph)
    check(graph, schedule, torch.randn(colours, 8, 9))
    assert 72 not in lengths(schedule)
