"""Short rows that positions alone decide are read from memory on a CPU, where many others have the same."""

import pytest
import torch
from tests.unit.fuse.graphs import Builder, check, kernels

from framefuse.fuse import fuse
from framefuse.ir.dtypes import FLOAT32, INT64


@pytest.mark.parametrize(("count", "side", "expected"), [(200, 3, 2), (20, 3, 1), (200, 32, 1)])
def test_a_small_matrix_of_positions_is_made_once_for_many(count, side, expected):
    b = Builder()
    x = b.input((count, side, side))
    line = b.node("iota", (), (side,), INT64, start=0, step=1)
    rows, columns = (b.expand(b.reshape(line, *shape), (side, side)) for shape in ((side, 1), (1, side)))
    eye = b.cast(b.eq(rows, columns), dtype=FLOAT32)
    graph = b.graph(b.add(x, b.expand(b.reshape(eye, 1, side, side), (count, side, side))))
    schedule = fuse(graph)
    assert len(kernels(schedule)) == expected
    check(graph, schedule, torch.randn(count, side, side))
