"""On a GPU a cat that only moves what is in memory is torch's where that is faster; another one is part of a kernel."""

import pytest
from tests.unit.fuse.graphs import Builder

from framefuse.fuse import fuse
from framefuse.ir.dtypes import BFLOAT16, BOOL, FLOAT32
from framefuse.ir.schedule import RunCall, RunKernel
from framefuse.ir.target import Target

GPU = Target("cpu", "triton", launch=2500.0, products=False, scratch=False)
SHAPE = (6, 16)


def many(b, *xs):
    return b.cat(xs, 1)


CASES = {
    "many pieces": (many, FLOAT32, SHAPE, 5, True),
    "few wide pieces": (many, FLOAT32, SHAPE, 3, False),
    "few narrow pieces": (many, BFLOAT16, SHAPE, 3, True),
    "bytes": (many, BOOL, SHAPE, 2, True),
    "narrow pieces of odd rows": (many, BFLOAT16, (6, 15), 3, False),
    "narrow rows below each other": (lambda b, *xs: b.cat(xs, 0), BFLOAT16, (6, 15), 3, True),
    "a stack": (lambda b, *xs: b.cat([b.reshape(x, 1, *x.shape) for x in xs], 0), BFLOAT16, SHAPE, 3, True),
    "computed pieces": (lambda b, *xs: b.cat([b.neg(x) for x in xs], 1), FLOAT32, SHAPE, 5, False),
    "read by a kernel": (lambda b, *xs: b.neg(b.cat(xs, 1)), FLOAT32, SHAPE, 5, False),
}


@pytest.mark.parametrize("name", CASES)
def test_which_cats_are_calls(name):
    make, dtype, shape, count, called = CASES[name]
    b = Builder()
    result = make(b, *(b.input(shape, dtype) for _ in range(count)))
    items = fuse(b.graph(result), targets=lambda device: GPU, check=True).items
    found = [type(item) for item in items if isinstance(item, (RunCall, RunKernel))]
    assert found == [RunCall if called else RunKernel]


def test_on_a_cpu_few_pieces_are_a_kernel():
    b = Builder()
    items = fuse(b.graph(many(b, *(b.input(SHAPE, BFLOAT16) for _ in range(5)))), check=True).items
    assert [type(item) for item in items if isinstance(item, (RunCall, RunKernel))] == [RunKernel]
