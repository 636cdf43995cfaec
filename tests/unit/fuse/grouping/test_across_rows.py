"""Which work along long rows shares a kernel with the reduction over them on a GPU, by how values lie in memory."""

import pytest
from tests.unit.fuse.graphs import Builder, kernels

from framefuse.fuse import fuse
from framefuse.ir.loops import Load
from framefuse.ir.loops.walk import values_of
from framefuse.ir.target import Target

GPU = Target("cpu", "triton", launch=2500.0, products=False, scratch=False)
PICTURES, CHANNELS, POINTS = 8, 160, 4096


def titles(b, *results):
    return [kernel.title for kernel in kernels(fuse(b.graph(*results), targets=lambda device: GPU))]


def normalised(b, x, *axes):
    """``x`` by its own mean along axes."""
    mean = b.reduce("sum", x, *axes, keep=True)
    return b.sub(x, b.expand(mean, x.shape))


def test_a_norm_of_joined_pictures_whose_channels_lie_last_is_no_row_of_a_program():
    b = Builder()
    size = 40, POINTS
    x = b.input((PICTURES, *size))
    more = [b.input((PICTURES, *size), strides=(POINTS * 40, 1, 40)) for _ in range(3)]
    y = normalised(b, b.cat([x, *more], 1), 0, 2)
    assert len(titles(b, y)) > 1
    assert any(title.endswith("chunks") for title in titles(b, y))


@pytest.mark.parametrize("run", [1, 4, 64])
def test_rows_that_are_written_across_are_written_by_a_tile(run):
    b = Builder()
    x = b.input((PICTURES, CHANNELS, POINTS))
    turned = b.reshape(normalised(b, x, 2), PICTURES, CHANNELS, POINTS // run, run)
    other = b.input((PICTURES, POINTS // run, CHANNELS, run))
    assert len(titles(b, b.add(b.permute(turned, 0, 2, 1, 3), other))) == (2 if run < 16 else 1)


def test_reductions_of_a_matrix_and_of_its_transpose_are_no_rows_of_one_program():
    b = Builder()
    x = b.input((POINTS, POINTS))
    scores = b.mul(x, x)
    along, across = b.reduce("sum", scores, 1), b.reduce("sum", b.permute(scores, 1, 0), 1)
    for kernel in kernels(fuse(b.graph(along, across), targets=lambda device: GPU)):
        assert len({value.index for value in values_of(kernel.body) if isinstance(value, Load)}) == 1
    assert len(titles(b, along, b.reduce("amax", scores, 1))) == 1
