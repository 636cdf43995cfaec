"""Lowers cross products to the differences that they are, so that kernels compute what is around them too."""

from __future__ import annotations

from framefuse.ir.cross_product import cross_product
from framefuse.ir.dtypes import BOOL
from framefuse.ir.graph import Node
from framefuse.ir.numbers import expr
from framefuse.ir.values import Value
from framefuse.lower.context import Lowering
from framefuse.lower.rules import Unsupported, rule


@rule("linalg.cross", "aten.linalg_cross")
def linalg_cross(lo: Lowering, input: Node, other: Node, *, dim: Value = -1, out: Value = None) -> Node:
    small = input.dtype.kind == "complex" or input.dtype is BOOL or (input.dtype.is_float and input.dtype.size < 4)
    if small or other.dtype is not input.dtype or len(input.shape) != len(other.shape) or not input.shape:
        raise Unsupported("dtypes, or ranks that differ")
    shape, axis = lo.broadcast(input.shape, other.shape), lo.axis(dim, len(input.shape))
    if lo.size(shape[axis]) != 3:
        raise Unsupported("no vectors of three")
    lo.require("==", shape[axis], expr(3), "cross products")
    x, y = lo.expand(input, shape), lo.expand(other, shape)
    return lo.derived(cross_product(lo, x, y, axis), "cross", (x, y), axis)


@rule("cross")
def cross(lo: Lowering, input: Node, other: Node, dim: Value = None, *, out: Value = None) -> Node:
    if dim is None:
        raise Unsupported("a dimension that sizes decide")
    return linalg_cross(lo, input, other, dim=dim)
