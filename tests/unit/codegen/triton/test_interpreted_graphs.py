"""Graphs that are fused for a GPU compute what torch computes, by Triton's interpreter."""

from functools import partial

import pytest
import tests.unit.fuse.test_schedule as schedule_tests
import torch
from hypothesis import HealthCheck, given, note, settings
from hypothesis import strategies as st
from tests.unit.codegen.triton import interpreted
from tests.unit.fuse import graphs as machine
from tests.unit.fuse.graphs import Builder, check, kernels, symbol, text_of
from tests.unit.fuse.nest.test_random_graphs import graphs
from tests.unit.fuse.test_schedule import *  # noqa: F403
from tests.unit.fuse.test_schedule import ROWS, layer_norm, softmax

from framefuse.codegen.triton import blocks
from framefuse.fuse import fuse
from framefuse.ir import costs
from framefuse.ir.dtypes import BFLOAT16, BOOL, FLOAT16, FLOAT32, FLOAT64, INT16, INT64, UINT8
from framefuse.ir.loops.print import kernel_text
from framefuse.ir.numbers import Symbol, product
from framefuse.ir.target import Target

GPU = Target("cpu", "triton", launch=2500.0, products=True, scratch=False)
# They look at the forms that a CPU gets.
del test_large_sums_use_two_stages, test_column_sums_go_by_blocks_of_rows  # noqa: F821
del test_channels_last_stays, test_a_transposed_operand_is_read_in_tiles  # noqa: F821


@pytest.fixture(autouse=True)
def the_triton_way(monkeypatch):
    monkeypatch.setattr(machine, "interpret", interpreted.run)
    monkeypatch.setattr(schedule_tests, "fuse", partial(fuse, targets=lambda device: GPU))


@pytest.fixture
def golden():
    """The golden files show the forms of a CPU."""
    return None


# Limits that small tensors pass: rows in turns, tiles, reductions in two stages.
SMALL = {
    "plain": [],
    "turns": [
        *((blocks, name, (2, 1)) for name in ("TURN", "TURN_PLACED", "TURN_SQUARES")),
        *((blocks, "ROW", 2), (blocks, "ACROSS", (2, 2)), (blocks, "BUSY", 1)),
    ],
    "tiles": [
        *((costs, "GPU_TILE", 8), (costs, "GPU_TILE_LEAST", 1), (costs, "GPU_NARROW", 1)),
        *((costs, "GPU_JOINED_BELOW", 1), (costs, "GPU_SQUARE", 2), (costs, "GPU_CROSSED", 2)),
    ],
    "stages": [
        *((costs, "GPU_PROGRAMS", 1 << 14), (costs, "GPU_ALONE", 0), (costs, "GPU_CHUNK", (2, 2)), (blocks, "BUSY", 1)),
        *((costs, "GPU_SEGMENT", (2, 2)), (costs, "GPU_SEGMENTS", 1)),
    ],
}  # fmt: skip


@pytest.fixture(params=SMALL)
def limits(request):
    with pytest.MonkeyPatch.context() as patch:
        for module, name, value in SMALL[request.param]:
            patch.setattr(module, name, value)
        patch.setattr(machine, "interpret", interpreted.run)
        yield request.param


@settings(max_examples=60, deadline=None, suppress_health_check=list(HealthCheck), derandomize=True)
@given(graph=graphs(), sizes=st.sampled_from([(3, 4), (1, 2), (5, 1), (0, 3), (2, 0), (7, 9)]))
def test_random_graphs(graph, sizes, limits):
    values = {Symbol("s0"): sizes[0], Symbol("s1"): sizes[1]}
    note(text_of(graph))
    schedule = fuse(graph, targets=lambda device: GPU, check=True)
    note("\n".join(map(kernel_text, kernels(schedule))))
    tensors = [
        torch.randn([size.evaluate(values) for size in node.shape], dtype=node.dtype.torch) for node in graph.inputs
    ]
    check(graph, schedule, *tensors)


