"""The forms that a GPU gets; what they compute is tested by Triton's interpreter, in tests/unit/codegen/triton."""

import pytest
from tests.unit.fuse.graphs import Builder, kernels
from tests.unit.fuse.test_schedule import layer_norm, softmax

from framefuse.fuse import fuse
from framefuse.fuse.verify import problems
from framefuse.ir.loops.print import kernel_text
from framefuse.ir.target import Target

GPU = Target("cpu", "triton", launch=2500.0, products=False, scratch=False)
FORMS = {
    "one axis": (lambda b, x: b.exp(x), (1000, 1000)),
    "rows of a tile": (lambda b, x, y: b.add(x, y), (1000, 4096), (4096,)),
    "tiles of two sides": (lambda b, x, y: b.add(x, y), (1000, 100), (100,)),
    "short rows": (lambda b, x, y: b.add(x, y), (1000, 3), (3,)),
    "transpose": (lambda b, x: b.exp(b.permute(x, 1, 0)), (1000, 100)),
    "softmax": (softmax, (1000, 100)),
    "layer norm": (layer_norm, (1000, 100), (100,), (100,)),
    "long sum": (lambda b, x: b.sqrt(b.reduce("sum", x, 0, 1)), (1000, 1000)),
    "columns": (lambda b, x: b.reduce("sum", x, 0), (100000, 100)),
    "channels": (lambda b, x: b.reduce("amax", x, 0, 2, 3), (64, 32, 56, 56)),
}


@pytest.mark.parametrize("name", FORMS)
def test_form(name, golden):
    make, *shapes = FORMS[name]
    b = Builder()
    schedule = fuse(b.graph(make(b, *(b.input(shape) for shape in shapes))), targets=lambda device: GPU)
    assert not problems(schedule)
    golden("\n".join(map(kernel_text, kernels(schedule))))


def test_long_rows_that_are_few_get_kernels_of_their_own():
    """A softmax of 2 rows: its largest values and its sums in two stages each, so that the whole GPU works on them."""
    b = Builder()
    schedule = fuse(b.graph(softmax(b, b.input((2, 1 << 22)))), targets=lambda device: GPU)
    assert [kernel.title.rpartition("_")[2] for kernel in kernels(schedule)].count("chunks") == 2
