"""Comparisons of positions with a number along a row are lanes before a point, whatever the number and the element."""

from dataclasses import replace

import pytest
import torch
from tests.unit.codegen.kernels import I, N, apply, load
from torch.nn import functional as F

import framefuse
from framefuse.codegen.llvm.line_tests import LineTest, line_test
from framefuse.codegen.llvm.shape import vector_shape
from framefuse.codegen.llvm.target import REFERENCE
from framefuse.ir.dtypes import BFLOAT16, BOOL, FLOAT32, INT64
from framefuse.ir.loops import Apply, Const, Index, Loop, LoopKind, Store
from framefuse.ir.numbers import expr


def positions(x):
    return torch.arange(x.shape[-1])


PROGRAMS = {
    "borders": lambda x: F.pad(x, (2, 3)),
    "borders of pictures": lambda x: F.pad(x, (1, 2, 0, 1)),
    "lower": lambda x: x.tril(),
    "upper": lambda x: x.triu(2),
    "band": lambda x: x.tril(1).triu(-2),
    "causal": lambda x: x.masked_fill(positions(x)[None] > torch.arange(x.shape[0])[:, None], 3),
    "turned": lambda x: torch.where(5 - positions(x) < torch.arange(x.shape[0])[:, None], x, 1),
    "turned or equal": lambda x: torch.where(5 - positions(x) <= torch.arange(x.shape[0])[:, None], x, 1),
    "one": lambda x: torch.where(positions(x) == torch.arange(x.shape[0])[:, None] + 1, x, 2),
    "all but one": lambda x: torch.where(7 - positions(x) != torch.arange(x.shape[0])[:, None], x, 2),
    "none": lambda x: torch.where(positions(x) >= 2**62, x, 2),
    "all": lambda x: torch.where(positions(x) > -(2**39), x, 2),
    "every other": lambda x: torch.where(2 * positions(x) > 9, x, 2),
}


@pytest.mark.parametrize("name", PROGRAMS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16, torch.int64, torch.bool, torch.uint8])
def test_rows_cut_by_positions(name, dtype):
    function = PROGRAMS[name]
    fast = framefuse.compile(function)
    for wide in (37, 37, 64, 5, 16, 129, 300):
        torch.manual_seed(wide)
        x = torch.randint(0, 4, (9, wide)).to(dtype)
        torch.testing.assert_close(fast(x), function(x), rtol=0, atol=0)
    assert framefuse.explain(fast).hits >= 3


def test_what_is_such_a_comparison():
    test = Apply("ge", (Index(expr(N) - expr(I), INT64), Const(3, INT64)), BOOL)
    assert line_test(test, I) == LineTest("ge", expr(N) - 3, -1)
    assert line_test(test, N) == LineTest("ge", -3 - expr(I), 1)
    assert line_test(replace(test, op="add"), I) is None
    assert line_test(replace(test, args=(Index(expr(I) * 2, INT64), Const(3, INT64))), I) is None
    assert line_test(replace(test, args=(Index(expr(I), INT64), Const(2**62, INT64))), I) is None


def test_16_bit_floats_that_are_only_moved_fill_vectors():
    test = Apply("ge", (Index(expr(I), INT64), Const(3, INT64)), BOOL)
    chosen = Apply("where", (test, load("x", I, BFLOAT16), Const(0.0, BFLOAT16)), BFLOAT16)
    computed = Apply("cast", (apply("neg", Apply("cast", (chosen,), FLOAT32)),), BFLOAT16)
    for value, target, lanes in (
        (chosen, REFERENCE, 32),
        (computed, REFERENCE, 16),
        (chosen, replace(REFERENCE, vector_bytes=32, masked_bytes=4), 8),
    ):
        loop = Loop(I, expr(N), (Store("out", expr(I), value),), LoopKind.VECTOR)
        assert vector_shape(loop, target, False).lanes == lanes
