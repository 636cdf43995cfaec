"""Graphs become few kernels, and the kernels compute what torch computes, at the recorded sizes and at others."""

from dataclasses import replace

import pytest
import torch
from tests.unit.fuse.graphs import Builder, Failed, check, kernels, run, symbol

from framefuse.fuse import fuse
from framefuse.ir.dtypes import BFLOAT16, FLOAT32, INT64
from framefuse.ir.graph import Output
from framefuse.ir.loops import Loop, LoopKind
from framefuse.ir.loops.key import key_of
from framefuse.ir.loops.print import kernel_text
from framefuse.ir.loops.walk import statements
from framefuse.ir.numbers import Expr, Symbol
from framefuse.ir.schedule import Release, RunCall, RunKernel, RunMatmul

ROWS = symbol("s0")
COLUMNS = symbol("s1")
SIZES = [(3, 5), (1, 7), (0, 4), (6, 1), (2, 40)]


def chain(b, x, length):
    steps = [
        lambda x: b.add(x, 0.1), b.sin, lambda x: b.mul(x, 1.1), b.cos, lambda x: b.maximum(x, 0.0), b.sigmoid,
        lambda x: b.exp(b.mul(x, 0.5)),
    ]  # fmt: skip
    for number in range(length):
        x = steps[number % len(steps)](x)
    return x


def softmax(b, x, axis=-1, log=False):
    shifted = b.sub(x, b.reduce("amax", x, axis, keep=True))
    raised = b.exp(shifted)
    total = b.reduce("sum", raised, axis, keep=True)
    return b.sub(shifted, b.log(total)) if log else b.div(raised, total)


def mean(b, x, *axes):
    count = 1
    for axis in axes:
        count = count * x.shape[axis]
    return b.div(b.reduce("sum", x, *axes, keep=True), count)


def layer_norm(b, x, weight, bias):
    centred = b.sub(x, mean(b, x, -1))
    scale = b.rsqrt(b.add(mean(b, b.mul(centred, centred), -1), 1e-5))
    return b.add(b.mul(b.mul(centred, scale), weight), bias)


def gelu(b, x):
    return b.mul(b.mul(x, 0.5), b.add(b.erf(b.mul(x, 0.7071067811865476)), 1.0))


@pytest.mark.parametrize("rows", [8, 0, 1, 300])
def test_a_chain_with_its_sum_is_one_kernel(rows):
    b = Builder(s0=8)
    x = b.input((ROWS, 16))
    graph = b.graph(b.reduce("sum", chain(b, x, 30), 0, 1))
    schedule = fuse(graph)
    assert len(kernels(schedule)) == 1
    check(graph, schedule, torch.randn(rows, 16))


def one_kernel(make, *inputs, count=1, golden=None, sizes=SIZES):
    """Fuses ``make(b, *inputs)`` over inputs of the given shapes with symbols s0 and s1, and runs it at all SIZES."""
    b = Builder(s0=3, s1=5)
    nodes = [b.input(shape) if isinstance(shape[0], Expr | int) else b.input(*shape) for shape in inputs]
    results = make(b, *nodes)
    graph = b.graph(*(results if isinstance(results, tuple) else (results,)))
    schedule = fuse(graph)
    found = kernels(schedule)
    text = "\n".join(map(kernel_text, found))
    assert len(found) == count, text
    if golden:
        golden(text)
    for rows, columns in sizes:
        values = {ROWS: rows, COLUMNS: columns, 1: 1}
        tensors = []
        for node in nodes:
            sizes = [values[s] if s in values else s.constant for s in node.shape]
            if node.dtype is INT64:
                tensors.append(torch.randint(0, max(columns, 1), sizes))
            else:
                tensors.append(torch.randn(sizes).to(node.dtype.torch))
        check(graph, schedule, *tensors)


FULL = (ROWS, COLUMNS)


