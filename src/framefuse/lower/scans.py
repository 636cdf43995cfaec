"""Lowers sums, products, extremes and logarithms of sums of all elements up to each along an axis to scans."""

from __future__ import annotations

from framefuse.ir.builder import ONE
from framefuse.ir.dtypes import BOOL, BY_NAME, INT64, DType
from framefuse.ir.graph import Node
from framefuse.ir.values import Value
from framefuse.lower.context import Lowering
from framefuse.lower.promotion import row, sum_dtype
from framefuse.lower.rules import Lowered, Rule, Shapes, register


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
        running = lo.cast(lo.scan(op, wide, axis), result)
        return lo.derived(running, "cumprod", (input,), axis) if product else running

    return lowered


def _extreme(op: str) -> Rule:
    def lowered(lo: Lowering, input: Node, dim: Value, *, out: Value = None) -> Lowered:
        known = Shapes((input.shape, input.shape))
        axis = lo.axis(dim, len(input.shape))
        if input.dtype is BOOL or (lo.differentiable and input.dtype.is_float):
            return known
        if not input.shape:
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


def _logarithms(lo: Lowering, input: Node, dim: Value, *, out: Value = None) -> Lowered:
    if not input.dtype.is_float or not lo.scans_logarithms(input):
        return Shapes((input.shape,))
    axis = lo.axis(dim, len(input.shape))
    wide = lo.cast(input, _wide(input, input.dtype))
    return lo.cast(lo.scan("logcumsumexp", wide, axis) if input.shape else wide, input.dtype)


running_sum = _running("cumsum")
register(("logcumsumexp",), "scans", _logarithms)
register(("cumsum",), "scans", running_sum)
register(("cumprod",), "scans", _running("cumprod"))
for _name in ("cummax", "cummin"):
    register((_name,), "scans", _extreme(_name))
