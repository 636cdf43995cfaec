"""Running extremes: a NaN anywhere wins, and machines without registers of masks remember it without packing masks."""

from dataclasses import replace

import pytest
import torch
from tests.unit.codegen import kernels as k
from tests.unit.codegen.machine import run

from framefuse.codegen.llvm.emitter import emit
from framefuse.codegen.llvm.target import host
from framefuse.ir.dtypes import BFLOAT16, FLOAT32, FLOAT64

AVX2 = replace(host(), vector_bytes=32, masked_bytes=4, scalef=False, stores_masked=False)
AVX512 = replace(host(), vector_bytes=64, masked_bytes=1, stores_masked=True)
NEON = replace(host(), vector_bytes=16, masked_bytes=0, scalef=False)


@pytest.mark.parametrize("target", [AVX2, NEON, host()], ids=["avx2", "neon", "host"])
@pytest.mark.parametrize("dtype", [FLOAT32, FLOAT64, BFLOAT16], ids=str)
@pytest.mark.parametrize("op", ["max", "min"])
@pytest.mark.parametrize("form", [k.row_operation, k.column_operation])
@pytest.mark.parametrize("columns", [1, 7, 45, 100])
def test_a_nan_anywhere_wins(target, dtype, op, form, columns):
    kernel = form(op, dtype)
    x = torch.randn(9, columns).to(dtype.torch)
    for row in range(7):
        x[row, row * 13 % columns] = torch.nan
    axis = 1 if form is k.row_operation else 0
    out = torch.zeros(x.shape[1 - axis], dtype=dtype.torch)
    assert run(kernel, [x.clone(), out], [9, columns], 1, target) == 0
    torch.testing.assert_close(out, getattr(x, f"a{op}")(axis), equal_nan=True)


@pytest.mark.parametrize("target", [AVX2, NEON], ids=["avx2", "neon"])
@pytest.mark.parametrize("dtype", [FLOAT32, FLOAT64], ids=str)
def test_no_loop_carries_masks(target, dtype):
    text = emit(k.row_operation("max", dtype), target).text
    assert "phi <" in text
    assert not [line for line in text.splitlines() if "phi <" in line and "x i1>" in line]


@pytest.mark.parametrize("dtype", [FLOAT32, FLOAT64], ids=str)
@pytest.mark.parametrize("op", ["max", "min"])
def test_registers_of_masks_are_tested_once_and_lanes_beyond_a_row_clear_the_mask_of_nans(dtype, op):
    lines = emit(k.row_operation(op, dtype), AVX512).text.splitlines()
    masks = f"<{64 // dtype.size} x i1>"
    assert sum(f"bitcast {masks}" in line for line in lines) == 1
    assert not [line for line in lines if "shufflevector" in line and "x i1>" in line]
    assert not [line for line in lines if "select" in line and line.count(masks) == 3]
