"""The loop nests of the LLVM emitter's tests, as Triton modules against the same oracle."""

import math
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from tests.unit.codegen import kernels as k
from tests.unit.codegen import test_loops, test_pointwise
from tests.unit.codegen.test_loops import (  # noqa: F401
    test_a_scalar_mask_guards_a_scalar_load,
    test_a_size_of_zero_as_divisor_does_not_trap,
    test_a_sum_always_has_the_same_bits,
    test_a_written_buffer_may_be_the_one_that_was_read,
    test_column_reductions,
    test_loads_of_any_layout,
    test_logical_reductions,
    test_masked_loads_read_nothing_outside,
    test_nan_wins_wherever_it_stands,
    test_number_parameters_are_read_as_int_and_as_double,
    test_random_nests,
    test_reductions_of_dtypes,
    test_row_reductions,
    test_rows_in_pieces,
    test_rows_of_one_value,
    test_stores_of_any_layout,
    test_sum_of_a_million_is_close_to_double,
)
from tests.unit.codegen.test_pointwise import (  # noqa: F401
    test_cast_is_eagers,
    test_large_angles_are_right,
    test_row_is_eagers,
    test_where_takes_any_dtype,
)
from tests.unit.codegen.triton.interpreted import run

from framefuse.codegen.specialisation import Place, Specialisation
from framefuse.codegen.triton import by_interpreter, launched_by_triton
from framefuse.codegen.unsupported import Unsupported
from framefuse.ir.dtypes import BFLOAT16, BOOL, FLOAT16, FLOAT32, INT64
from framefuse.ir.loops import (
    Accumulate,
    Accumulator,
    Buffer,
    Check,
    Let,
    Local,
    Loop,
    LoopKind,
    Number,
    Scalar,
    Store,
)
from framefuse.ir.numbers import Symbol, expr, minimum


@pytest.fixture(autouse=True)
def the_triton_way(monkeypatch):
    monkeypatch.setattr(test_loops, "run", run)
    monkeypatch.setattr(test_pointwise, "run", run)
    # The interpreter takes these from torch, whose vectors overflow early; the device's own library does not.
    monkeypatch.setattr(test_pointwise, "IN_DOUBLE", test_pointwise.IN_DOUBLE - {"sinh", "cosh"})


@pytest.mark.parametrize("wrong", [-1, 5, None])
def test_an_embedding_checks_its_indices(wrong):
    at = k.load("index", k.I, INT64)
    good = k.apply("bit_and", k.apply("ge", at, k.const(0, INT64)), k.apply("lt", at, Scalar(k.N, INT64)))
    body = (
        Let("good", good),
        Check(Local("good", BOOL)),
        Let("row", k.apply("where", Local("good", BOOL), at, k.const(0, INT64))),
        Loop(
            k.J,
            k.COLS.expr,
            (
                Store(
                    "out",
                    k.I.expr * k.COLS.expr + k.J.expr,
                    k.load("w", Symbol("row").expr * k.COLS.expr + k.J.expr),
                ),
            ),
            LoopKind.VECTOR,
        ),
    )
    buffers = [Buffer("index", INT64, False), Buffer("w", FLOAT32, False), Buffer("out", FLOAT32, True)]
    kernel = k.kernel(buffers, [k.ROWS, k.COLS, k.N], [Loop(k.I, k.ROWS.expr, body, LoopKind.PARALLEL)], k.ROWS.expr)
    index, table, out = torch.tensor([3, 0, 4, 4]), torch.randn(5 * 21), torch.zeros(84)
    if wrong is not None:
        index[2] = wrong
        assert run(kernel, [index, table, out], [4, 21, 5]) == 1
    else:
        assert run(kernel, [index, table, out], [4, 21, 5]) == 0
        assert torch.equal(out.view(4, 21), table.view(5, 21)[index])


@pytest.mark.parametrize("columns", [1, 64, 300])
def test_code_is_right_for_other_sizes_than_its_blocks_were_chosen_for(columns):
    """64 by 128: also the sizes for which rows are seen to begin at multiples of 16 bytes."""
    for rows in (1, 11):
        x, out = torch.randn(rows * columns), torch.zeros(rows * columns)
        hints = {k.ROWS: 64, k.COLS: 128}
        for guarded in (False, True):
            compiled = by_interpreter(k.softmax(), Specialisation(hints, guarded=guarded), Place("cpu"))
            assert compiled.run([x, out], [rows, columns], rows) == 0
            torch.testing.assert_close(out.view(rows, columns), x.view(rows, columns).softmax(1))


