"""Lowers quantiles on a GPU to the library's sort and arithmetic on two elements of a row."""

from __future__ import annotations

import torch

from framefuse.ir.builder import ONE, Shape
from framefuse.ir.dtypes import FLOAT32, FLOAT64, INT64
from framefuse.ir.graph import Arg, Node, call_attrs
from framefuse.ir.numbers import expr
from framefuse.ir.strides import dense_strides
from framefuse.ir.values import Value
from framefuse.lower.binary import lerp
from framefuse.lower.context import Lowering
from framefuse.lower.rules import Lowered, Shapes, rule


@rule("quantile")
def quantile(
    lo: Lowering, input: Node, q: Value, dim: Value = None, keepdim: bool = False, *, interpolation: str = "linear",
    out: Value = None,
) -> Lowered:  # fmt: skip
    each, rest = q.shape if isinstance(q, Node) else (), one_of_each(lo, input, dim, keepdim)
    if not _is_ours(lo, input, q, interpolation):
        return Shapes(((*each, *rest),))
    if dim is None:
        rows = lo.reshape(input, (lo.count(input.shape),))
    else:
        axis = lo.axis(dim, len(input.shape))
        rows = lo.permute(input, (*(at for at in range(len(input.shape)) if at != axis), axis))
    found = _between(lo, _sorted(lo, rows), q)
    if each:
        found = lo.permute(found, (len(found.shape) - 1, *range(len(found.shape) - 1)))
    return lo.reshape(found, (*each, *rest))


def one_of_each(lo: Lowering, input: Node, dim: Value, keepdim: bool) -> Shape:
    """The shape of each quantile."""
    if dim is None:
        return (ONE,) * len(input.shape) if keepdim else ()
    axis = lo.axis(dim, len(input.shape))
    lo.require("!=", input.shape[axis], expr(0), "a choice along a dimension")
    return (*input.shape[:axis], *((ONE,) if keepdim else ()), *input.shape[axis + 1 :])


def _is_ours(lo: Lowering, input: Node, q: Value, interpolation: str) -> bool:
    target = lo.targets(input.device)
    if target is None or not target.tiles or lo.exact or lo.differentiable or interpolation != "linear":
        return False
    if not input.shape or input.dtype not in (FLOAT32, FLOAT64):
        return False
    if isinstance(q, Node):
        return len(q.shape) < 2 and q.dtype is input.dtype and q.device == input.device
    return isinstance(q, float) and 0.0 <= q <= 1.0


def _sorted(lo: Lowering, rows: Node) -> Node:
    """The elements of each row in order, by torch's call, NaN behind all others."""
    if rows in lo.sorted:
        return lo.sorted[rows]
    order = tuple(range(len(rows.shape)))
    attrs = call_attrs(torch.sort, (Arg(0),), (order,))
    call = lo.opaque("library", (rows,), attrs, rows.dtype, (), None, rows.device)
    strides = dense_strides(rows.shape, order)
    found = lo.opaque("result", (call,), (("path", (0,)),), rows.dtype, rows.shape, strides, rows.device)
    lo.sorted[rows] = found
    return found


def _between(lo: Lowering, ordered: Node, q: Value) -> Node:
    """What lies at the part ``q`` of each sorted row, or at each of several; NaN where the row has one."""
    *lead, size = ordered.shape
    dtype, device = ordered.dtype, ordered.device
    if not isinstance(q, Node):
        q = lo.full(q, dtype, (), device)
    count = lo.count(q.shape)
    shape = (*lead, count)
    last = lo.full(size - 1, INT64, shape, device)
    parts = lo.expand(lo.reshape(q, (*[ONE] * len(lead), count)), shape)
    rank = lo.pointwise("mul", parts, lo.cast(last, dtype))
    below, above = (lo.cast(each, INT64) for each in (rank, lo.pointwise("ceil", rank)))
    low, high = (lo.gather(ordered, at, len(lead)) for at in (below, above))
    found = lerp(lo, low, high, lo.pointwise("sub", rank, lo.cast(below, dtype)))
    greatest = lo.expand(lo.narrow(ordered, len(lead), size - 1, ONE), shape)
    found = lo.pointwise("where", lo.pointwise("isnan", greatest), greatest, found)
    return lo.reshape(found, shape if q.shape else tuple(lead))