def test_two_uses_of_an_input(golden):
    one_kernel(lambda b, x: b.add(b.maximum(x, 0.0), b.sigmoid(x)), FULL, golden=golden)


def test_bias_and_gelu(golden):
    one_kernel(lambda b, x, bias: gelu(b, b.add(x, bias)), FULL, (COLUMNS,), golden=golden)


def test_softmax(golden):
    one_kernel(softmax, FULL, golden=golden)


def test_softmax_across_memory(golden):
    one_kernel(lambda b, x: softmax(b, x, 0), FULL, golden=golden, sizes=[(3, 5), (1, 7), (6, 1), (40, 2)])


def test_log_softmax():
    one_kernel(lambda b, x: softmax(b, x, log=True), FULL)


def test_layer_norm(golden):
    one_kernel(layer_norm, FULL, (COLUMNS,), (COLUMNS,), golden=golden)


def test_residual_and_layer_norm(golden):
    def make(b, x, y, weight, bias):
        total = b.add(x, b.sin(y))
        return total, layer_norm(b, total, weight, bias)

    one_kernel(make, FULL, FULL, (COLUMNS,), (COLUMNS,), golden=golden)


def test_layer_norm_that_leaves_its_scale_is_one_kernel():
    """As in training: the scale of a row is saved on the way to the row."""

    def make(b, x, y, weight, bias):
        total = b.add(x, y)
        centred = b.sub(total, mean(b, total, -1))
        scale = b.rsqrt(b.add(mean(b, b.mul(centred, centred), -1), 1e-5))
        found = b.add(b.mul(b.mul(centred, scale), weight), bias)
        return total, scale, found, b.cast(found, dtype=BFLOAT16)

    one_kernel(make, FULL, FULL, (COLUMNS,), (COLUMNS,))


def test_a_value_of_each_row_without_a_reduction_has_a_kernel_of_its_own():
    b = Builder(s0=3, s1=5)
    x, y = b.input((ROWS, 1)), b.input(FULL)
    row = b.exp(b.sin(x))
    graph = b.graph(row, b.mul(y, row))
    schedule = fuse(graph)
    assert len(kernels(schedule)) == 2
    for rows, columns in SIZES:
        check(graph, schedule, torch.randn(rows, 1), torch.randn(rows, columns))


def test_what_two_kernels_read_is_left_in_memory_rather_than_what_it_is_made_of():
    """A residual gradient: the sum goes to memory, not the large term that a kernel has just added to it."""
    b = Builder(s0=3, s1=8)
    x, g, w = b.input(FULL), b.input(FULL), b.input((COLUMNS, COLUMNS))
    total = b.add(x, b.mul(b.exp(b.sin(g)), b.cos(g)))
    product = b.library(torch.matmul, [b.cast(total, dtype=FLOAT32), w], FULL, FLOAT32)
    graph = b.graph(b.add(total, b.mul(product, b.sigmoid(product))))
    schedule = fuse(graph)
    assert [len(kernel.buffers) for kernel in kernels(schedule)] == [4, 3]  # the second: total, product, result
    for rows, columns in [(3, 8), (1, 1), (5, 40)]:
        tensors = torch.randn(rows, columns), torch.randn(rows, columns), torch.randn(columns, columns)
        check(graph, schedule, *tensors, rtol=1e-4, atol=1e-4)


def test_rms_norm():
    def make(b, x, weight):
        return b.mul(b.mul(x, b.rsqrt(b.add(mean(b, b.mul(x, x), -1), 1e-6))), weight)

    one_kernel(make, FULL, (COLUMNS,))


def test_cross_entropy(golden):
    def make(b, x, target):
        picked = b.gather(softmax(b, x, log=True), b.reshape(target, ROWS, 1), 1)
        return b.neg(b.div(b.reduce("sum", picked, 0, 1), ROWS))

    one_kernel(make, FULL, ((ROWS,), INT64), count=2, golden=golden)


