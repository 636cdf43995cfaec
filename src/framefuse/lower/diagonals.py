"""Lowers functions that read the diagonals of matrices: a diagonal is a view that kernels read where it lies."""

from __future__ import annotations

from framefuse.ir.builder import ZERO
from framefuse.ir.graph import Node
from framefuse.ir.numbers import Expr, expr
from framefuse.ir.values import Value
from framefuse.lower.aliases import path_between, scatter
from framefuse.lower.context import Lowering
from framefuse.lower.promotion import is_number
from framefuse.lower.reductions import sum_
from framefuse.lower.rules import Unsupported, rule


@rule("diagonal", "diagonal_copy")
def view(lo: Lowering, input: Node, offset: Value = 0, dim1: Value = 0, dim2: Value = 1) -> Node:
    first, second = lo.axis(dim1, len(input.shape)), lo.axis(dim2, len(input.shape))
    if first == second or not isinstance(offset, (int, Expr)):
        raise Unsupported("one dimension")
    rest = [axis for axis in range(len(input.shape)) if axis not in (first, second)]
    turned = lo.permute(input, [*rest, first, second])
    row, column = _start(lo, expr(offset))
    length = _length(lo, turned.shape[-2] - row, turned.shape[-1] - column)
    starts = [*([ZERO] * len(rest)), row, column]
    return lo.diagonal(lo.slice(turned, starts, [1] * len(starts), (*turned.shape[:-2], length, length)))


@rule("linalg.diagonal")
def linalg_diagonal(lo: Lowering, A: Node, *, offset: Value = 0, dim1: Value = -2, dim2: Value = -1) -> Node:
    return view(lo, A, offset, dim1, dim2)


@rule("diag")
def diag(lo: Lowering, input: Node, diagonal: Value = 0, *, out: Value = None) -> Node:
    if len(input.shape) != 2:
        raise Unsupported("a matrix is made")
    return view(lo, input, diagonal)


@rule("trace")
def trace(lo: Lowering, input: Node) -> Node:
    if len(input.shape) != 2:
        raise Unsupported("no matrix")
    return sum_(lo, view(lo, input))


@rule("fill_diagonal_")
def fill_diagonal(lo: Lowering, input: Node, fill_value: Value, wrap: bool = False) -> Node:
    """Of a matrix."""
    if len(input.shape) != 2 or wrap or not is_number(fill_value):
        raise Unsupported("a diagonal of many dimensions")
    shown = view(lo, input)
    path = path_between(shown, input)
    if path is None or input.device != "cpu":
        raise Unsupported("a constant")
    return scatter(lo, path, input, lo.full(fill_value, input.dtype, shown.shape, input.device))


def _start(lo: Lowering, offset: Expr) -> tuple[Expr, Expr]:
    """The row and the column in which a diagonal starts."""
    if lo.size(offset) < 0:
        lo.require("<", offset, ZERO, "a diagonal below")
        return -offset, ZERO
    lo.require("<=", ZERO, offset, "a diagonal above")
    return ZERO, offset


def _length(lo: Lowering, rows: Expr, columns: Expr) -> Expr:
    """How many elements a diagonal has that begins in the corner of so many rows and columns."""
    short, long = (rows, columns) if lo.size(rows) <= lo.size(columns) else (columns, rows)
    if lo.size(short) <= 0:
        raise Unsupported("no element")
    lo.require("<=", short, long, "the length of a diagonal")
    lo.require("<", ZERO, short, "a diagonal with elements")
    return short
