"""Builds small kernels by hand, for the tests of code generation."""

from __future__ import annotations

from collections.abc import Sequence

from framefuse.ir.dtypes import BOOL, FLOAT32, INT64, DType
from framefuse.ir.loops import (
    Accumulate,
    Accumulator,
    Apply,
    Buffer,
    Const,
    Index,
    Kernel,
    Let,
    Load,
    Local,
    Loop,
    LoopKind,
    Number,
    Statement,
    Store,
    Value,
)
from framefuse.ir.numbers import Expr, Symbol, expr, minimum
from framefuse.ir.ops import TABLE

N, ROWS, COLS = Symbol("n"), Symbol("rows"), Symbol("cols")
I, J, K = Symbol("i"), Symbol("j"), Symbol("k")


def apply(op: str, *args: Value) -> Apply:
    """``op`` on values, with the dtype that its row of the table says."""
    rule = TABLE[op].dtype
    dtype = BOOL if rule == "bool" else args[1].dtype if rule == "second" else args[0].dtype
    return Apply(op, args, dtype)


def cast(value: Value, dtype: DType) -> Apply:
    return Apply("cast", (value,), dtype)


def const(value: float, dtype: DType = FLOAT32) -> Const:
    return Const(value, dtype)


def load(buffer: str, index: Expr | Symbol | int, dtype: DType = FLOAT32, mask: Value | None = None) -> Load:
    return Load(buffer, expr(index), dtype, mask)


def kernel(
    buffers: Sequence[Buffer], numbers: Sequence[Symbol], body: Sequence[Statement], extent: Expr | int = 1
) -> Kernel:
    return Kernel("test", tuple(buffers), tuple(Number(n) for n in numbers), tuple(body), expr(extent))


def pointwise(inputs: Sequence[DType], value: Value, kind: LoopKind = LoopKind.PARALLEL_VECTOR) -> Kernel:
    """``out[i] = value`` for i < n over inputs x0, x1, ...; value loads them at ``i``."""
    buffers = [Buffer(f"x{k}", dtype, False) for k, dtype in enumerate(inputs)] + [Buffer("out", value.dtype, True)]
    loop = Loop(I, N.expr, (Store("out", I.expr, value),), kind)
    return kernel(buffers, [N], [loop], N.expr if kind.parallel else 1)


def row_operation(op: str, dtype: DType = FLOAT32, accumulated: DType | None = None) -> Kernel:
    """``out[i] = op over j of x[i, j]`` for (rows, cols)."""
    result = INT64 if op.startswith("arg") else accumulated or dtype
    value: Value = load("x", I.expr * COLS.expr + J.expr, dtype)
    if accumulated is not None and accumulated is not dtype:
        value = cast(value, accumulated)
    body = (
        Accumulator("a", op, result, value.dtype if op.startswith("arg") else None),
        Loop(J, COLS.expr, (Accumulate("a", value, J.expr if op.startswith("arg") else None),), LoopKind.VECTOR),
        Store("out", I.expr, Local("a", result)),
    )
    return kernel(
        [Buffer("x", dtype, False), Buffer("out", result, True)],
        [ROWS, COLS],
        [Loop(I, ROWS.expr, body, LoopKind.PARALLEL)],
        ROWS.expr,
    )


def column_operation(op: str, dtype: DType = FLOAT32) -> Kernel:
    """``out[j] = op over i of x[i, j]``: the vector loop outside the serial one."""
    result = INT64 if op.startswith("arg") else dtype
    body = (
        Accumulator("a", op, result, dtype if op.startswith("arg") else None),
        Loop(I, ROWS.expr, (Accumulate("a", load("x", I.expr * COLS.expr + J.expr, dtype), I.expr),)),
        Store("out", J.expr, Local("a", result)),
    )
    return kernel(
        [Buffer("x", dtype, False), Buffer("out", result, True)],
        [ROWS, COLS],
        [Loop(J, COLS.expr, body, LoopKind.PARALLEL_VECTOR)],
        COLS.expr,
    )