def fused(make, *inputs, hints=None):
    """The graph and its schedule for a GPU; an input is a shape or (shape, dtype, strides)."""
    b = Builder(**(hints or {}))
    nodes = [b.input(*given) if isinstance(given[0], tuple) else b.input(given) for given in inputs]
    results = make(b, *nodes)
    graph = b.graph(*(results if isinstance(results, tuple) else (results,)))
    return graph, fuse(graph, targets=lambda device: GPU)


def titles(schedule):
    return [kernel.title for kernel in kernels(schedule)]


def test_a_sum_of_everything_is_taken_in_two_stages(monkeypatch):
    monkeypatch.setattr(costs, "GPU_CHUNK", (16384, 256))
    graph, schedule = fused(lambda b, x: b.sqrt(b.reduce("sum", b.exp(x), 0, 1)), (300, 1000))
    assert titles(schedule) == ["sum_exp_sqrt_chunks", "sum_exp_sqrt_total"]
    check(graph, schedule, torch.randn(300, 1000))


@pytest.mark.parametrize("axis", [0, 1])
def test_few_long_rows_are_split(axis, monkeypatch):
    monkeypatch.setattr(costs, "GPU_ALONE", 1000)
    monkeypatch.setattr(costs, "GPU_CHUNK", (512, 512))
    shape = (3, 7000) if axis else (7000, 3)
    graph, schedule = fused(lambda b, x: b.mul(b.reduce("amax", x, axis), 2.0), shape)
    assert len(titles(schedule)) == 2
    check(graph, schedule, torch.randn(shape))


@pytest.mark.parametrize("shape", [(1,), (1, 1), (7, 1)], ids=str)
@pytest.mark.parametrize("op", ["cumsum", "cumprod", "cummax", "cummin"])
def test_a_scan_of_one_element_has_no_loop(op, shape):
    def make(b, x):
        scan = b.node(op, (x,), x.shape, x.dtype, axis=len(shape) - 1)
        return scan, x, b.neg(scan)

    graph, schedule = fused(make, (shape, FLOAT64))
    assert not any("running" in kernel_text(kernel) for kernel in kernels(schedule))
    check(graph, schedule, torch.randn(shape, dtype=torch.float64))


def extremes_here_and_there(shape, axes):
    """Ties in many chunks, each extreme several times; then NaN in two of them."""
    ties = torch.randint(0, 3, shape).float()
    broken = torch.randn(shape)
    for place in (2000, 5000):
        broken.select(axes[0], min(place, shape[axes[0]] - 1)).fill_(float("nan"))
    return ties, torch.full(shape, -float("inf")), broken


@pytest.mark.parametrize("op", ["argmax", "argmin"])
@pytest.mark.parametrize("axes", [(0,), (1,), (0, 1)], ids=str)
def test_positions_of_extremes_are_found_in_two_stages(op, axes, monkeypatch):
    monkeypatch.setattr(costs, "GPU_ALONE", 1000)
    monkeypatch.setattr(costs, "GPU_CHUNK", (512, 512))
    shape = (7000, 3) if axes[0] == 0 else (3, 7000)
    graph, schedule = fused(lambda b, x: (b.reduce(op, x, *axes), b.reduce("sum", x, *axes)), shape)
    assert [title.split("_")[-1] for title in titles(schedule)] == ["chunks", "total"]
    for values in extremes_here_and_there(shape, axes):
        check(graph, schedule, values)


@pytest.mark.parametrize(
    ("op", "axis", "shape"),
    [("argmax", 1, (3, 17000)), ("argmin", 1, (3, 17000)), ("argmax", 0, (2100, 9)), ("argmin", 0, (2100, 8))],
    ids=str,
)
def test_positions_of_extremes_over_turns(op, axis, shape, monkeypatch):
    """The first of equal ones, where lanes meet them one after the other; the first position where all are infinite."""
    monkeypatch.setattr(costs, "GPU_ALONE", 1 << 30)
    graph, schedule = fused(lambda b, x: b.reduce(op, x, axis), shape)
    assert titles(schedule) == [op]
    for values in extremes_here_and_there(shape, (axis,)):
        check(graph, schedule, values)
        check(graph, schedule, -values)


