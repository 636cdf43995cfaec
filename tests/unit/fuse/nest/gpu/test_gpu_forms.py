"""The forms that a GPU gets; what they compute is tested by Triton's interpreter, in tests/unit/codegen/triton."""

import re

import pytest
from tests.unit.fuse.graphs import Builder, kernels
from tests.unit.fuse.test_schedule import layer_norm, softmax

from framefuse.codegen.triton.blocks import choose
from framefuse.fuse import fuse
from framefuse.fuse.verify import problems
from framefuse.ir import costs
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
    """A softmax of 2 rows: parts of these, on which the whole GPU works, what rows come to, and the elements."""
    b = Builder()
    schedule = fuse(b.graph(softmax(b, b.input((2, 1 << 22)))), targets=lambda device: GPU)
    parts, rows, _ = kernels(schedule)
    assert parts.title.startswith("amax_sum") and rows.title.startswith("amax_sum")
    assert parts.extent.constant == 2 * (1 << 22) // costs.GPU_CHUNK_MOST


def sides(schedule):
    """The points of the tile of the one kernel."""
    (kernel,) = kernels(schedule)
    return [int(part) for part in re.findall(r"vector\((?:min\(.*, )?(\d+)\)?\)", kernel_text(kernel))]


def test_windows_are_read_in_small_tiles():
    """Each point reads several elements of one operand; one that reads as many of several has a large tile."""
    b = Builder()
    x = b.input((16, 64, 64))
    places = [(row, column) for row in (0, 1) for column in (0, 1)]
    parts = [b.slice(x, (0, *place), (16, 32, 32), (1, 2, 2)) for place in places]
    window = b.add(b.add(parts[0], parts[1]), b.add(parts[2], parts[3]))
    assert sides(fuse(b.graph(window), targets=lambda device: GPU)) == [8, 32]
    b = Builder()
    parts = [b.slice(b.input((16, 64, 64)), (0, *place), (16, 32, 32), (1, 2, 2)) for place in places]
    several = b.add(b.add(parts[0], parts[1]), b.add(parts[2], parts[3]))
    assert sides(fuse(b.graph(several), targets=lambda device: GPU)) == [32, 32]


@pytest.mark.parametrize("width, found", [(57, [8, 128]), (15, [32, 32]), (7, [16 * 8 * 12 * 14])])
def test_shuffled_pixels_of_narrow_pictures_have_tiles(width, found):
    """Both sides are of two axes, of which the inner one has 2 points; of fewer points there is one loop over all."""
    b = Builder()
    height = width - 1
    turned = b.permute(b.input((16, 8, 2, 2, height, width)), 0, 1, 4, 2, 5, 3)
    schedule = fuse(b.graph(b.reshape(b.exp(turned), 16, 8, 2 * height, 2 * width)), targets=lambda device: GPU)
    assert sides(schedule) == found


@pytest.mark.parametrize("last", [False, True])
def test_rows_are_not_walked_where_what_they_read_lies_across(last):
    """What a sum reads and the program gets is written by a kernel that turns it, if its operand is channels-last."""
    b = Builder()
    x = b.input((16, 64, 40, 40), strides=(64 * 1600, 1, 64 * 40, 64) if last else None)
    value = b.mul(b.exp(x), b.input((16, 64, 40, 40)))
    total = b.reduce("sum", value, 2, 3)
    centred = b.sub(value, b.expand(b.reshape(total, 16, 64, 1, 1), (16, 64, 40, 40)))
    graph = b.graph(b.reduce("amax", centred, 1))
    schedule = fuse(graph, targets=lambda device: GPU)
    writes = [{buffer.written for buffer in kernel.buffers} for kernel in kernels(schedule)]
    turned = [kernel for kernel in kernels(schedule) if "exp" in kernel.title and "sum" in kernel.title]
    assert writes and (not turned if last else True)