@pytest.mark.parametrize("axes", [(0,), (1,), (0, 1)])
@pytest.mark.parametrize("op", ["sum", "prod", "amax", "amin", "any", "all", "argmax", "argmin"])
def test_reductions(op, axes):
    def make(b, x):
        return b.reduce(op, b.gt(x, 0.0) if op in ("any", "all") else x, *axes)

    b = Builder(s0=3, s1=5)
    x = b.input((ROWS, COLUMNS))
    graph = b.graph(make(b, x))
    schedule = fuse(graph)
    assert len(kernels(schedule)) == 1
    for rows, columns in [(3, 5), (1, 7), (40, 2), (1, 1)]:
        check(graph, schedule, torch.randn(rows, columns).round(decimals=1))


def test_siblings_share_a_kernel():
    def make(b, x):
        return b.reduce("sum", x, 1), b.reduce("sum", b.mul(x, x), 1), b.reduce("sum", b.exp(x), 1)

    one_kernel(make, FULL)


def test_pointwise_siblings_share_a_kernel():
    one_kernel(lambda b, x, y: (b.add(x, y), b.mul(x, 2.0), b.exp(x)), FULL, FULL)


def test_transposed_operand():
    one_kernel(lambda b, x, y: b.add(b.permute(x, 1, 0), y), FULL, (COLUMNS, ROWS))


def test_reshape_splits_and_joins_axes(golden):
    def make(b, x):
        heads = b.permute(b.reshape(x, ROWS, COLUMNS, 2, 3), 0, 2, 1, 3)
        back = b.reshape(b.permute(b.exp(heads), 0, 2, 1, 3), ROWS * COLUMNS, 6)
        return b.add(back, 1.0)

    one_kernel(make, (ROWS, COLUMNS, 6), golden=golden)


def test_split_axes_stay_affine(golden):
    def make(b, x, y):
        return b.mul(b.reshape(b.permute(b.reshape(x, ROWS, 4, 3), 0, 2, 1), ROWS, 12), y)

    one_kernel(make, (ROWS, 12), (12,), golden=golden)


def test_flip_slice_pad_cat():
    def make(b, x, y):
        turned = b.slice(x, (0, COLUMNS - 1), FULL, (1, -1))
        wide = b.pad(b.exp(turned), (1, 2), (ROWS + 2, COLUMNS + 5), 0.5)
        return b.cat([wide, b.pad(y, (2, 0), (ROWS + 2, COLUMNS)), wide], 1)

    one_kernel(make, FULL, FULL)


def test_rotary(golden):
    def make(b, x, cos, sin):
        half = 4
        left, right = b.slice(x, (0, 0, 0), (*FULL, half)), b.slice(x, (0, 0, half), (*FULL, half))
        return b.add(b.mul(x, cos), b.mul(b.cat([b.neg(right), left], 2), sin))

    one_kernel(make, (*FULL, 8), (COLUMNS, 8), (COLUMNS, 8), golden=golden)


def test_embedding(golden):
    one_kernel(lambda b, w, i: b.add(b.take(w, i), 1.0), (COLUMNS, 6), ((ROWS, 2), INT64), golden=golden)


@pytest.mark.parametrize("bad", [-1, 5])
def test_an_index_out_of_range_is_reported(bad):
    b = Builder(s0=3)
    w, i = b.input((5, 4)), b.input((ROWS,), INT64)
    schedule = fuse(b.graph(b.take(w, i)))
    with pytest.raises(Failed):
        run(schedule, [torch.randn(5, 4), torch.tensor([1, bad, 2])])


def test_negative_indices_wrap():
    b = Builder(s0=3)
    w, i = b.input((5, 4)), b.input((ROWS,), INT64)
    graph = b.graph(b.take(w, i, wrap=True))
    check(graph, fuse(graph), torch.randn(5, 4), torch.tensor([1, -1, -5]))


