"""Loop nests on the machine against the interpreter: reductions, layouts, masks, gathers, scratch rows, checks."""

import math
from dataclasses import replace

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.unit.codegen import kernels as k
from tests.unit.codegen.machine import run

from framefuse.codegen.interpreter import interpret
from framefuse.codegen.llvm.target import host
from framefuse.ir.dtypes import BFLOAT16, BOOL, FLOAT16, FLOAT32, FLOAT64, INT8, INT16, INT32, INT64, UINT8
from framefuse.ir.loops import (
    Accumulate,
    Accumulator,
    Buffer,
    Check,
    Index,
    Let,
    Load,
    Local,
    Loop,
    LoopKind,
    Number,
    Scalar,
    Scratch,
    Store,
)
from framefuse.ir.numbers import Symbol, expr, minimum

SIZES = [0, 1, 15, 16, 17, 63, 64, 65, 1000]
I, J, K, N, ROWS, COLS = k.I, k.J, k.K, k.N, k.ROWS, k.COLS


def same(kernel, buffers, numbers=(), pieces=1, exact=False):
    """Runs both; compares every buffer and the returned code, which is returned."""
    ours, theirs = [b.clone() for b in buffers], [b.clone() for b in buffers]
    code = run(kernel, ours, numbers, pieces)
    assert code == interpret(kernel, theirs, numbers)
    for a, b in zip(ours, theirs, strict=True):
        torch.testing.assert_close(a, b, equal_nan=True, **({"rtol": 0, "atol": 0} if exact else {}))
    return code


def random(count, dtype, seed=0):
    generator = torch.Generator().manual_seed(seed)
    if dtype is BOOL:
        return torch.randint(0, 2, (count,), generator=generator).bool()
    if dtype.is_integral:
        low = 0 if dtype.kind == "uint" else -5
        return torch.randint(low, 6, (count,), generator=generator).to(dtype.torch)
    return torch.randn(count, generator=generator).to(dtype.torch)


@pytest.mark.parametrize("cols", SIZES)
@pytest.mark.parametrize("op", ["sum", "prod", "max", "min", "argmax", "argmin"])
def test_row_reductions(op, cols):
    rows = 3
    x = random(rows * cols, FLOAT32) * (0.1 if op == "prod" else 1) + (1 if op == "prod" else 0)
    out = torch.full((rows,), 7, dtype=torch.int64 if op.startswith("arg") else torch.float32)
    if cols or not op.startswith("arg"):
        same(k.row_operation(op), [x, out], [rows, cols])


@pytest.mark.parametrize("dtype", [FLOAT16, BFLOAT16, FLOAT64, UINT8, INT8, INT16, INT32, INT64], ids=str)
@pytest.mark.parametrize("op", ["sum", "max", "min", "argmax", "argmin"])
def test_reductions_of_dtypes(op, dtype):
    accumulated = None
    if op == "sum":
        accumulated = {"float": FLOAT32 if dtype.size == 2 else dtype}.get(dtype.kind, INT64)
    for kernel in [k.row_operation(op, dtype, accumulated), *([k.column_operation(op, dtype)] if op != "sum" else [])]:
        x = random(5 * 37, dtype)
        out = torch.zeros(37, dtype=kernel.buffers[1].dtype.torch)
        same(kernel, [x, out], [5, 37])


@pytest.mark.parametrize("cols", [1, 17, 100])
@pytest.mark.parametrize("op", ["any", "all"])
def test_logical_reductions(op, cols):
    x = random(4 * cols, BOOL)
    x[:cols] = op == "all"
    x[cols : 2 * cols] = op != "all"
    same(k.row_operation(op, BOOL), [x, torch.zeros(4).bool()], [4, cols], exact=True)


@pytest.mark.parametrize("rows", [0, 1, 16, 17])
@pytest.mark.parametrize("cols", [0, 1, 15, 16, 17, 65, 130])
@pytest.mark.parametrize("op", ["sum", "max", "argmin"])
def test_column_reductions(op, rows, cols):
    out = torch.full((cols,), 7, dtype=torch.int64 if op.startswith("arg") else torch.float32)
    if rows or not op.startswith("arg"):
        same(k.column_operation(op), [random(rows * cols, FLOAT32), out], [rows, cols], pieces=2)


