"""Builds by hand the kernel of a linear layer with a relu behind it."""

from __future__ import annotations

from framefuse.ir.dtypes import FLOAT32, DType
from framefuse.ir.loops import (
    Accumulate,
    Accumulator,
    Apply,
    Buffer,
    Const,
    Kernel,
    Let,
    Load,
    Local,
    Loop,
    LoopKind,
    Number,
    Product,
    Store,
    Value,
)
from framefuse.ir.numbers import Symbol, expr

M, N, K = Symbol("n0"), Symbol("n1"), Symbol("n2")
R, C, T = Symbol("i0"), Symbol("i1"), Symbol("i2")


def linear_relu(dtype: DType, lie: str = "nt", sizes: tuple[int, int, int] | None = None) -> Kernel:
    """``relu(a @ c + bias)``; ``lie`` says of each operand whether it lies as it is (n) or transposed (t)."""
    m, n, k = (M.expr, N.expr, K.expr) if sizes is None else map(expr, sizes)

    def wide(value: Value) -> Value:
        return value if dtype is FLOAT32 else Apply("cast", (value,), FLOAT32)

    left = Load("b0", R.expr * k + T.expr if lie[0] == "n" else T.expr * m + R.expr, dtype)
    right = Load("b1", T.expr * n + C.expr if lie[1] == "n" else C.expr * k + T.expr, dtype)
    total = Apply("add", (Local("a0", FLOAT32), wide(Load("b2", C.expr, dtype))), FLOAT32)
    result: Value = Apply("maximum", (Local("v0", FLOAT32), Const(0.0, FLOAT32)), FLOAT32)
    body = (
        Accumulator("a0", "sum", FLOAT32),
        Loop(T, k, (Accumulate("a0", Apply("mul", (wide(left), wide(right)), FLOAT32)),)),
        Let("v0", total),
        Store("b3", R.expr * n + C.expr, result if dtype is FLOAT32 else Apply("cast", (result,), dtype)),
    )
    row = Loop(R, m, (Loop(C, n, body, LoopKind.VECTOR),), LoopKind.PARALLEL)
    buffers = tuple(Buffer(f"b{place}", dtype, place == 3) for place in range(4))
    numbers = tuple(map(Number, (M, N, K))) if sizes is None else ()
    return Kernel("linear_relu", buffers, numbers, (row,), m, product=Product(R, C, T, "a0"))