def test_brain_floats_compute_in_float32():
    b = Builder(s0=3, s1=5)
    x = b.input(FULL, BFLOAT16)
    y = b.cast(softmax(b, b.mul(x, 3.0)), dtype=FLOAT32)
    graph = b.graph(y, b.gt(b.mul(x, 1.5), x), b.reduce("sum", x, 1))
    schedule = fuse(graph)
    check(graph, schedule, torch.randn(3, 5).bfloat16(), rtol=1.6e-2, atol=1e-2)


def test_strided_inputs():
    s2, s3 = symbol("s2"), symbol("s3")
    b = Builder(s0=3, s1=5, s2=1, s3=3)
    x = b.input(FULL, strides=(s2, s3))
    y = b.input(FULL)
    graph = b.graph(b.add(x, y), b.reduce("sum", b.mul(x, y), 1))
    schedule = fuse(graph)
    check(graph, schedule, torch.randn(5, 3).t(), torch.randn(3, 5))
    check(graph, schedule, torch.randn(4, 14)[:, ::2], torch.randn(4, 7))


def test_large_sums_use_two_stages():
    b = Builder(s0=3000)
    x = b.input((ROWS, 1000))
    graph = b.graph(b.sqrt(b.reduce("sum", b.exp(x), 0, 1)))
    schedule = fuse(graph)
    assert len(kernels(schedule)) == 2
    assert len(kernels(fuse(graph, threads=False))) == 1
    for rows in (0, 1, 9):
        check(graph, schedule, torch.randn(rows, 1000))


def test_column_sums_go_by_blocks_of_rows(golden):
    b = Builder(s0=3000)
    x = b.input((ROWS, 600))
    graph = b.graph(b.mul(b.reduce("sum", b.abs(x), 0), 2.0))
    schedule = fuse(graph)
    golden("\n".join(map(kernel_text, kernels(schedule))))
    for rows in (0, 1, 9):
        check(graph, schedule, torch.randn(rows, 600))


def test_work_of_an_exact_gelu_is_near_its_time():
    b = Builder(s0=1 << 16)
    (item,) = [i for i in fuse(b.graph(gelu(b, b.input((ROWS,))))).items if isinstance(i, RunKernel)]
    assert 0.1 < item.work.evaluate({Symbol("s0"): 1 << 16}) / (1 << 16) < 0.3  # measured: 0.18 ns an element


def test_a_rounded_result_is_rounded_once():
    b = Builder(s0=3)
    x = b.input((ROWS, 8), BFLOAT16)
    wide = b.cast(x, dtype=FLOAT32)
    raised = b.mul(b.mul(b.mul(b.sin(wide), wide), wide), wide)
    schedule = fuse(b.graph(b.cast(raised, dtype=BFLOAT16)))
    assert kernel_text(kernels(schedule)[0]).count("bf16(") == 1


def test_pieces_of_a_cat_have_loops_of_their_own(golden):
    def cat(b, x, y):
        return b.mul(b.cat([x, b.exp(y), x], 1), 2.0)

    one_kernel(cat, (ROWS, COLUMNS), (ROWS, 3), golden=golden)


def test_sums_over_many_rows_are_as_exact_as_eagers():
    b = Builder(s0=20000)
    x = b.input((ROWS, 4))
    schedule = fuse(b.graph(b.reduce("sum", b.mul(x, 2.0), 0)))
    values = torch.randn(20000, 4) + 3
    (result,) = run(schedule, [values])
    exact, eager = (values.double() * 2).sum(0), (values * 2).sum(0)
    assert (result - exact).abs().max() <= 2 * (eager - exact).abs().max()


def test_middle_axis():
    b = Builder(s0=3, s1=50)
    x = b.input((ROWS, COLUMNS, 6))
    graph = b.graph(b.reduce("sum", x, 1), b.reduce("amax", x, 0, 2))
    schedule = fuse(graph)
    check(graph, schedule, torch.randn(3, 50, 6))
    check(graph, schedule, torch.randn(1, 1, 6))