@pytest.mark.parametrize(("columns", "stages"), [(256, 3), (255, 1), (65, 1)])
def test_turns_overlap_only_where_they_move_whole_vectors(columns, stages):
    _, schedule = fused(lambda b, x: b.reduce("sum", x, 1), (400, 300, columns))
    (kernel,) = kernels(schedule)
    found = blocks.choose(kernel, {})
    assert (found.form, found.points, found.stages) == ("across", 64, stages)


def test_few_columns_are_read_in_long_turns():
    _, schedule = fused(lambda b, x: b.reduce("sum", x, 0), (1 << 20, 8))
    first = blocks.choose(kernels(schedule)[0], {})
    assert first.form == "across" and first.choice.points == 8 and first.choice.width == 256


def test_short_columns_that_are_read_again_are_one_tile():
    """A norm of channels: its sums and what is done to each of them."""

    def norm(b, x):
        return b.div(x, b.sqrt(b.reduce("sum", b.mul(x, x), 1, keep=True)))

    graph, schedule = fused(norm, (5, 50, 80))
    (kernel,) = kernels(schedule)
    assert blocks.choose(kernel, {}).shape in ((64, 64), (64, 32), (64, 16), (64, 8))
    check(graph, schedule, torch.randn(5, 50, 80))


def test_columns_of_8_bytes_have_tiles_of_their_own():
    graph, schedule = fused(lambda b, x: b.reduce("sum", x, 0), ((70, 4096), INT64))
    found = blocks.choose(kernels(schedule)[0], {})
    assert found.form == "across" and found.shape == (64, 32)
    check(graph, schedule, torch.randint(-99, 99, (70, 4096)))


def test_a_row_that_long_code_reduces_goes_in_short_turns():
    def entropy(b, x):
        return b.reduce("sum", b.mul(b.log(b.exp(x)), b.log(b.add(b.mul(x, x), 1.0))), 1)

    graph, schedule = fused(entropy, (3, 2500))
    found = blocks.choose(kernels(schedule)[0], {})
    assert (found.shape, found.warps) == ((blocks.REDUCED_LONG[0],), blocks.REDUCED_LONG[1])
    check(graph, schedule, torch.randn(3, 2500), rtol=1e-4, atol=1e-3)
    _, plain = fused(lambda b, x: b.reduce("sum", x, 1), (3, 2500))
    assert blocks.choose(kernels(plain)[0], {}).shape == (4096,)


def test_long_rows_that_begin_anywhere_go_in_turns_that_overlap(monkeypatch):
    for name, value in (("ROW", 64), ("APART_FROM", 200), ("AGAIN_APART", (128, 2, 3))):
        monkeypatch.setattr(blocks, name, value)
    for columns, stages in ((301, 3), (304, 1)):
        graph, schedule = fused(softmax, (5, columns))
        found = blocks.choose(kernels(schedule)[0], {})
        assert (found.form, found.stages) == ("rows", stages) and (found.shape == (128,)) is (stages == 3)
        check(graph, schedule, torch.randn(5, columns))


@pytest.mark.parametrize(("rows", "together"), [(8, True), (2, False)])
def test_a_softmax_of_long_rows_is_one_kernel_where_rows_are_not_few(rows, together, monkeypatch):
    for name, value in (("GPU_FEW_ROWS", (0, 0)), ("GPU_LONG_ROW", 100), ("GPU_FEW_LONG_ROWS", (100, 10))):
        monkeypatch.setattr(costs, name, value)
    monkeypatch.setattr(costs, "GPU_FEW_LONG_ROWS_TWICE", (100, 10))
    monkeypatch.setattr(costs, "GPU_FEW_SOFTMAX_ROWS", (4, 10))
    graph, schedule = fused(softmax, (rows, 300))
    assert (len(kernels(schedule)) == 1) is together
    check(graph, schedule, torch.randn(rows, 300))

    def shares(b, x):
        return b.div(x, b.reduce("sum", x, 1, keep=True))

    _, schedule = fused(shares, (rows, 300))
    assert len(kernels(schedule)) > 1  # its sum is read once in either form


