"""Loop nests print as text that reads like Python."""

import pytest
from tests.unit.codegen import kernels as k

from framefuse.ir.dtypes import BOOL, FLOAT32, INT64
from framefuse.ir.loops import Apply, Buffer, Check, Const, Kernel, Load, Local, Loop, LoopKind, Scratch, Store
from framefuse.ir.loops.print import kernel_text, value_text
from framefuse.ir.numbers import Symbol, expr
from framefuse.ir.source import Line


@pytest.mark.parametrize("make", [k.softmax, k.layer_norm, lambda: k.row_operation("argmax"), lambda: k.chain_sum(6)])
def test_kernels(make, golden, request):
    kernel = make()
    golden(kernel_text(Kernel("kernel", kernel.buffers, kernel.numbers, kernel.body, kernel.extent)))


def test_masks_checks_scratch_and_aliases(golden):
    i = Symbol("i")
    good = Apply("lt", (Const(1, INT64), Const(2, INT64)), BOOL)
    body = (
        Check(good),
        Scratch("row", FLOAT32, expr(8)),
        Loop(i, expr(8), (Store("row", i.expr, Load("x", i.expr - 1, FLOAT32, Local("ok", BOOL))),), LoopKind.VECTOR),
        Loop(i, expr(8), ()),
    )
    buffers = (Buffer("x", FLOAT32, False), Buffer("out", FLOAT32, True, aliases="x"))
    golden(kernel_text(Kernel("kernel", buffers, (), body, expr(1), (Line("model.py", 12, "forward"),))))


def test_special_constants():
    assert value_text(Const(float("nan"), FLOAT32)) == "f32(nan)"
    assert value_text(Apply("cast", (Const(True, BOOL),), FLOAT32)) == "f32(b8(True))"