def softmax() -> Kernel:
    """Softmax of the last axis of (rows, cols), the exponentials kept in the output."""
    at = I.expr * COLS.expr + J.expr
    scaled = apply("mul", load("out", at), Local("scale", FLOAT32))
    top, total = Local("top", FLOAT32), Local("total", FLOAT32)
    body = (
        Accumulator("top", "max", FLOAT32),
        Loop(J, COLS.expr, (Accumulate("top", load("x", at)),), LoopKind.VECTOR),
        Accumulator("total", "sum", FLOAT32),
        Loop(
            J,
            COLS.expr,
            (
                Let("e", apply("exp", apply("sub", load("x", at), top))),
                Store("out", at, Local("e", FLOAT32)),
                Accumulate("total", Local("e", FLOAT32)),
            ),
            LoopKind.VECTOR,
        ),
        Let("scale", apply("reciprocal", total)),
        Loop(J, COLS.expr, (Store("out", at, scaled),), LoopKind.VECTOR),
    )
    return kernel(
        [Buffer("x", FLOAT32, False), Buffer("out", FLOAT32, True)],
        [ROWS, COLS],
        [Loop(I, ROWS.expr, body, LoopKind.PARALLEL)],
        ROWS.expr,
    )


def layer_norm() -> Kernel:
    """Layer norm of the last axis of (rows, cols) with weight and bias: mean, then squares of the differences."""
    at = I.expr * COLS.expr + J.expr
    mean, scale = Local("mean", FLOAT32), Local("scale", FLOAT32)
    count = cast(Local("count", INT64), FLOAT32)
    difference = apply("sub", load("x", at), mean)
    body = (
        Accumulator("total", "sum", FLOAT32),
        Loop(J, COLS.expr, (Accumulate("total", load("x", at)),), LoopKind.VECTOR),
        Let("mean", apply("div", Local("total", FLOAT32), count)),
        Accumulator("squares", "sum", FLOAT32),
        Loop(
            J,
            COLS.expr,
            (Let("d", difference), Accumulate("squares", apply("mul", Local("d", FLOAT32), Local("d", FLOAT32)))),
            LoopKind.VECTOR,
        ),
        Let(
            "scale",
            apply("rsqrt", apply("add", apply("div", Local("squares", FLOAT32), count), const(1e-5))),
        ),
        Loop(
            J,
            COLS.expr,
            (
                Store(
                    "out",
                    at,
                    apply("add", apply("mul", apply("mul", difference, scale), load("w", J)), load("b", J)),
                ),
            ),
            LoopKind.VECTOR,
        ),
    )
    buffers = [Buffer(n, FLOAT32, n == "out") for n in ("x", "w", "b", "out")]
    from_cols = Let("count", Index(COLS.expr, INT64))
    return kernel(buffers, [ROWS, COLS], [Loop(I, ROWS.expr, (from_cols, *body), LoopKind.PARALLEL)], ROWS.expr)


def chain_sum(count: int) -> Kernel:
    """The benchmark's chain of ``count`` statements closed by a sum over n elements."""
    value: Value = load("x", K)
    for statement in range(count):
        value = CHAIN[statement % len(CHAIN)](value)
    body = (
        Accumulator("total", "sum", FLOAT32),
        Loop(
            J,
            (N.expr + 4095) // 4096,
            (
                Accumulator("part", "sum", FLOAT32),
                Loop(
                    I,
                    minimum(expr(4096), N.expr - J.expr * 4096),
                    (Accumulate("part", _at(value, J.expr * 4096 + I.expr)),),
                    LoopKind.VECTOR,
                ),
                Accumulate("total", Local("part", FLOAT32)),
            ),
        ),
        Store("out", expr(0), Local("total", FLOAT32)),
    )
    return kernel([Buffer("x", FLOAT32, False), Buffer("out", FLOAT32, True)], [N], body)


def _at(value: Value, index: Expr) -> Value:
    """``value`` with every load moved to ``index``."""
    if isinstance(value, Load):
        return Load(value.buffer, index, value.dtype, value.mask)
    if isinstance(value, Apply):
        return Apply(value.op, tuple(_at(arg, index) for arg in value.args), value.dtype)
    return value


CHAIN = (
    lambda x: apply("add", x, const(0.1)),
    lambda x: apply("sin", x),
    lambda x: apply("mul", x, const(1.1)),
    lambda x: apply("cos", x),
    lambda x: apply("add", x, const(0.2)),
    lambda x: apply("maximum", const(0.0), x),
    lambda x: apply("sub", x, const(0.1)),
    lambda x: apply("exp", apply("mul", x, const(0.5))),
    lambda x: apply("add", x, const(0.3)),
    lambda x: apply("sigmoid", x),
    lambda x: apply("mul", x, const(1.2)),
    lambda x: apply("sin", x),
    lambda x: apply("add", x, const(0.4)),
    lambda x: apply("cos", x),
    lambda x: apply("sub", x, const(0.2)),
    lambda x: apply("maximum", const(0.0), x),
    lambda x: apply("add", x, const(0.5)),
    lambda x: apply("exp", apply("mul", x, const(0.4))),
    lambda x: apply("mul", x, const(1.3)),
    lambda x: apply("sigmoid", x),
)
