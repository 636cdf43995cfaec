"""Decides result dtypes from operands as torch.result_type does, for nodes and Python numbers."""

from __future__ import annotations

from collections.abc import Iterable

import torch

from framefuse.ir.dtypes import BOOL, BY_TORCH, INT64, DType
from framefuse.ir.graph import Node
from framefuse.ir.numbers import Expr, Real
from framefuse.ir.values import Value
from framefuse.lower.rules import Unsupported


def number_dtype(value: Value, default: DType) -> DType:
    """The dtype that a Python number takes part with."""
    if isinstance(value, bool):
        return BOOL
    if isinstance(value, (int, Expr)):
        return INT64
    if isinstance(value, (float, Real)):
        return default
    raise Unsupported(f"operand of type {type(value).__name__}")


def result_dtype(operands: Iterable[Value], default: DType) -> DType:
    """torch.result_type: tensors with dimensions decide before 0-d tensors, those before Python numbers, unless a
    later one is of a higher kind (bool < integer < float < complex).
    """
    by_rank: list[DType | None] = [None, None, None]
    for value in operands:
        if isinstance(value, Node):
            place, dtype = (0 if value.shape else 1), value.dtype
        else:
            place, dtype = 2, number_dtype(value, default)
        known = by_rank[place]
        if known is None:
            by_rank[place] = dtype
        elif known is not dtype:
            by_rank[place] = promote(known, dtype)
    result = _combine(by_rank[0], _combine(by_rank[1], by_rank[2]))
    if result is None:
        raise Unsupported("no operand")
    return result


def promote(left: DType, right: DType) -> DType:
    """torch.promote_types."""
    return left if left is right else BY_TORCH[torch.promote_types(left.torch, right.torch)]


def _combine(higher: DType | None, lower: DType | None) -> DType | None:
    if higher is None or lower is None:
        return higher or lower
    if higher.is_float:
        return higher
    if higher is BOOL or lower.is_float:
        return promote(higher, lower)
    return higher


def to_float(dtype: DType, default: DType) -> DType:
    """The dtype of a float function's result: integers and bool become the default dtype."""
    return dtype if dtype.is_float else default


def sum_dtype(dtype: DType) -> DType:
    """The dtype of a sum's or product's result: integers and bool become int64."""
    return dtype if dtype.is_float else INT64


def is_number(value: Value) -> bool:
    """True for Python numbers, sizes and run-time floats."""
    return isinstance(value, (bool, int, float, Expr, Real))


def row(dtype: Value) -> DType:
    """The row of a torch.dtype; raises Unsupported for one that kernels do not know."""
    dtype_row = BY_TORCH.get(dtype)
    if dtype_row is None or dtype_row.kind == "complex":
        raise Unsupported(f"dtype {dtype}")
    return dtype_row
