"""Lowers sums, products and extremes of all elements up to each along an axis to scans."""

from __future__ import annotations

from framefuse.ir.builder import ONE
from framefuse.ir.dtypes import BOOL, BY_NAME, INT64, DType
from framefuse.ir.graph import Node
from framefuse.ir.numbers import Expr, ceildiv, expr
from framefuse.ir.values import Value
from framefuse.lower.context import Lowering
from framefuse.lower.promotion import row, sum_dtype
from framefuse.lower.rules import Lowered, Rule, Shapes, register

# Fewer rows than the first do not fill a GPU; those longer than the second are cut into segments of its multiples.
# Chosen: eager's own kernel runs 8 rows of 16 M elements on one program each, at 42 GB/s of an H100's 3,000.
ROWS, SEGMENT = 1024, 4096
PLACED = {"cpu": False}  # on which devices segments are worth two passes over the elements


def cut_into(lo: Lowering, shape: tuple[Expr, ...], axis: int, device: str) -> int | None:
    """The length of segments of a row, where rows alone keep too few programs busy."""
    sizes = lo.sizes(shape)
    length, rows = sizes[axis], 1
    for place, size in enumerate(sizes):
        rows *= size if place != axis else 1
    if not PLACED.get(device.partition(":")[0], True) or rows >= ROWS or length < 8 * SEGMENT or not rows:
        return None
    segment = SEGMENT
    while rows * length // (2 * segment) >= 2 * ROWS:
        segment *= 2
    return segment


def _in_segments(lo: Lowering, node: Node, axis: int, segment: int) -> Node:
    """A sum along a long axis: the sums of segments, what comes before each, then each segment by itself."""
    shape, size = node.shape, node.shape[axis]
    count = ceildiv(size, expr(segment))
    lo.require("<", expr(0), size, "a scan of nothing")
    zeros: list[Expr | int] = [0] * len(shape)
    after: list[Expr | int] = [0] * len(shape)
    after[axis] = count * segment - size
    wide = lo.pad(node, zeros, after, 0.0 if node.dtype.is_float else 0)
    long = (*shape[:axis], count * segment, *shape[axis + 1 :])
    apart = (*shape[:axis], count, expr(segment), *shape[axis + 1 :])
    parts = lo.reshape(lo.resized(wide, long), apart)
    totals = lo.reduce("sum", parts, (axis + 1,), True)
    before = lo.pointwise("sub", lo.scan("cumsum", totals, axis), totals)
    running = lo.pointwise("add", lo.scan("cumsum", parts, axis + 1), lo.expand(before, apart))
    return lo.narrow(lo.reshape(running, long), axis, 0, size)


def _wide(input: Node, dtype: DType) -> DType:
    """The dtype in which a float result is accumulated: as eager's kernels of the CPU in double."""
    return BY_NAME["float64"] if dtype.name == "float32" and input.device == "cpu" else BY_NAME[dtype.compute]


def _running(op: str) -> Rule:
    def lowered(lo: Lowering, input: Node, dim: Value, *, dtype: Value = None, out: Value = None) -> Lowered:
        result = row(dtype) if dtype is not None else sum_dtype(input.dtype)
        axis = lo.axis(dim, len(input.shape))
        product = op == "cumprod" and lo.differentiable and result.is_float  # its gradient is eager's call
        if result is BOOL or result.llvm is None or (product and (result is not input.dtype or not input.shape)):
            return Shapes((input.shape,))
        wide = lo.cast(lo.cast(input, result), _wide(input, result))
        if not input.shape:
            return lo.cast(wide, result)
        segment = cut_into(lo, input.shape, axis, input.device) if op == "cumsum" else None
        if segment is not None:
            return lo.cast(_in_segments(lo, wide, axis, segment), result)
        running = lo.cast(lo.scan(op, wide, axis), result)
        return lo.derived(running, "cumprod", (input,), axis) if product else running

    return lowered


def _extreme(op: str) -> Rule:
    def lowered(lo: Lowering, input: Node, dim: Value, *, out: Value = None) -> Lowered:
        known = Shapes((input.shape, input.shape))
        axis = lo.axis(dim, len(input.shape))
        if input.dtype is BOOL or (lo.differentiable and input.dtype.is_float):
            return known
        if not input.shape or cut_into(lo, input.shape, axis, input.device) is not None:
            return known
        wide = lo.widen(input)
        best = lo.scan(op, wide, axis)
        wins = lo.pointwise("eq", wide, best)
        if wide.dtype.is_float:
            wins = lo.pointwise("bit_or", wins, lo.pointwise("isnan", wide))
        lying = tuple(size if place == axis else ONE for place, size in enumerate(input.shape))
        places = lo.iota(0, 1, INT64, input.shape[axis], input.device)
        places = lo.expand(lo.reshape(places, lying), input.shape)
        extremes = lo.pointwise("where", wins, places, lo.full(0, INT64, input.shape, input.device))
        return lo.cast(best, input.dtype), lo.scan("cummax", extremes, axis)

    return lowered


for _name in ("cumsum", "cumprod"):
    register((_name,), "scans", _running(_name))
for _name in ("cummax", "cummin"):
    register((_name,), "scans", _extreme(_name))
