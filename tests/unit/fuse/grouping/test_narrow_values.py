"""What a GPU keeps in memory of values in 16 bits: those themselves, and columns beside the sums over them."""

import pytest
from tests.unit.fuse.graphs import Builder, kernels

from framefuse.fuse import fuse
from framefuse.ir import costs
from framefuse.ir.dtypes import BFLOAT16, FLOAT32
from framefuse.ir.target import Target

GPU = Target("cpu", "triton", launch=2500.0, products=False, scratch=False)


def written(schedule):
    pairs = ((kernel.title, buffer) for kernel in kernels(schedule) for buffer in kernel.buffers)
    return [(title, buffer.dtype.name) for title, buffer in pairs if buffer.written]


def test_a_value_that_two_kernels_widen_is_kept_narrow():
    b = Builder()
    x = b.input((4096, 4096), BFLOAT16)
    wide = b.cast(b.cast(b.sin(b.cast(x, dtype=FLOAT32)), dtype=BFLOAT16), dtype=FLOAT32)
    graph = b.graph(b.reduce("sum", wide, 0), b.reduce("sum", b.exp(wide), 1))
    stored = written(fuse(graph, targets=lambda device: GPU))
    assert [dtype for _, dtype in stored].count("bfloat16") == 1, "the value, beside sums of its chunks"
    sums = [(title, dtype) for title, dtype in stored if dtype != "bfloat16"]
    assert len({title for title, _ in sums}) == len(sums) == 3, "a sum of each kernel, and nothing wide"


@pytest.mark.parametrize("axis", [0, 1])
def test_what_is_summed_is_written_where_it_lies(axis):
    """Along memory and across it: one kernel for the value and its sums, and one for the total of their chunks."""
    b = Builder()
    x = b.input((1 << 18, 64) if axis == 0 else (64, 1 << 18))
    value = b.exp(x)
    graph = b.graph(value, b.reduce("sum", value, axis))
    assert costs.ACROSS < 1 << 18
    assert len(kernels(fuse(graph, targets=lambda device: GPU))) == 2