@pytest.mark.parametrize("where", [[3], [0, 99], [98], [40, 41, 99]])
@pytest.mark.parametrize("op", ["max", "min", "argmax", "argmin"])
@pytest.mark.parametrize("dtype", [FLOAT32, FLOAT64], ids=str)
def test_nan_wins_wherever_it_stands(op, where, dtype):
    x = random(100, dtype)
    x[where] = math.nan
    out = torch.zeros(1, dtype=torch.int64 if op.startswith("arg") else dtype.torch)
    same(k.row_operation(op, dtype), [x, out], [1, 100], exact=True)


@pytest.mark.parametrize("fill", [math.inf, -math.inf, 0.0])
@pytest.mark.parametrize("op", ["argmax", "argmin", "max", "min"])
def test_rows_of_one_value(op, fill):
    out = torch.zeros(2, dtype=torch.int64 if op.startswith("arg") else torch.float32)
    same(k.row_operation(op), [torch.full((66,), fill), out], [2, 33], exact=True)


def test_sum_of_a_million_is_close_to_double():
    x = torch.rand(1_000_003)
    out = torch.zeros(1)
    assert run(k.chain_sum(0), [x, out], [len(x)]) == 0
    assert abs(out.item() / x.double().sum().item() - 1) < 2e-7


@pytest.mark.parametrize("rows", [63, 64, 65, 20000])
def test_sums_of_many_rows_are_as_exact_as_eagers(rows):
    x, out = torch.randn(rows, 20), torch.zeros(20)
    assert run(k.column_operation("sum"), [x, out], [rows, 20]) == 0
    exact = x.double().sum(0)
    assert (out - exact).abs().max() <= 3 * (x.sum(0) - exact).abs().max() + 1e-5


def test_a_sum_always_has_the_same_bits():
    x, results = torch.randn(4099), set()
    for _ in range(3):
        out = torch.zeros(1)
        run(k.chain_sum(3), [x.clone(), out], [len(x)])
        results.add(out.item())
    assert len(results) == 1


@pytest.mark.parametrize("kernel", [k.softmax, k.layer_norm])
@pytest.mark.parametrize("cols", SIZES)
def test_rows_in_pieces(kernel, cols):
    made = kernel()
    buffers = [random(5 * cols, FLOAT32)]
    buffers += [random(cols, FLOAT32, seed) for seed in range(1, len(made.buffers) - 1)]
    same(made, [*buffers, torch.zeros(5 * cols)], [5, cols], pieces=2)


# ---- layouts


def two_dimensional(value, numbers=(), buffers=(), kind=LoopKind.SERIAL):
    """out[i, j] = value over (rows, cols); the vector loop is the inner one."""
    body = (Loop(J, COLS.expr, (Store("out", I.expr * COLS.expr + J.expr, value),), LoopKind.VECTOR),)
    return k.kernel(
        [*buffers, Buffer("out", value.dtype, True)],
        [ROWS, COLS, *numbers],
        [Loop(I, ROWS.expr, body, kind)],
        ROWS.expr if kind is not LoopKind.SERIAL else 1,
    )


S = Symbol("s")


