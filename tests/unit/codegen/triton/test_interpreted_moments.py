"""Squared distances from the mean in one pass over memory, in every form of a nest, against float64."""

import pytest
import torch
from tests.unit.codegen import kernels as k
from tests.unit.codegen.triton import interpreted
from tests.unit.codegen.triton.interpreted import run
from tests.unit.codegen.triton.test_interpreted_graphs import fused, limits, titles  # noqa: F401
from tests.unit.fuse import graphs as machine
from tests.unit.fuse.graphs import check

from framefuse.codegen.triton import blocks
from framefuse.ir.dtypes import FLOAT32, FLOAT64


def distances(x, axes):
    wide = x.double()
    return (wide - wide.mean(axes, True)).square().sum(axes)


@pytest.mark.parametrize("dtype", [FLOAT32, FLOAT64], ids=str)
@pytest.mark.parametrize(("rows", "columns"), [(1, 1), (5, 0), (3, 7), (70, 300), (2, 20000)])
def test_rows_and_columns(rows, columns, dtype):
    """Far from zero, where a difference of two sums of squares would have no digit left."""
    x = torch.randn(rows, columns, dtype=dtype.torch) + 1000
    bound = 1e-4 if dtype is FLOAT32 else 1e-11
    for kernel, axis, size in ((k.row_operation, 1, rows), (k.column_operation, 0, columns)):
        out = torch.zeros(size, dtype=dtype.torch)
        assert run(kernel("squares", dtype), [x.flatten(), out], [rows, columns]) == 0
        torch.testing.assert_close(out.double(), distances(x, axis), rtol=bound, atol=1e-9)


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
@pytest.mark.parametrize("columns", [5, 40000])
@pytest.mark.parametrize("place", [0, -1])
def test_what_is_no_number_stays_in_its_row(value, columns, place):
    x, out = torch.randn(3, columns), torch.zeros(3)
    x[1, place] = value
    assert run(k.row_operation("squares"), [x.flatten(), out], [3, columns]) == 0
    assert out.isnan().tolist() == [False, True, False]


@pytest.mark.parametrize("shape", [(3, 4, 5), (7, 9, 6), (1, 1, 1), (2, 0, 3), (0, 2, 3), (33, 2, 17)], ids=str)
@pytest.mark.parametrize("axes", [(0,), (1,), (2,), (0, 2), (0, 1, 2)], ids=str)
def test_over_any_axes(shape, axes, limits):  # noqa: F811
    """With the sum of the same values, of which one pass is enough, and with something done to each of them."""

    def moments(b, x):
        return b.reduce("sum", x, *axes), b.reduce("squares", x, *axes)

    graph, schedule = fused(moments, shape)
    assert 0 in shape or len(titles(schedule)) in ((1, 2) if limits == "stages" else (1,))
    check(graph, schedule, torch.randn(shape) + 10, rtol=1e-4, atol=1e-4)
    graph, schedule = fused(lambda b, x: b.sqrt(b.reduce("squares", b.mul(x, 2.0), *axes)), shape)
    check(graph, schedule, torch.randn(shape) + 10, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("strides", [(1, 7, 63), (63, 1, 9), (126, 14, 2)], ids=str)
def test_over_memory_of_any_order(strides, limits):  # noqa: F811
    shape = (7, 9, 7)
    for axes in ((0,), (1,), (2,), (0, 1), (0, 2)):
        graph, schedule = fused(lambda b, x, axes=axes: b.reduce("squares", x, *axes), (shape, FLOAT32, strides))
        check(graph, schedule, torch.randn(2000).as_strided(shape, strides), rtol=1e-4, atol=1e-4)


def test_turns_across_memory(monkeypatch):
    monkeypatch.setattr(machine, "interpret", interpreted.run)
    monkeypatch.setattr(blocks, "ACROSS", (16, 8))
    graph, schedule = fused(lambda b, x: b.reduce("squares", x, 1), (5, 301, 33))
    assert len(titles(schedule)) == 1
    check(graph, schedule, torch.randn(5, 301, 33) + 5, rtol=1e-4, atol=1e-4)