def test_group_norm():
    b = Builder(s0=2)
    x, weight = b.input((ROWS, 6, 3, 5)), b.input((6,))
    grouped = b.reshape(x, ROWS, 2, 45)
    centred = b.sub(grouped, mean(b, grouped, -1))
    scaled = b.mul(centred, b.rsqrt(b.add(mean(b, b.mul(centred, centred), -1), 1e-5)))
    graph = b.graph(b.mul(b.reshape(scaled, ROWS, 6, 3, 5), b.reshape(weight, 1, 6, 1, 1)))
    schedule = fuse(graph)
    assert len(kernels(schedule)) == 1
    check(graph, schedule, torch.randn(2, 6, 3, 5), torch.randn(6))


def test_batch_statistics():
    b = Builder(s0=4)
    x = b.input((ROWS, 6, 5))
    centred = b.sub(x, mean(b, x, 0, 2))
    graph = b.graph(b.mul(centred, b.rsqrt(b.add(mean(b, b.mul(centred, centred), 0, 2), 1e-5))))
    schedule = fuse(graph)
    assert len(kernels(schedule)) == 1
    check(graph, schedule, torch.randn(4, 6, 5))


def test_linear_is_one_product_and_one_kernel():
    b = Builder(s0=3, s1=5)
    x, w, bias = b.input((ROWS, COLUMNS, 8)), b.input((4, 8)), b.input((4,))
    weight = b.expand(b.permute(w, 1, 0), (ROWS, 8, 4))
    graph = b.graph(gelu(b, b.add(b.matmul(x, weight), bias)))
    schedule = fuse(graph)
    products = [item for item in schedule.items if isinstance(item, RunMatmul)]
    assert len(products) == 1 and len(kernels(schedule)) == 1
    assert products[0].sizes[0].constant == 1
    for rows, columns in SIZES:
        check(graph, schedule, torch.randn(rows, columns, 8), torch.randn(4, 8), torch.randn(4))


def test_attention():
    b = Builder(s0=2, s1=5)
    x = b.input((ROWS, COLUMNS, 24))
    heads = [
        b.permute(b.reshape(b.slice(x, (0, 0, 8 * n), (ROWS, COLUMNS, 8)), ROWS, COLUMNS, 2, 4), 0, 2, 1, 3)
        for n in range(3)
    ]
    scores = b.mul(b.matmul(heads[0], b.permute(heads[1], 0, 1, 3, 2)), 0.5)
    mixed = b.matmul(softmax(b, scores), heads[2])
    graph = b.graph(b.reshape(b.permute(mixed, 0, 2, 1, 3), ROWS, COLUMNS, 8))
    schedule = fuse(graph)
    for rows, columns in SIZES:
        check(graph, schedule, torch.randn(rows, columns, 24))


def test_library_calls():
    b = Builder(s0=2, s1=5)
    x = b.input(FULL)
    y = b.library(torch.cumsum, [b.exp(x)], FULL, FLOAT32, args=(1,))
    z = b.library(torch.flip, [b.mul(y, 2.0)], FULL, FLOAT32, args=((0,),))
    graph = b.graph(z, b.add(z, 1.0))
    schedule = fuse(graph)
    calls = [item for item in schedule.items if isinstance(item, RunCall)]
    assert [call.inside for call in calls] == [True, False]
    for rows, columns in SIZES:
        check(graph, schedule, torch.randn(rows, columns))


def test_operands_of_library_calls_lie_as_eagers_did():
    b = Builder(s0=2, s1=5)
    x = b.input(FULL)
    transposed = b.permute(b.add(x, 1.0), 1, 0)
    graph = b.graph(b.library(torch.cumsum, [transposed], (COLUMNS, ROWS), FLOAT32, args=(1,), orders=((0, 1),)))
    schedule = fuse(graph)
    (call,) = [item for item in schedule.items if isinstance(item, RunCall)]
    assert schedule.memories[call.operands[0]].strides[1] == 1, "row-major, as recorded, not as it was computed"
    for rows, columns in SIZES:
        check(graph, schedule, torch.randn(rows, columns))