def test_what_a_row_has_in_common_is_no_reason_to_keep_its_elements():
    def centred(b, x):
        mean = b.div(b.reduce("sum", x, 1), 70000.0)
        away = b.sub(x, b.expand(b.reshape(mean, 4, 1), (4, 70000)))
        spread = b.rsqrt(b.div(b.reduce("sum", b.mul(away, away), 1), 70000.0))
        return b.mul(away, b.expand(b.reshape(spread, 4, 1), (4, 70000)))

    graph, schedule = fused(centred, (4, 70000))
    large = [memory for memory in schedule.memories if product(memory.sizes).constant == 4 * 70000]
    assert len(large) == 2  # what is given and what is returned: nothing of its size between them
    check(graph, schedule, torch.randn(4, 70000))


def gradients_of_a_norm(b, g, x, mean, scale, weight):
    """Those of layer norm, in 16 bits."""
    rows, columns = x.shape
    of_row = [b.expand(b.reshape(each, rows, 1), x.shape) for each in (mean, scale)]
    of_column = b.expand(b.reshape(weight, 1, columns), x.shape)
    wide, size = b.cast(g, dtype=FLOAT32), float(columns.constant)

    def row_mean(a):
        return b.expand(b.div(b.reduce("sum", a, 1, keep=True), size), x.shape)

    away = b.mul(b.sub(b.cast(x, dtype=FLOAT32), of_row[0]), of_row[1])
    scaled = b.mul(wide, of_column)
    inner = b.sub(b.sub(scaled, row_mean(scaled)), b.mul(away, row_mean(b.mul(scaled, away))))
    sums = b.reduce("sum", b.mul(wide, away), 0), b.reduce("sum", wide, 0)
    return tuple(b.cast(each, dtype=BFLOAT16) for each in (b.mul(inner, of_row[1]), *sums))


def inputs_of_a_norm(rows, columns):
    large = (rows, columns), BFLOAT16
    return large, large, (rows,), (rows,), (columns,)


def test_gradients_of_a_norm_leave_nothing_wider_than_what_they_read(monkeypatch):
    monkeypatch.setattr(costs, "GPU_AGAIN", 0)
    graph, schedule = fused(gradients_of_a_norm, *inputs_of_a_norm(40, 96))
    assert len(titles(schedule)) == 2  # rows, and both sums of columns
    assert not [m for m in schedule.memories if m.dtype is FLOAT32 and product(m.sizes).constant == 40 * 96]
    values = [torch.randn(40, 96).bfloat16(), torch.randn(40, 96).bfloat16(), torch.randn(40), torch.rand(40)]
    check(graph, schedule, *values, torch.randn(96), rtol=2e-2, atol=2e-2)


def test_columns_with_a_number_for_each_row_are_read_along_memory():
    _, schedule = fused(gradients_of_a_norm, *inputs_of_a_norm(16384, 4096))
    (sums,) = (kernel for kernel in kernels(schedule) if kernel.title.endswith("_chunks"))
    found = blocks.choose(sums, {})
    assert (found.form, found.points) == ("across", 64)


@pytest.mark.parametrize(("columns", "shape"), [(128, (4, 256)), (40, (4, 128)), (4, None)])
def test_a_shuffle_goes_in_tiles_of_rows_and_of_both_axes_along_memory(columns, shape):
    def shuffled(b, x):
        apart = b.reshape(x, 3, 2, 2, 5, columns)
        return b.neg(b.reshape(b.permute(apart, 0, 3, 1, 4, 2), 3, 10, 2 * columns))

    graph, schedule = fused(shuffled, (3, 4, 5, columns))
    (kernel,) = kernels(schedule)
    found = blocks.choose(kernel, {})
    assert (found.form, found.shape) == (("tile", shape) if shape else ("points", found.shape))
    check(graph, schedule, torch.randn(3, 4, 5, columns))


def test_columns_are_read_along_memory():
    graph, schedule = fused(lambda b, x: b.reduce("sum", x, 0), (ROWS, 65), hints={"s0": 500})
    for rows in (500, 33, 1, 0):
        check(graph, schedule, torch.randn(rows, 65))


