"""Positions of rows are moved on from turn to turn: no turn of a parallel loop divides, wherever a thread begins."""

import pytest
import torch
from tests.unit.codegen import kernels as k
from tests.unit.codegen.machine import run

import framefuse
from framefuse.codegen.interpreter import interpret
from framefuse.codegen.llvm.emitter import emit
from framefuse.codegen.llvm.target import host
from framefuse.ir.dtypes import INT64
from framefuse.ir.loops import Buffer, Index, Loop, LoopKind, Store
from framefuse.ir.numbers import Symbol

I, N, D, E, F = k.I, k.N, Symbol("d"), Symbol("e"), Symbol("f")
POSITIONS = {
    "quotient": I.expr // D.expr,
    "remainder": I.expr % E.expr,
    "digit": (I.expr // E.expr) % F.expr,
    "all": (I.expr // D.expr) * 10000 + ((I.expr // E.expr) % F.expr) * 100 + I.expr % E.expr,
    "quotient and digit": (I.expr // E.expr) * 100 + (I.expr // E.expr) % F.expr,
    "two digits": (I.expr // E.expr) % F.expr + 100 * ((I.expr // E.expr) % D.expr),
    "numbers": (I.expr // 6) * 100 + I.expr % 6,
    "product": I.expr // (D.expr * E.expr),
    "of another number": (I.expr + 1) // D.expr + I.expr % (D.expr + 2),
    "in a digit": I.expr % (I.expr // D.expr + 1),
}


def divided(position):
    """``out[i] = position`` for i < n."""
    body = (Store("out", I.expr, Index(position, INT64)),)
    loop = Loop(I, N.expr, body, LoopKind.PARALLEL)
    return k.kernel([Buffer("out", INT64, True)], (N, D, E, F), [loop], N.expr)


@pytest.mark.parametrize("name", POSITIONS)
@pytest.mark.parametrize(
    "sizes", [(120, 30, 6, 5), (77, 7, 1, 7), (9, 1, 9, 1), (1, 3, 5, 2), (0, 0, 0, 0), (50, 99, 99, 3)]
)
@pytest.mark.parametrize("pieces", [1, 2, 7])
def test_digits_of_a_parallel_loop(name, sizes, pieces):
    kernel = divided(POSITIONS[name])
    ours, theirs = (torch.full((sizes[0] + 1,), -1, dtype=torch.int64) for _ in range(2))
    assert run(kernel, [ours], sizes, pieces) == interpret(kernel, [theirs], sizes) == 0
    assert torch.equal(ours, theirs)


@pytest.mark.parametrize("name", ["quotient", "remainder", "digit", "all", "two digits", "numbers", "product"])
def test_no_turn_divides(name):
    text = emit(divided(POSITIONS[name]), host()).text
    _, _, loop = text.partition("\nloop")
    assert "sdiv" in text and "sdiv" not in loop


def test_a_divisor_that_changes_is_divided_by():
    _, _, loop = emit(divided(POSITIONS["in a digit"]), host()).text.partition("\nloop")
    assert loop.count("sdiv") == 1


ROWS = {
    "cut": lambda n: torch.randn(2, 3 + n, 9, 30)[:, :, 1:-1, :29],
    "turned": lambda n: torch.randn(3, 5, 4 + n, 7).permute(2, 0, 3, 1)[..., 1:],
    "expanded": lambda n: torch.randn(1, 12 + n, 11).expand(3, 12 + n, 11),
}
PROGRAMS = {
    "pointwise": lambda x: x * 2 + 1,
    "sum": lambda x: x.sum(-1),
    "cat": lambda x: torch.cat((x, x * 2), 1),
    "turned": lambda x: x.transpose(0, -1) * 3,
}


@pytest.mark.parametrize("name", PROGRAMS)
@pytest.mark.parametrize("layout", ROWS)
def test_rows_of_many_axes(name, layout):
    fast = framefuse.compile(PROGRAMS[name])
    for size in range(4):
        x = ROWS[layout](size)
        torch.testing.assert_close(fast(x), PROGRAMS[name](x))
    assert framefuse.explain(fast).hits == 3