def test_products_of_brain_floats_are_calls():
    b = Builder(s0=2)
    x, w = b.input((ROWS, 8), BFLOAT16), b.input((8, 4), BFLOAT16)
    graph = b.graph(b.add(b.matmul(x, w), 1.0))
    schedule = fuse(graph)
    assert any(isinstance(item, RunCall) for item in schedule.items)
    check(graph, schedule, torch.randn(3, 8).bfloat16(), torch.randn(8, 4).bfloat16())


def test_a_size_known_only_at_run_time():
    u0 = symbol("u0")
    b = Builder(s0=6)
    x = b.input((ROWS,))
    found = b.library(torch.nonzero, [b.gt(x, 0.0)], (u0, 1), INT64, strides=(symbol("u0") * 0 + 1, u0))
    total = b.exp(b.take(x, b.reshape(found, u0)))
    graph = b.graph(b.add(total, b.reduce("sum", total, 0, keep=True)), bound=[(Symbol("u0"), found, 0)])
    schedule = fuse(graph)
    for size in (6, 1, 20):
        results = run(schedule, [x := torch.randn(size)])
        wanted = x[x > 0].exp()
        torch.testing.assert_close(results[0], wanted + wanted.sum())


def test_equal_layers_have_equal_kernels():
    b = Builder(s0=3)
    x = b.input((ROWS, 8))
    for _ in range(3):
        w, bias, scale = b.input((8, 8)), b.input((8,)), b.input((8,))
        y = gelu(b, b.add(b.matmul(x, w), bias))
        x = layer_norm(b, b.add(x, y), scale, bias)
    schedule = fuse(b.graph(x))
    found = kernels(schedule)
    assert len(found) == 3
    assert len({key_of(kernel) for kernel in found}) == 1


def test_outputs_keep_to_themselves():
    b = Builder(s0=3)
    x = b.input((ROWS, 4))
    y = b.exp(x)
    graph = b.graph(y, y, x)
    schedule = fuse(graph)
    assert len(set(schedule.outputs)) == 3
    assert {schedule.memories[n].place for n in schedule.outputs} == {"fresh"}
    check(graph, schedule, torch.randn(3, 4))


def test_writes():
    b = Builder(s0=3)
    x, y = b.input((ROWS, 4)), b.input((ROWS, 4))
    graph = b.graph(b.add(x, 1.0), writes=[(0, b.mul(x, y)), (1, x)])
    schedule = fuse(graph)
    first, second = torch.randn(3, 4), torch.randn(3, 4)
    wanted = first + 1, first * second, first.clone()
    results = run(schedule, [first, second])
    torch.testing.assert_close((results[0], first, second), wanted)


def test_channels_last_stays():
    b = Builder(s0=2)
    nhwc = (ROWS, 4, 5, 5), (100, 1, 20, 4)
    x = b.input(nhwc[0], strides=nhwc[1])
    w = b.input((4, 4, 1, 1))
    bias = b.input((4, 1, 1))
    y = b.library(torch.conv2d, [x, w], nhwc[0], FLOAT32, strides=tuple(b.sizes(nhwc[1])))
    active = b.maximum(b.add(y, bias), 0.0)
    z = b.library(torch.conv2d, [active, w], nhwc[0], FLOAT32, strides=tuple(b.sizes(nhwc[1])))
    graph = b.graph(b.add(z, x))
    graph = replace(graph, outputs=(replace(graph.outputs[0], order=(0, 2, 3, 1)),))
    schedule = fuse(graph)
    assert len(kernels(schedule)) == 2
    for kernel in kernels(schedule):
        assert sum(isinstance(part, Loop) for part in statements(kernel.body)) <= 2
    inputs = torch.randn(2, 4, 5, 5).contiguous(memory_format=torch.channels_last), torch.randn(4, 4, 1, 1)
    check(graph, schedule, *inputs, torch.randn(4, 1, 1))
    assert run(schedule, [*inputs, torch.randn(4, 1, 1)])[0].is_contiguous(memory_format=torch.channels_last)


