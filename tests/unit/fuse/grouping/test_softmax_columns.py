"""A softmax across memory is one kernel of a GPU where there are columns enough for all of its units."""

import pytest
from tests.unit.fuse.graphs import Builder, symbol

from framefuse.fuse import fuse
from framefuse.ir.dtypes import FLOAT32
from framefuse.ir.schedule import RunKernel
from framefuse.ir.target import Target

GPU = Target("cpu", "triton", launch=2500.0, products=False, scratch=False)


def kernels(function, sizes, axis):
    b = Builder(**{f"s{place}": size for place, size in enumerate(sizes)})
    x = b.input(tuple(symbol(f"s{place}") for place in range(len(sizes))), FLOAT32)
    schedule = fuse(b.graph(function(b, x, axis)), targets=lambda device: GPU)
    return [item.kernel.title for item in schedule.items if isinstance(item, RunKernel)]


def whole(b, x, row):
    return b.expand(row, x.shape)


def softmax(b, x, axis):
    powers = b.exp(b.sub(x, whole(b, x, b.reduce("amax", x, axis, keep=True))))
    return b.div(powers, whole(b, x, b.reduce("sum", powers, axis, keep=True)))


def log_softmax(b, x, axis):
    distance = b.sub(x, whole(b, x, b.reduce("amax", x, axis, keep=True)))
    return b.sub(distance, whole(b, x, b.log(b.reduce("sum", b.exp(distance), axis, keep=True))))


def shares(b, x, axis):
    return b.div(x, whole(b, x, b.reduce("sum", x, axis, keep=True)))


def of_another_axis(b, x, axis):
    powers = b.exp(b.sub(x, whole(b, x, b.reduce("amax", x, 0, keep=True))))
    return b.div(powers, whole(b, x, b.reduce("sum", powers, axis, keep=True)))


@pytest.mark.parametrize("function", [softmax, log_softmax])
@pytest.mark.parametrize(("sizes", "axis"), [((64, 2048, 1023), 1), ((16, 8192, 1024), 1), ((4096, 65536), 0)])
def test_it_is_one_kernel(function, sizes, axis):
    assert len(kernels(function, sizes, axis)) == 1


@pytest.mark.parametrize(
    ("function", "sizes"),
    [
        (softmax, (8, 4096, 1024)), (softmax, (8192, 2048, 4)), (shares, (64, 2048, 1024)),
        (of_another_axis, (64, 2048, 1024)),
    ],
    ids=["few columns", "few neighbours", "no exponentials", "another axis"],
)  # fmt: skip
def test_it_is_several(function, sizes):
    assert len(kernels(function, sizes, 1)) > 1
