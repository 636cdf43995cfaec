"""How a vector loop runs follows from what it computes and from where it stands."""

from dataclasses import replace

import pytest
import torch
from tests.unit.codegen.kernels import I, N, apply, load

import framefuse
from framefuse.codegen.llvm.shape import Shape, vector_shape
from framefuse.codegen.llvm.target import REFERENCE
from framefuse.ir.dtypes import BFLOAT16, FLOAT32, FLOAT64
from framefuse.ir.loops import Loop, LoopKind, Store
from framefuse.ir.numbers import expr

AVX2 = replace(REFERENCE, vector_bytes=32, masked_bytes=4, stores_masked=False)


def shape(*ops, repeated, dtype=FLOAT32, target=REFERENCE, step=1):
    value = load("x", I, dtype)
    for op in ops:
        value = apply(op, value)
    loop = Loop(I, expr(N), (Store("out", expr(I) * step, value),), LoopKind.VECTOR)
    return vector_shape(loop, target, repeated)


def test_short_rows_compute_no_vectors_beyond_them():
    heavy = ("tanh", "log")
    assert shape(*heavy, repeated=False) == Shape(16, 4, main=False, masked=True)
    assert shape(*heavy, repeated=True) == Shape(16, 2, main=True, masked=True)
    assert not shape(*heavy * 4, repeated=True).main  # too much to write twice
    assert shape("neg", repeated=True) == shape("neg", repeated=False)


def test_functions_that_are_called_run_two_in_a_turn():
    for repeated in (False, True):
        assert shape("atan", repeated=repeated) == Shape(16, 2, main=True, masked=True)
        assert shape("exp", repeated=repeated, dtype=FLOAT64) == Shape(8, 2, main=True, masked=True)


def test_small_elements_that_the_machine_cannot_mask_end_in_single_vectors():
    light, heavy = (shape(op, repeated=True, dtype=BFLOAT16, target=AVX2) for op in ("neg", "tanh"))
    assert light == Shape(8, 4, main=True, masked=False, singles=True)
    assert heavy == Shape(8, 4, main=True, masked=True, singles=True)  # a branch a lane takes less than one by one
    assert not shape("tanh", repeated=True, target=AVX2).singles


def test_masked_stores_that_take_long_are_left_out_of_light_loops():
    assert shape("neg", repeated=True, target=AVX2) == Shape(8, 4, main=True, masked=False, singles=True)
    assert shape("tanh", repeated=True, target=AVX2).masked


def test_short_rows_of_elements_that_are_written_apart_end_in_single_vectors():
    """Lanes that may be off write one by one what others write as rows."""
    assert shape("neg", repeated=True, step=2) == Shape(16, 4, main=True, masked=True, singles=True)
    assert not shape("neg", repeated=False, step=2).singles and not shape("neg", repeated=True).singles


@pytest.mark.parametrize("dtype", [torch.complex64, torch.complex128], ids=str)
def test_short_rows_of_complex_numbers(dtype):
    def program(x, y):
        product = torch.view_as_complex(x.reshape(*x.shape[:-1], -1, 2)) * y
        return torch.view_as_real(product).flatten(-2)

    for heads, columns in ((4, 16), (4, 1), (5, 7), (3, 15), (2, 17), (5, 24), (2, 31), (2, 33), (9, 64)):
        fast = framefuse.compile(program)
        for _ in range(3):
            y = torch.randn(6, 1, columns, dtype=dtype)
            x = torch.randn(3, 6, heads, 2 * columns, dtype=y.real.dtype)
            torch.testing.assert_close(fast(x, y), program(x, y))
        assert fast.hits == 2


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16, torch.float16])
def test_rows_of_every_length(dtype):
    def program(x):
        y = torch.tanh(x) * torch.log1p(x.abs())
        return y, torch.atan(x), y.float().sum(1)

    fast, near = framefuse.compile(program), {torch.bfloat16: 0.04, torch.float16: 0.01}.get(dtype, 1e-5)
    for columns in (5, 5, 1, 13, 16, 17, 31, 32, 33, 64, 65, 0):
        x = torch.randn(7, columns + 3).to(dtype)[:, 1:-2]
        for mine, other in zip(fast(x), program(x), strict=True):
            torch.testing.assert_close(mine, other, rtol=near, atol=near)
    assert fast.hits >= 8