@pytest.mark.parametrize("count", [1, 15, 1024, 2051])
def test_only_the_last_tile_of_a_long_array_ends_before_its_block(count):
    """Code made for a million elements and one, of arrays of fewer."""
    special = Specialisation({k.N: (1 << 20) + 1})
    kernel = k.pointwise([FLOAT32], k.apply("add", k.load("x0", k.I), k.const(1.0)))
    compiled, x, out = by_interpreter(kernel, special, Place("cpu")), torch.randn(count), torch.zeros(count + 9)
    assert Path(compiled.code.path).read_text().count("work(") == 3
    assert compiled.run([x, out], [count], count) == 0
    assert torch.equal(out, torch.cat((x + 1, torch.zeros(9))))
    part = minimum(expr(64), k.N.expr - k.I.expr * 64)
    body = (
        Accumulator("a", "sum", FLOAT32),
        Loop(k.J, part, (Accumulate("a", k.load("x", k.I.expr * 64 + k.J.expr)),), LoopKind.VECTOR),
        Store("out", k.I.expr, Local("a", FLOAT32)),
    )
    buffers, parts = [Buffer("x", FLOAT32, False), Buffer("out", FLOAT32, True)], -(-count // 64)
    kernel = k.kernel(buffers, [k.N, k.ROWS], [Loop(k.I, k.ROWS.expr, body, LoopKind.PARALLEL)], k.ROWS.expr)
    compiled = by_interpreter(kernel, replace(special, hints={**special.hints, k.ROWS: 5}), Place("cpu"))
    assert Path(compiled.code.path).read_text().count("work(") == 3
    assert compiled.run([x, out], [count, parts], parts) == 0
    torch.testing.assert_close(out[:parts], torch.stack([piece.sum() for piece in x.split(64)]))


@pytest.mark.parametrize("rows", [0, 1, 65])
def test_triton_launches_a_kernel_itself(rows):
    """As on a GPU whose driver no plan knows; a number may be 1, and a float is refused."""
    kernel = k.row_operation("sum")
    compiled = launched_by_triton(kernel, Specialisation({k.ROWS: 8, k.COLS: 16}), Place("cpu"))
    for columns in (1, 16, 300):
        x, out = torch.randn(rows * columns), torch.zeros(rows)
        assert compiled.run([x, out], [rows, columns], rows) == 0
        torch.testing.assert_close(out, x.view(rows, columns).sum(1))
    scaled = replace(kernel, numbers=(*kernel.numbers, Number(Symbol("factor"), True)))
    with pytest.raises(Unsupported):
        launched_by_triton(scaled, Specialisation(), Place("cpu"))


@pytest.mark.parametrize("dtype", [BFLOAT16, FLOAT16], ids=str)
@pytest.mark.parametrize("exact", [False, True])
def test_quotients_by_one_divisor_of_a_row(dtype, exact):
    """By the divisor's reciprocal, special divisors included; with eager's digits they are divisions."""
    at = k.I.expr * k.COLS.expr + k.J.expr
    wide = k.cast(k.load("x", at, dtype), FLOAT32)
    store = Store("out", at, k.cast(k.apply("div", wide, k.load("y", k.I)), dtype))
    body = (Loop(k.J, k.COLS.expr, (store,), LoopKind.VECTOR),)
    buffers = [Buffer("x", dtype, False), Buffer("y", FLOAT32, False), Buffer("out", dtype, True)]
    kernel = k.kernel(buffers, [k.ROWS, k.COLS], [Loop(k.I, k.ROWS.expr, body, LoopKind.PARALLEL)], k.ROWS.expr)
    kernel = replace(kernel, exact=exact)
    divisors = [1.0, 3.0, -7.1, 1e-20, 2e-38, 1e-40, -3e-45, 0.0, -0.0, 3e38, -1e31, math.inf, -math.inf, math.nan]
    y = torch.tensor(divisors)
    # The interpreter itself takes denormal 16-bit floats for other numbers.
    special = torch.tensor([0.0, -0.0, math.inf, -math.inf, math.nan, 1e-4, -1e30 if dtype is BFLOAT16 else -1e4])
    x = torch.cat([special, torch.randn(200), torch.randn(200) * 1e-3]).expand(len(y), -1).to(dtype.torch).contiguous()
    out = torch.zeros_like(x)
    assert run(kernel, [x.flatten(), y, out.view(-1)], [*x.shape]) == 0
    wanted = (x.float() / y[:, None]).to(dtype.torch)
    if exact:
        assert torch.equal(out.view(torch.int16)[~wanted.isnan()], wanted.view(torch.int16)[~wanted.isnan()])
    torch.testing.assert_close(out, wanted, rtol=2**-7 if dtype is BFLOAT16 else 2**-10, atol=0, equal_nan=True)
    assert torch.equal(out.signbit()[~wanted.isnan()], wanted.signbit()[~wanted.isnan()])
    assert (out == wanted)[~wanted.isnan()].float().mean() > 0.99