def test_a_transposed_operand_is_read_in_tiles_of_both_sides():
    graph, schedule = fused(lambda b, x, y: b.add(b.permute(x, 1, 0), y), (ROWS, 130), (130, ROWS), hints={"s0": 100})
    (kernel,) = kernels(schedule)
    assert kernel_text(kernel).count("vector(") == 2
    for rows in (100, 3, 0):
        check(graph, schedule, torch.randn(rows, 130), torch.randn(130, rows))


@pytest.mark.parametrize("dtype", [FLOAT16, BFLOAT16], ids=str)
@pytest.mark.parametrize("columns", [1, 100, 5000])
def test_rows_of_16_bit_floats(dtype, columns):
    def make(b, x, w, c):
        wide = b.cast(x, dtype=FLOAT32)
        return b.cast(softmax(b, wide), dtype=dtype), b.cast(layer_norm(b, wide, w, c), dtype=dtype)

    graph, schedule = fused(make, ((3, columns), dtype), (columns,), (columns,))
    values = [torch.randn(3, columns).to(dtype.torch), torch.randn(columns), torch.randn(columns)]
    check(graph, schedule, *values, rtol=2e-2, atol=2e-2)


def test_a_row_too_long_for_a_tile_goes_in_turns():
    graph, schedule = fused(softmax, (2, 17000))
    assert len(titles(schedule)) == 1
    check(graph, schedule, torch.randn(2, 17000))


@pytest.mark.parametrize("dtype", [INT16, UINT8, INT64, BOOL], ids=str)
def test_integers_and_bools(dtype):
    def make(b, x, y):
        largest = b.reduce("amax", x, 1)
        return largest, b.where(b.eq(x, y), x, y), b.cast(x, dtype=FLOAT32), b.reduce("argmin", x, 1)

    shape = (5, 77)

    def of_bools(b, x, y):
        return b.where(b.ne(x, y), x, y), b.reduce("any", x, 1)

    graph, schedule = fused(of_bools if dtype is BOOL else make, (shape, dtype), (shape, dtype))
    values = [torch.randint(0, 2 if dtype is BOOL else 90, shape).to(dtype.torch) for _ in range(2)]
    check(graph, schedule, *values)


def test_strided_and_broadcast_operands():
    s = symbol("s0")
    inputs = ((s, 40), FLOAT32, (80, 2)), ((s, 1), FLOAT32, (1, 1))
    graph, schedule = fused(lambda b, x, y: b.add(x, b.expand(y, (s, 40))), *inputs, hints={"s0": 9})
    for rows in (9, 1, 0):
        check(graph, schedule, torch.randn(rows, 80)[:, ::2], torch.randn(rows, 1))


@pytest.mark.parametrize("rows", [2, 300])
def test_loops_of_one_kernel_may_differ_in_length(rows):
    def make(b, x):
        return b.expand(b.sub(x, b.sin(b.reduce("sum", x, 0, keep=True))), (2, rows))

    graph, schedule = fused(make, (rows,))
    assert len(titles(schedule)) == 1
    check(graph, schedule, torch.randn(rows))


def test_exponentials_of_few_long_rows_are_computed_again_and_not_kept():
    def softmax(b, x):
        wide = b.cast(x, dtype=FLOAT32)
        away = b.exp(b.sub(wide, b.expand(b.reduce("amax", wide, 1, keep=True), x.shape)))
        return b.cast(b.div(away, b.expand(b.reduce("sum", away, 1, keep=True), x.shape)), dtype=BFLOAT16)

    graph, schedule = fused(softmax, ((2, 1 << 20), BFLOAT16))
    assert len(titles(schedule)) == 3  # of parts, of the rows of them, and the elements
    assert not [m for m in schedule.memories if m.dtype is FLOAT32 and product(m.sizes).constant == 2 << 20]
    check(graph, schedule, torch.randn(2, 1 << 20).bfloat16(), rtol=2e-2, atol=1e-6)
