"""A GPU computes wide windows in kernels of their own, where the loops of a sum would be slow with them."""

import pytest
from tests.unit.fuse.graphs import Builder

from framefuse.fuse import fuse
from framefuse.ir.dtypes import FLOAT32
from framefuse.ir.schedule import RunKernel
from framefuse.ir.target import Target

GPU = Target("cpu", "triton", launch=2500.0, products=False, scratch=False)


@pytest.mark.parametrize(("side", "kernels"), [(5, 3), (3, 2)])
def test_a_wide_window_is_not_computed_in_the_loops_of_a_sum(side, kernels):
    """Beside it there are two kernels for the sum, of chunks and of their totals."""
    b = Builder()
    x = b.input((64, 256, 256), FLOAT32)
    shape = (64, 256 - side + 1, 256 - side + 1)
    window = None
    for row in range(side):
        for column in range(side):
            part = b.slice(x, (0, row, column), shape)
            window = part if window is None else b.add(window, part)
    schedule = fuse(b.graph(b.reduce("sum", window, 0, 1, 2)), targets=lambda device: GPU)
    assert sum(isinstance(item, RunKernel) for item in schedule.items) == kernels