def test_results_lie_as_eager_left_them():
    b = Builder(s0=3, s1=5)
    x = b.input((ROWS, COLUMNS), strides=(1, ROWS))
    graph = b.graph(b.exp(x))
    graph = replace(graph, outputs=(replace(graph.outputs[0], order=(1, 0)),))
    schedule = fuse(graph)
    assert kernels(schedule)[0].body[0].kind is LoopKind.PARALLEL_VECTOR
    x = torch.randn(5, 3).t()
    assert run(schedule, [x])[0].stride() == x.exp().stride()


def test_shared_rows_of_many_readers_are_computed_once():
    b = Builder(s0=300, s1=5000)
    x, table = b.input((ROWS, COLUMNS)), b.input((COLUMNS,))
    row = b.exp(b.sin(b.mul(table, 2.0)))
    graph = b.graph(b.add(x, row), b.reduce("sum", b.mul(b.cos(x), row), 1), b.reduce("amax", b.add(x, row), 0))
    schedule = fuse(graph)
    assert sum("sin" in kernel_text(kernel) for kernel in kernels(schedule)) == 1
    check(graph, schedule, torch.randn(3, 5), torch.randn(5))


def test_a_value_of_numbers_alone_is_never_kept_for_other_kernels():
    b = Builder(s0=50)
    inputs = [b.input((ROWS, 4)) for _ in range(4)]
    share = b.full(inputs[0], 0.3)
    small = b.lt(b.abs(share), 0.5)
    weight = b.pow(b.where(small, share, b.sub(share, 1.0)), 0.5)
    writes = [(number, b.add(b.mul(x, weight), b.where(small, x, 1.0))) for number, x in enumerate(inputs)]
    schedule = fuse(b.graph(writes=writes))
    found = kernels(schedule)
    assert {tuple(map(str, kernel.buffers)) for kernel in found} == {tuple(map(str, found[0].buffers))}
    assert len(found) == 4 and {len(kernel.buffers) for kernel in found} == {2}
    given = [torch.randn(3, 4) for _ in inputs]
    wanted = [x * 0.3**0.5 + x for x in given]
    run(schedule, given)
    torch.testing.assert_close(given, wanted)


def test_random_calls_keep_their_order():
    b = Builder(s0=3)
    x = b.input((ROWS,))
    first = b.library(torch.bernoulli, [b.sigmoid(x)], (ROWS,), FLOAT32, random=True)
    b.library(torch.bernoulli, [b.abs(b.sin(x))], (ROWS,), FLOAT32, random=True)
    last = b.library(torch.bernoulli, [b.sigmoid(b.neg(x))], (ROWS,), FLOAT32, random=True)
    schedule = fuse(b.graph(last, b.add(first, 1.0)))
    calls = [item for item in schedule.items if isinstance(item, RunCall)]
    assert len(calls) == 3
    x = torch.randn(100)
    torch.manual_seed(7)
    results = run(schedule, [x])
    torch.manual_seed(7)
    wanted = [torch.bernoulli(p) for p in (x.sigmoid(), x.sin().abs(), (-x).sigmoid())]
    torch.testing.assert_close(results, [wanted[2], wanted[0] + 1])


def test_long_chains_neither_recurse_nor_grow_without_bound():
    b = Builder(s0=8)
    x = b.input((ROWS, 2))
    y = x
    for _ in range(1000):
        y = b.neg(y)
    graph = b.graph(y)
    schedule = fuse(graph)
    assert 2 <= len(kernels(schedule)) <= 5
    check(graph, schedule, torch.randn(2, 2))


