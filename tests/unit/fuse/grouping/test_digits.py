"""Values that a kernel would find by dividing positions are kept in memory where that costs less."""

import re

import pytest
import torch
from tests.unit.fuse.graphs import Builder, check, kernels, text_of

from framefuse.fuse import fuse
from framefuse.ir.loops.print import kernel_text


def skewed(rows, columns):
    """Rows of which each is shifted by one more element: padded, taken as one line, and cut into longer rows."""
    b = Builder()
    x = b.input((32, rows, columns))
    wide = b.pad(x, (0, 0, 0), (32, rows, columns + 1))
    flat = b.pad(b.reshape(wide, 32, rows * (columns + 1)), (0, 0), (32, (rows + 1) * columns + rows))
    longer = b.slice(flat, (0, 0), (32, rows * (columns + 2) - rows * 2 + rows))
    return b.graph(b.mul(b.reshape(longer, 32, columns + 1, rows), 2.0))


@pytest.mark.parametrize(("rows", "columns"), [(31, 60), (33, 7)])
def test_a_padded_value_behind_a_reshape_is_kept(rows, columns):
    graph = skewed(rows, columns)
    schedule = fuse(graph)
    check(graph, schedule, torch.randn(32, rows, columns))
    first, second = kernels(schedule)
    assert not re.search(r"//|%", kernel_text(first) + kernel_text(second)), text_of(graph)


def test_what_lies_in_one_line_is_read_without_divisions():
    """A reshape that no axes follow: pointwise code is computed where it is used, by the position in memory alone."""
    b = Builder()
    x = b.input((301, 40))
    graph = b.graph(b.mul(b.reshape(b.exp(x), 40, 301), 2.0))
    schedule = fuse(graph)
    (kernel,) = kernels(schedule)
    assert not re.search(r"//|%", kernel_text(kernel)), kernel_text(kernel)
    check(graph, schedule, torch.randn(301, 40))


def test_a_small_value_is_found_by_dividing():
    b = Builder()
    x = b.input((5, 6))
    graph = b.graph(b.mul(b.reshape(b.pad(x, (0, 0), (5, 7)), 7, 5), 2.0))
    schedule = fuse(graph)
    assert len(kernels(schedule)) == 1
    check(graph, schedule, torch.randn(5, 6))