@pytest.mark.parametrize("dtype", [FLOAT32, FLOAT64, BFLOAT16, BOOL, INT8, INT16, INT64], ids=str)
@pytest.mark.parametrize(
    "index",
    [
        I.expr * COLS.expr + J.expr,
        J.expr * ROWS.expr + I.expr,
        I.expr,
        J.expr,
        expr(3),
        (COLS.expr - 1) - J.expr + I.expr * COLS.expr,
        J.expr * 2 + I.expr,
        J.expr * S.expr + I.expr,
        (J.expr // 3) * 2 + J.expr % 3,
        ((I.expr * COLS.expr + J.expr) // ROWS.expr),
        minimum(J.expr, ROWS.expr + I.expr),
    ],
    ids=str,
)
@pytest.mark.parametrize(("rows", "cols"), [(3, 37), (5, 64), (1, 1), (0, 5), (4, 0)])
def test_loads_of_any_layout(dtype, index, rows, cols):
    kernel = two_dimensional(Load("x", index, dtype), [S], [Buffer("x", dtype, False)])
    same(kernel, [random(max(4, rows * cols * 3 + 10), dtype), random(rows * cols, dtype, 1)], [rows, cols, 3])


@pytest.mark.parametrize("dtype", [FLOAT32, BOOL, INT16, FLOAT64], ids=str)
def test_stores_of_any_layout(dtype):
    for index, size in [(J.expr * ROWS.expr + I.expr, 1), (J.expr * 3 + I.expr * COLS.expr * 3, 3)]:
        value = k.load("x", I.expr * COLS.expr + J.expr, dtype)
        body = (Loop(J, COLS.expr, (Store("out", index, value),), LoopKind.VECTOR),)
        buffers = [Buffer("x", dtype, False), Buffer("out", dtype, True)]
        kernel = k.kernel(buffers, [ROWS, COLS], [Loop(I, ROWS.expr, body)])
        same(kernel, [random(5 * 37, dtype), random(5 * 37 * size, dtype, 1)], [5, 37])


@pytest.mark.parametrize("dtype", [FLOAT32, BOOL, INT64, FLOAT16], ids=str)
@pytest.mark.parametrize("before", [0, 1, 20])
def test_masked_loads_read_nothing_outside(dtype, before):
    """Padding: x shifted by ``before``, zeros around; the interpreter refuses a read out of bounds."""
    position = Index(J.expr - S.expr, INT64)
    inside = k.apply(
        "bit_and",
        k.apply("ge", position, k.const(0, INT64)),
        k.apply("lt", position, Scalar(N, INT64)),
    )
    kernel = two_dimensional(Load("x", J.expr - S.expr, dtype, inside), [S, N], [Buffer("x", dtype, False)])
    same(kernel, [random(10, dtype), random(2 * 37, dtype, 1)], [2, 37, before, 10])


def test_a_scalar_mask_guards_a_scalar_load():
    row = Index(I.expr - 1, INT64)
    value = Load("x", I.expr - 1, FLOAT32, k.apply("ge", row, k.const(0, INT64)))
    kernel = two_dimensional(
        k.apply("add", value, k.load("y", J)), [], [Buffer("x", FLOAT32, False), Buffer("y", FLOAT32, False)]
    )
    same(kernel, [random(2, FLOAT32), random(20, FLOAT32), torch.zeros(60)], [3, 20])


@pytest.mark.parametrize("index_dtype", [INT64, INT32], ids=str)
def test_embedding_checks_its_indices(index_dtype):
    """Rows of a table; a bad index is clamped, reported, and read nowhere."""
    at = k.cast(k.load("index", I, index_dtype), INT64)
    good = k.apply("bit_and", k.apply("ge", at, k.const(0, INT64)), k.apply("lt", at, Scalar(N, INT64)))
    body = (
        Let("good", good),
        Check(Local("good", BOOL)),
        Let("row", k.apply("where", Local("good", BOOL), at, k.const(0, INT64))),
        Loop(
            J,
            COLS.expr,
            (Store("out", I.expr * COLS.expr + J.expr, k.load("w", Symbol("row").expr * COLS.expr + J.expr)),),
            LoopKind.VECTOR,
        ),
    )
    buffers = [Buffer("index", index_dtype, False), Buffer("w", FLOAT32, False), Buffer("out", FLOAT32, True)]
    kernel = k.kernel(buffers, [ROWS, COLS, N], [Loop(I, ROWS.expr, body, LoopKind.PARALLEL)], ROWS.expr)
    index = torch.tensor([3, 0, 4, 4]).to(index_dtype.torch)
    table = random(5 * 21, FLOAT32)
    assert same(kernel, [index, table, torch.zeros(84)], [4, 21, 5], pieces=2) == 0
    for wrong in (-1, 5):
        index[2] = wrong
        assert same(kernel, [index, table, torch.zeros(84)], [4, 21, 5]) == 1


def test_gather_along_the_vector_axis():
    at = k.load("index", I.expr * COLS.expr + J.expr, INT64)
    good = k.apply("lt", at, Scalar(N, INT64))
    body = (
        Let("at", at),
        Check(good),
        Let("row", k.apply("minimum", Local("at", INT64), Index(N.expr - 1, INT64))),
        Store("out", I.expr * COLS.expr + J.expr, k.load("x", I.expr * N.expr + Symbol("row").expr)),
    )
    buffers = [Buffer("index", INT64, False), Buffer("x", FLOAT32, False), Buffer("out", FLOAT32, True)]
    rows = Loop(I, ROWS.expr, (Loop(J, COLS.expr, body, LoopKind.VECTOR),), LoopKind.PARALLEL)
    kernel = k.kernel(buffers, [ROWS, COLS, N], [rows], ROWS.expr)
    index = torch.randint(0, 9, (3 * 40,))
    assert same(kernel, [index, random(27, FLOAT32), torch.zeros(120)], [3, 40, 9]) == 0
    index[-1] = 9
    assert same(kernel, [index, random(27, FLOAT32), torch.zeros(120)], [3, 40, 9]) == 1


@pytest.mark.parametrize("size", [0, 1, 100, 9000, 20000])
def test_scratch_rows_long_and_short(size):
    at = I.expr * COLS.expr + J.expr
    centred = k.apply("sub", k.load("row", J), Local("total", FLOAT32))
    body = (
        Scratch("row", FLOAT32, COLS.expr),
        Accumulator("total", "sum", FLOAT32),
        Loop(
            J,
            COLS.expr,
            (
                Let("d", k.apply("mul", k.load("x", at), k.const(2.0))),
                Store("row", J.expr, Local("d", FLOAT32)),
                Accumulate("total", Local("d", FLOAT32)),
            ),
            LoopKind.VECTOR,
        ),
        Loop(J, COLS.expr, (Store("out", at, centred),), LoopKind.VECTOR),
    )
    kernel = k.kernel(
        [Buffer("x", FLOAT32, False), Buffer("out", FLOAT32, True)],
        [ROWS, COLS],
        [Loop(I, ROWS.expr, body, LoopKind.PARALLEL)],
        ROWS.expr,
    )
    x = random(2 * size, FLOAT32)
    out = torch.zeros(2 * size)
    assert run(kernel, [x, out], [2, size]) == 0
    doubled = 2 * x.view(2, size)
    torch.testing.assert_close(out.view(2, size), doubled - doubled.sum(1, keepdim=True), rtol=1e-4, atol=1e-4)


def test_a_written_buffer_may_be_the_one_that_was_read():
    value = k.apply("exp", k.load("x", I))
    buffers = [Buffer("x", FLOAT32, False), Buffer("out", FLOAT32, True, aliases="x")]
    kernel = k.kernel(buffers, [N], [Loop(I, N.expr, (Store("out", I.expr, value),), LoopKind.PARALLEL_VECTOR)], N.expr)
    x = torch.randn(100)
    wanted = x.exp()
    assert run(kernel, [x, x], [100], pieces=3) == 0
    torch.testing.assert_close(x, wanted)


def test_number_parameters_are_read_as_int_and_as_double():
    value = k.apply(
        "add", k.apply("mul", k.load("x", I), Scalar(Symbol("alpha"), FLOAT32, real=True)), Scalar(N, FLOAT32)
    )
    body = [Loop(I, N.expr, (Store("out", I.expr, value),), LoopKind.VECTOR)]
    kernel = k.kernel([Buffer("x", FLOAT32, False), Buffer("out", FLOAT32, True)], [N], body)
    kernel = type(kernel)(
        kernel.title, kernel.buffers, (*kernel.numbers, Number(Symbol("alpha"), True)), kernel.body, kernel.extent
    )
    same(kernel, [random(20, FLOAT32), torch.zeros(20)], [20, 0.1])


def test_division_in_a_loop_without_turns_is_no_error():
    """What may fail stays inside the loop that asks for it."""
    ratio = k.apply("floordiv", k.const(1, INT64), Scalar(S, INT64))
    kernel = two_dimensional(ratio, [S])
    assert same(kernel, [torch.zeros(0, dtype=torch.int64)], [3, 0, 0]) == 0
    assert same(kernel, [torch.zeros(0, dtype=torch.int64)], [0, 3, 0]) == 0
    assert same(kernel, [torch.zeros(3, dtype=torch.int64)], [1, 3, 0]) == 1


def test_a_size_of_zero_as_divisor_does_not_trap():
    body = [Loop(I, (N.expr // S.expr), (Store("out", I.expr, k.load("x", I.expr % S.expr)),), LoopKind.VECTOR)]
    kernel = k.kernel([Buffer("x", FLOAT32, False), Buffer("out", FLOAT32, True)], [N, S], body)
    assert run(kernel, [torch.zeros(1), torch.zeros(1)], [0, 0]) == 0
    same(kernel, [random(3, FLOAT32), torch.zeros(20)], [60, 3])


# ---- other machines

NARROW = {
    "avx2": replace(host(), vector_bytes=32, masked_bytes=4, scalef=False, stores_masked=False),
    "unmasked": replace(host(), vector_bytes=16, masked_bytes=0, scalef=False),
}


@pytest.mark.parametrize("target", NARROW.values(), ids=NARROW)
@pytest.mark.parametrize("cols", [1, 7, 8, 29, 45])
def test_narrow_vectors_and_scalar_tails(target, cols):
    """Code as for AVX2 and NEON: fewer lanes, tails in scalar loops, powers of two by shifts."""
    kernels = [k.softmax(), *(k.row_operation(op) for op in ("sum", "max", "argmin")), k.column_operation("max")]
    kernels.append(k.row_operation("sum", INT8, INT64))
    for kernel in kernels:
        memory = [random(3 * max(cols, 3), b.dtype, seed) for seed, b in enumerate(kernel.buffers)]
        ours, theirs = [b.clone() for b in memory], [b.clone() for b in memory]
        assert run(kernel, ours, [3, cols], 2, target) == interpret(kernel, theirs, [3, cols]) == 0
        torch.testing.assert_close(ours, theirs)
    heavy = k.load("x0", k.I)
    for op in ("tanh", "log1p", "neg", "exp"):
        heavy = k.apply(op, heavy)
    for value in (heavy, k.apply("lt", heavy, k.const(0.5))):
        kernel = k.pointwise([FLOAT32], value)
        memory = [random(cols, FLOAT32).abs(), torch.zeros(cols + 1, dtype=value.dtype.torch)]
        theirs = [b.clone() for b in memory]
        assert run(kernel, memory, [cols], 2, target) == interpret(kernel, theirs, [cols]) == 0
        torch.testing.assert_close(memory, theirs)
    row = k.pointwise([BFLOAT16], k.load("x0", k.I, BFLOAT16))
    for count in (cols, cols + 32):
        memory = [random(count, BFLOAT16), torch.zeros(count, dtype=torch.bfloat16)]
        assert run(row, memory, [count], 1, target) == 0
        assert torch.equal(memory[0], memory[1])
    for op in ("exp", "tanh", "erf", "log", "sin", "pow", "digamma"):
        value = k.apply(op, *([k.apply("abs", k.load("x0", k.I))] * k.TABLE[op].arity))
        x, out = random(cols, FLOAT32), torch.zeros(cols)
        assert run(k.pointwise([FLOAT32], value), [x, out], [cols], 1, target) == 0
        torch.testing.assert_close(out, getattr(torch, op)(*([x.abs()] * k.TABLE[op].arity)))


# ---- random nests

UNARY = ["neg", "abs", "exp", "sigmoid", "tanh", "sqrt", "floor", "sign"]
BINARY = ["add", "sub", "mul", "maximum", "minimum"]


@st.composite
def values(draw, depth=3):
    """A float32 value over loads of x (rows, cols), a column c (cols), a row r (rows), a strided y and locals."""
    if depth == 0 or draw(st.integers(0, 3)) == 0:
        return draw(
            st.sampled_from(
                [
                    k.load("x", I.expr * COLS.expr + J.expr),
                    k.load("x", J.expr * ROWS.expr + I.expr),
                    k.load("c", J),
                    k.load("r", I),
                    k.load("c", (J.expr * 2) % COLS.expr),
                    k.const(0.5),
                    k.cast(Index(I.expr + J.expr, INT64), FLOAT32),
                    k.cast(k.load("m", J, BOOL), FLOAT32),
                    k.cast(k.load("h", I.expr * COLS.expr + J.expr, BFLOAT16), FLOAT32),
                ]
            )
        )
    if draw(st.booleans()):
        return k.apply(draw(st.sampled_from(UNARY)), draw(values(depth=depth - 1)))
    if draw(st.integers(0, 3)) == 0:
        condition = k.apply(draw(st.sampled_from(["lt", "ge", "ne"])), draw(values(depth=0)), draw(values(depth=0)))
        return k.apply("where", condition, draw(values(depth=depth - 1)), draw(values(depth=depth - 1)))
    return k.apply(draw(st.sampled_from(BINARY)), draw(values(depth=depth - 1)), draw(values(depth=depth - 1)))


@st.composite
def nests(draw):
    at = I.expr * COLS.expr + J.expr
    value, after = draw(values()), draw(values())
    op = draw(st.sampled_from(["sum", "max", "min"]))
    if draw(st.booleans()):
        # a reduction of each row, then a map over the row that uses it
        body = (
            Accumulator("a", op, FLOAT32),
            Loop(
                J,
                COLS.expr,
                (Let("v", value), Accumulate("a", Local("v", FLOAT32)), Store("t", at, Local("v", FLOAT32))),
                LoopKind.VECTOR,
            ),
            Loop(
                J,
                COLS.expr,
                (Store("out", at, k.apply("add", k.apply("mul", after, Local("a", FLOAT32)), k.load("t", at))),),
                LoopKind.VECTOR,
            ),
        )
        return Loop(I, ROWS.expr, body, draw(st.sampled_from([LoopKind.PARALLEL, LoopKind.SERIAL])))
    # a reduction of each column, the vector loop outside, then a map over the column
    body = (
        Accumulator("a", op, FLOAT32),
        Loop(
            I, ROWS.expr, (Let("v", value), Accumulate("a", Local("v", FLOAT32)), Store("t", at, Local("v", FLOAT32)))
        ),
        Loop(
            I,
            ROWS.expr,
            (Store("out", at, k.apply("add", k.apply("mul", after, Local("a", FLOAT32)), k.load("t", at))),),
        ),
    )
    return Loop(J, COLS.expr, body, draw(st.sampled_from([LoopKind.PARALLEL_VECTOR, LoopKind.VECTOR])))


@settings(max_examples=60, deadline=None, suppress_health_check=list(HealthCheck), derandomize=True)
@given(nests(), st.sampled_from([0, 1, 2, 5]), st.sampled_from([0, 1, 3, 16, 21, 70]))
def test_random_nests(loop, rows, cols):
    names = {"x": FLOAT32, "c": FLOAT32, "r": FLOAT32, "m": BOOL, "h": BFLOAT16, "t": FLOAT32, "out": FLOAT32}
    buffers = [Buffer(name, dtype, name in ("t", "out")) for name, dtype in names.items()]
    kernel = k.kernel(buffers, [ROWS, COLS], [loop], loop.extent if loop.kind.parallel else 1)
    sizes = {"c": cols, "r": rows, "m": cols}
    memory = [random(sizes.get(name, rows * cols), dtype, seed) for seed, (name, dtype) in enumerate(names.items())]
    ours, theirs = [b.clone() for b in memory], [b.clone() for b in memory]
    assert run(kernel, ours, [rows, cols], 2) == interpret(kernel, theirs, [rows, cols]) == 0
    torch.testing.assert_close(ours, theirs, equal_nan=True, rtol=1e-4, atol=1e-4)
