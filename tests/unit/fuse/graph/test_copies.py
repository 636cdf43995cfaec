"""Reshapes that move memory are made once for the calls that read them."""

import torch
from tests.unit.fuse.graphs import Builder, check, kernels, symbol

from framefuse.fuse import fuse
from framefuse.fuse.graph.copies import with_single_copies
from framefuse.ir.dtypes import FLOAT32
from framefuse.ir.schedule import RunMatmul

ROWS, COLUMNS = symbol("s0"), symbol("s1")


def heads(b, reshapes):
    """Three tensors of heads, as attention gives gradients, put together; in two shapes for two readers."""
    parts = [b.input((1, ROWS, 2, COLUMNS, 4)) for _ in range(3)]
    joined = b.permute(b.cat(parts, 0), 1, 3, 0, 2, 4)
    return [b.reshape(joined, *shape) for shape in reshapes]


def test_two_products_and_a_sum_read_one_copy():
    b = Builder(s0=2, s1=5)
    long, flat = heads(b, [(ROWS, COLUMNS, 24), (ROWS * COLUMNS, 24)])
    w, v = b.input((24, 8)), b.input((7, ROWS * COLUMNS))
    first = b.matmul(long, b.expand(w, (ROWS, 24, 8)))
    graph = b.graph(first, b.matmul(v, flat), b.reduce("sum", flat, 0))
    schedule = fuse(graph)
    assert [len(kernel.buffers) for kernel in kernels(schedule)] == [5]  # the parts, one copy and its sum
    assert sum(isinstance(item, RunMatmul) for item in schedule.items) == 2
    for rows, columns in [(2, 5), (1, 1), (0, 3), (3, 40)]:
        parts = [torch.randn(1, rows, 2, columns, 4) for _ in range(3)]
        check(graph, schedule, *parts, torch.randn(24, 8), torch.randn(7, rows * columns), rtol=1e-4, atol=1e-5)


def test_views_are_not_copied():
    b = Builder(s0=2, s1=5)
    x = b.input((ROWS, 24))
    turned = b.permute(x, 1, 0)
    one, two = b.reshape(turned, 24, ROWS, 1), b.reshape(turned, 1, 24, ROWS)
    y = b.library(torch.cumsum, [one], (24, ROWS, 1), FLOAT32, args=(1,))
    graph = b.graph(y, b.library(torch.cumsum, [two], (1, 24, ROWS), FLOAT32, args=(1,)))
    assert with_single_copies(graph) is graph


def test_a_copy_with_one_reader_stays_as_it_is():
    b = Builder(s0=2, s1=5)
    (long,) = heads(b, [(ROWS, COLUMNS, 24)])
    graph = b.graph(b.matmul(long, b.expand(b.input((24, 8)), (ROWS, 24, 8))))
    assert with_single_copies(graph) is graph
