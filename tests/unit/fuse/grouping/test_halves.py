"""Halves that are computed from few elements and joined are one kernel of a GPU."""

import pytest
from tests.unit.fuse.graphs import Builder, kernels, symbol

from framefuse.fuse import fuse
from framefuse.ir.dtypes import BFLOAT16, FLOAT32
from framefuse.ir.target import Target

ROWS, HALF = symbol("s0"), symbol("s1")
GPU = Target("cpu", "triton", launch=2500.0, products=False, scratch=False)


@pytest.mark.parametrize("dtype", [BFLOAT16, FLOAT32])
def test_rotary_positions_by_halves_are_one_kernel(dtype):
    b = Builder(s0=4096, s1=64)
    x, cos, sin = b.input((8, ROWS, HALF * 2), dtype), b.input((ROWS, HALF), dtype), b.input((ROWS, HALF), dtype)
    first, second = (b.slice(x, (0, 0, start), (8, ROWS, HALF)) for start in (0, HALF))

    def product(*pair):
        return rounded(b.mul(*map(wide, pair)))

    def wide(value):
        return value if dtype is FLOAT32 else b.cast(value, dtype=FLOAT32)

    def rounded(value):
        return value if dtype is FLOAT32 else b.cast(value, dtype=dtype)

    one = rounded(b.sub(wide(product(first, cos)), wide(product(second, sin))))
    other = rounded(b.add(wide(product(second, cos)), wide(product(first, sin))))
    schedule = fuse(b.graph(b.cat([one, other], 2)), targets=lambda device: GPU)
    assert len(list(kernels(schedule))) == 1
