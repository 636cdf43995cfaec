"""Comparisons of positions along a vector loop: the lanes before a point, or behind it, with no position of a lane."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from framefuse.codegen.llvm.builder import Builder, Reg
from framefuse.ir.dtypes import INT64, DType
from framefuse.ir.loops import Apply, Const, Index, Statement, Value
from framefuse.ir.loops.walk import operands, statements, values
from framefuse.ir.numbers import Expr, Symbol, expr

# By the comparison with zero of base + lane that of the lane with -base + the number; and by that of base - lane the
# one with base + the number.
FORWARD = {"ge": ("uge", 0), "gt": ("uge", 1), "lt": ("ult", 0), "le": ("ult", 1), "eq": ("eq", 0), "ne": ("ne", 0)}
BACKWARD = {"ge": ("ult", 1), "gt": ("ult", 0), "lt": ("uge", 1), "le": ("uge", 0), "eq": ("eq", 0), "ne": ("ne", 0)}
FAR = 2**40  # constants beyond are no positions, and a difference of them might overflow


@dataclass(frozen=True, slots=True)
class LineTest:
    """``base + slope * axis`` compared with zero; the slope is 1 or -1."""

    op: str
    base: Expr
    slope: int


def line_test(value: Value, axis: Symbol) -> LineTest | None:
    """The comparison, if it is one of positions that differ by one from lane to lane of the loop over ``axis``."""
    if not isinstance(value, Apply) or value.op not in FORWARD:
        return None
    left, right = (_position(arg) for arg in value.args)
    if left is None or right is None:
        return None
    apart = left - right
    slope = apart.coefficient(axis)
    if slope is None or slope.constant not in (1, -1):
        return None
    return LineTest(value.op, apart.without(axis), slope.constant)


def _position(value: Value) -> Expr | None:
    if isinstance(value, Index) and value.dtype is INT64:
        return value.index
    if isinstance(value, Const) and value.dtype is INT64 and abs(value.value) < FAR:
        return expr(int(value.value))
    return None


def computed_in_lanes(body: Sequence[Statement], axis: Symbol) -> Iterator[Value]:
    """The values of the statements, each once, less the positions that such comparisons alone compare."""
    met: set[int] = set()
    for statement in statements(body):
        waiting = list(values(statement))
        while waiting:
            value = waiting.pop()
            if id(value) not in met:
                met.add(id(value))
                yield value
                if line_test(value, axis) is None:
                    waiting += operands(value)


def tested_lanes(b: Builder, op: str, slope: int, first: Reg, count: int) -> Reg:
    """The lanes for which ``first + slope * lane`` compares so with zero."""
    predicate, more = (FORWARD if slope == 1 else BACKWARD)[op]
    point = b.sub(b.const(0, "i64"), first) if slope == 1 else first
    point = b.add(point, b.const(more, "i64")) if more else point
    return lanes_at(b, predicate, lanes_within(b, point, count, -1 if predicate in ("eq", "ne") else 0), count)


def lanes_within(b: Builder, point: Reg, count: int, least: int = 0) -> Reg:
    """A point of the loop as one of a vector's ``count`` lanes: beyond these all points are one."""
    return b.intrinsic("smax", b.intrinsic("smin", point, b.const(count, "i64")), b.const(least, "i64"))


def lanes_at(b: Builder, predicate: str, near: Reg, count: int) -> Reg:
    """The lanes whose numbers compare so with a point within these."""
    narrow = "i32" if count <= 16 else "i16"
    return b.compare(predicate, b.iota(narrow, count), b.splat(b.convert("trunc", near, narrow), count))


def narrow_copies(found: Sequence[Value]) -> bool:
    """Whether 16-bit floats are only moved or chosen among, not computed with (they would be widened)."""
    for value in found:
        if isinstance(value, Apply) and value.op != "where" and not all(isinstance(arg, Const) for arg in value.args):
            if any(_is_half(dtype) for dtype in (value.dtype, *(_dtype(arg) for arg in value.args))):
                return False
    return True


def _is_half(dtype: DType | None) -> bool:
    return dtype is not None and dtype.is_float and dtype.size == 2


def _dtype(value: Value) -> DType | None:
    return getattr(value, "dtype", None)