def chunks(program, *shapes):
    b = Builder()
    made = program(b, *(b.input(shape) for shape in shapes))
    schedule = fuse(b.graph(*(made if isinstance(made, tuple) else (made,))), targets=lambda device: GPU)
    return [kernel.title.rpartition("_")[2] for kernel in kernels(schedule)].count("chunks")


def test_sums_of_everything_over_different_sizes_are_cut_into_chunks_each():
    """One program would walk over both."""

    def norms(b, x, y):
        return b.add(b.reduce("sum", b.mul(x, x), 0, 1), b.reduce("sum", b.mul(y, y), 0, 1))

    assert chunks(norms, (1000, 1000), (999, 1001)) == 2
    assert chunks(norms, (1000, 1000), (1000, 1000)) == 1
    assert chunks(norms, (100, 100), (99, 101)) == 0


def test_the_sum_of_a_loss_of_rows_is_taken_with_the_rows():
    """No kernel walks over all elements but the one that has each row at hand."""

    def loss(b, x):
        return b.reduce("sum", b.mul(softmax(b, x), x), 0, 1)

    assert chunks(loss, (4000, 1000)) == 0
    assert chunks(loss, (4, 1000000)) > 0  # rows so few are cut


def test_operands_that_lie_in_two_orders_have_a_tile_along_both():
    """Neighbouring channels are lanes, though the other operand lies along the rows."""

    def dots(b, x, y):
        return b.reduce("sum", b.mul(x, b.permute(y, 0, 3, 1, 2)), 2, 3)

    b = Builder()
    graph = b.graph(dots(b, b.input((8, 24, 40, 40)), b.input((8, 40, 40, 24))))
    kernel = kernels(fuse(graph, targets=lambda device: GPU))[0]
    assert choose(kernel, {n.symbol: 1600 for n in kernel.numbers}).form == "across"


def test_a_number_of_each_picture_does_not_turn_a_sum_for_each_channel():
    """Means of pictures lie by channels; the pictures, of which a row has many elements for each mean, do not."""
    b = Builder()
    x, mean = b.input((16, 64, 56, 56)), b.input((16, 64, 1, 1))
    away = b.sub(x, b.expand(mean, x.shape))
    schedule = fuse(b.graph(b.reduce("sum", away, 0, 2, 3)), targets=lambda device: GPU)
    assert not problems(schedule)
    assert choose(kernels(schedule)[0], {}).form == "rows"


@pytest.mark.parametrize(("rows", "work", "by_column"), [(32, 1, True), (64, 0, True), (64, 1, False), (128, 0, False)])
def test_a_thread_holds_a_short_column(rows, work, by_column):
    """Of a softmax of channels, unless it is long, by itself or by what is computed before."""
    b = Builder()
    x = b.input((16, rows, 64, 64))
    for _ in range(work):
        x = b.erf(x)
    (kernel,) = kernels(fuse(b.graph(softmax(b, x, 1)), targets=lambda device: GPU))
    blocks = choose(kernel, {}, fitted=True)
    assert blocks.form == "across" and blocks.by_column is by_column
    assert max(blocks.shape) >= rows  # read once
    if by_column:
        assert blocks.points == 32 * blocks.warps
        assert choose(kernel, {}, blocks.choice, fitted=True) == blocks


@pytest.mark.parametrize("last", [False, True])
def test_groups_of_few_channels_have_a_square_along_both(last):
    """What lies channels-last is written contiguous, or the other way, with a number for each four channels."""
    b = Builder()
    x, mean = b.input((8, 40, 40, 16, 4)), b.input((8, 16, 1, 1, 1))
    turned = b.permute(x, 0, 3, 4, 1, 2)
    y = b.sub(turned, b.expand(mean, turned.shape))
    if last:
        x = b.input((8, 16, 4, 40, 40))
        y = b.permute(b.sub(x, b.expand(mean, x.shape)), 0, 3, 4, 1, 2)
    (kernel,) = kernels(fuse(b.graph(y), targets=lambda device: GPU))
    assert choose(kernel, {}).shape == (64, 64)
