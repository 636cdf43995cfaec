"""The loops that a CPU gets: which axis is a vector loop where the axis innermost in memory is short."""

import pytest
import torch
from tests.unit.fuse.graphs import Builder, check, kernels, text_of

from framefuse.fuse import fuse
from framefuse.ir.loops import Let, Loop, LoopKind, Store
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
    (kernel,) = kernels(schedule)
    *_, loop = (part for part in statements(kernel.body) if isinstance(part, Loop))
    stores = [part.index for part in loop.body if isinstance(part, Store)]
    assert [index.coefficient(loop.axis).constant for index in stores] == [colours] * colours, text_of(graph)
    check(graph, schedule, torch.randn(colours, 64, 128))


def flat(schedule):
    """The extents of the loops in which vectors run over all points."""
    loops = [s for kernel in kernels(schedule) for s in statements(kernel.body) if isinstance(s, Loop)]
    return [loop.extent.constant for loop in loops if loop.kind is LoopKind.PARALLEL_VECTOR]


@pytest.mark.parametrize(("width", "one"), [(1, True), (2, True), (8, False), (16, False), (64, False)])
def test_rows_that_fill_no_vector_are_one_loop(width, one):
    """What is along memory there is read as it lies, and the rest at positions that are found by division."""
    b = Builder()
    x, signs = b.input((12, width)), b.input((width,))
    graph = b.graph(b.mul(x, b.expand(signs, (12, width))))
    schedule = fuse(graph)
    assert (flat(schedule), lengths(schedule)) == (([12 * width], []) if one else ([], [width]))
    check(graph, schedule, torch.randn(12, width), torch.randn(width))


@pytest.mark.parametrize(("width", "across"), [(2, True), (5, True), (40, False)])
@pytest.mark.parametrize("op", ["sum", "amax"])
def test_short_rows_are_reduced_side_by_side(op, width, across):
    b = Builder()
    x = b.input((640, width))
    graph = b.graph(b.reduce(op, x, 1, keep=False))
    schedule = fuse(graph)
    assert flat(schedule) == ([640] if across else []) and lengths(schedule) == ([] if across else [width])
    check(graph, schedule, torch.randn(640, width))


@pytest.mark.parametrize("colours", [4, 5])
def test_a_longer_inner_axis_stays_one(colours):
    b = Builder()
    x = b.input((colours, 8, 9))
    graph = b.graph(b.mul(b.permute(x, 1, 2, 0), 2.0))
    schedule = fuse(graph)
    check(graph, schedule, torch.randn(colours, 8, 9))
    assert 72 not in lengths(schedule)


@pytest.mark.parametrize(("sizes", "shared", "inside"), [
    ((12, 4, 12, 29), 1, 2),
    ((3, 12, 37, 29), 2, 1),
    ((2, 3, 37, 29), 3, 0),
    ((3, 12, 37, 64), 3, 0),
])  # fmt: skip
def test_threads_share_as_few_axes_as_keep_them_busy(sizes, shared, inside):
    """Behind them short rows are loops, whose positions nobody has to find."""
    b = Builder()
    x = b.input(tuple(size + 1 for size in sizes))
    graph = b.graph(b.mul(b.slice(x, (0, 0, 0, 0), sizes, (1, 1, 1, 1)), 2.0))
    schedule = fuse(graph)
    check(graph, schedule, torch.randn([size + 1 for size in sizes]))
    (kernel,) = kernels(schedule)
    (rows,) = kernel.body
    assert rows.kind is LoopKind.PARALLEL and sum(isinstance(part, Let) for part in rows.body) == (shared > 1) * shared
    loops = [part for part in statements(rows.body) if isinstance(part, Loop)]
    assert [loop.kind for loop in loops] == [LoopKind.SERIAL] * inside + [LoopKind.VECTOR]


def rows_and_sum(graph):
    """The kinds of the loop over rows and of the loop that sums one, outermost first, in the only kernel."""
    (kernel,) = kernels(fuse(graph))
    loops = [part for part in statements(kernel.body) if isinstance(part, Loop)]
    return [loop.kind for loop in loops]


def test_short_rows_across_memory_are_lanes():
    """A lane for each sum: the elements of one lie apart, the sums are neighbours."""
    b = Builder()
    x = b.input((40, 5, 7))
    graph = b.graph(b.reduce("sum", b.slice(x, (0, 0, 1), (40, 5, 1)), 1, 2))
    assert rows_and_sum(graph) == [LoopKind.PARALLEL_VECTOR, LoopKind.SERIAL], text_of(graph)
    check(graph, fuse(graph), torch.randn(40, 5, 7))


def test_the_elements_of_a_window_are_no_lanes():
    b = Builder()
    x = b.input((6, 20))
    parts = (b.slice(x, (start, 0), (5, 20)) for start in (0, 1))
    windows = b.cat([b.reshape(part, 5, 1, 20) for part in parts], 1)
    graph = b.graph(b.reduce("sum", windows, 1))
    assert rows_and_sum(graph) == [LoopKind.PARALLEL_VECTOR, LoopKind.SERIAL, LoopKind.SERIAL], text_of(graph)
    check(graph, fuse(graph), torch.randn(6, 20))


def test_rows_along_memory_are_summed_by_lanes():
    b = Builder()
    graph = b.graph(b.reduce("sum", b.input((40, 50)), 1))
    assert rows_and_sum(graph) == [LoopKind.PARALLEL, LoopKind.VECTOR]