def test_a_product_is_laid_out_as_eager_left_it():
    b = Builder(s0=3)
    x, w = b.input((2, ROWS, 4)), b.input((4, 5))
    graph = b.graph(b.matmul(x, b.expand(w, (2, 4, 5))))
    for order in [(0, 1, 2), (0, 2, 1), (1, 0, 2)]:
        turned = replace(graph, outputs=(replace(graph.outputs[0], order=order),))
        check(turned, fuse(turned), torch.randn(2, 3, 4), torch.randn(4, 5))


def test_a_transposed_operand_is_read_in_tiles(golden):
    b = Builder(s0=300, s1=500)
    x, y = b.input((2, COLUMNS, ROWS)), b.input((2, ROWS, COLUMNS))
    graph = b.graph(b.add(b.permute(x, 0, 2, 1), y))
    schedule = fuse(graph)
    golden(kernel_text(kernels(schedule)[0]))
    for rows, columns in [*SIZES, (40, 70)]:
        check(graph, schedule, torch.randn(2, columns, rows), torch.randn(2, rows, columns))


def test_consumed_inputs_are_released_after_their_last_reader():
    b = Builder()
    x, y, z, w = (b.input((64, 64)) for _ in range(4))
    h = b.matmul(b.matmul(x, y), b.permute(z, 1, 0))
    graph = replace(b.graph(b.matmul(h, y), Output(1, w, (0, 1), 3)), consumed=(0, 1, 2, 3))
    schedule = fuse(graph)
    check(graph, schedule, *(torch.randn(64, 64) for _ in range(4)), rtol=1e-4, atol=1e-3)
    memory = {schedule.memories[number].input: number for number in range(len(schedule.memories))}
    released = {}
    products = 0
    for item in schedule.items:
        products += isinstance(item, RunMatmul)
        if isinstance(item, Release):
            released.update(dict.fromkeys(item.memories, products))
    # y is read again by the last product; w is a result
    assert {place: released.get(memory[place]) for place in range(4)} == {0: 1, 1: 3, 2: 2, 3: None}


def test_a_large_result_is_made_in_the_memory_of_what_it_is_added_to():
    b = Builder()
    x, y = b.input((256, 128)), b.input((128, 256))
    schedule = fuse(b.graph(b.sin(b.matmul(x, y))))
    check(schedule.graph, schedule, torch.randn(256, 128), torch.randn(128, 256), rtol=1e-4, atol=1e-4)
    product, kernel = (item for item in schedule.items if isinstance(item, (RunMatmul, RunKernel)))
    assert schedule.memories[product.out].base == schedule.outputs[0] and schedule.arena == 0
    assert any(buffer.aliases for buffer in kernel.kernel.buffers)


def test_a_product_that_is_read_again_is_not_overwritten():
    b = Builder()
    x, y = b.input((256, 128)), b.input((128, 256))
    h = b.matmul(x, y)
    schedule = fuse(b.graph(b.sin(h), b.matmul(h, x)))
    check(schedule.graph, schedule, torch.randn(256, 128), torch.randn(128, 256), rtol=1e-3, atol=1e-2)


def test_a_value_over_a_part_of_the_row_is_not_kept_as_a_row() -> None:
    """It was read from the row before the loop over the rest of it began."""
    b = Builder(s0=3)
    x, y = b.input((ROWS, 4, 49)), b.input((ROWS, 4, 1))
    part = b.expand(b.div(b.exp(b.sin(b.add(y, 0.5))), 49.0), (ROWS, 4, 49))
    total = b.reduce("sum", part, 0, 2, keep=True)
    product = b.reduce("sum", b.mul(part, x), 0, 2, keep=True)
    first = b.mul(b.sub(b.sub(part, b.expand(total, part.shape)), b.mul(x, b.expand(product, part.shape))), 0.3)
    graph = b.graph(first, b.reduce("sum", b.mul(first, x), 0, 2), b.add(first, b.exp(x)))
    for rows in (3, 1, 5):
        check(graph, fuse(graph), torch.randn(rows, 4, 49), torch.randn(rows, 4, 1))
