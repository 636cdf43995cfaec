"""Lowers sums at positions: to their primitive where kernels add atomically as eager's do, else to eager's own call."""

from __future__ import annotations

from collections.abc import Callable

from framefuse.ir.builder import ZERO, Unprovable
from framefuse.ir.dtypes import INT64
from framefuse.ir.graph import Node, Scalar
from framefuse.ir.values import Value
from framefuse.lower.context import Lowering
from framefuse.lower.rules import Shapes, Unsupported, rule


def _sum(lo: Lowering, input: Node, compute: Callable[[], Node]) -> Node | Shapes:
    """What ``compute`` gives; eager's own call where it refuses."""
    before = dict(lo.relations)
    try:
        if not lo.adds(input):
            raise Unsupported("terms are added one after the other")
        return compute()
    except (Unsupported, Unprovable):
        lo.relations = before
        return Shapes((input.shape,))


def _added(lo: Lowering, input: Node, index: Node, source: Node, axis: int) -> Node:
    if source.dtype is not input.dtype or index.dtype.name not in ("int64", "int32"):
        raise Unsupported("dtypes")
    # Eager asks nothing of positions in what has no elements.
    lo.require("!=", input.shape[axis], ZERO, "a sum at positions")
    return lo.scatter_add(input, lo.cast(index, INT64), source, axis)


@rule("scatter_add")
def scatter_add(lo: Lowering, input: Node, dim: Value, index: Node, src: Node, *, out: Value = None) -> Node | Shapes:
    def compute() -> Node:
        if not input.shape or not len(input.shape) == len(index.shape) == len(src.shape):
            raise Unsupported("ranks")
        axis = lo.axis(dim, len(input.shape))
        rank, whole = len(index.shape), lo.sizes(index.shape) == lo.sizes(src.shape)
        for place, (size, read, held) in enumerate(zip(index.shape, src.shape, input.shape, strict=True)):
            lo.require("==" if whole else "<=", size, read, "scatter_add")
            if place != axis:
                lo.require("<=", size, held, "scatter_add")
        source = src if whole else lo.slice(src, [0] * rank, [1] * rank, index.shape)
        return _added(lo, input, index, source, axis)

    return _sum(lo, input, compute)


@rule("scatter_reduce")
def scatter_reduce(
    lo: Lowering, input: Node, dim: Value, index: Node, src: Node, reduce: str, *, include_self: bool = True,
    out: Value = None,
) -> Node | Shapes:  # fmt: skip
    if reduce == "sum" and include_self is True:
        return scatter_add(lo, input, dim, index, src)
    return Shapes((input.shape,))


@rule("index_add")
def index_add(
    lo: Lowering, input: Node, dim: Value, index: Node, source: Node, *, alpha: Scalar = 1, out: Value = None
) -> Node | Shapes:
    def compute() -> Node:
        if not input.shape or len(index.shape) != 1 or len(input.shape) != len(source.shape):
            raise Unsupported("ranks")
        axis = lo.axis(dim, len(input.shape))
        for place, (held, read) in enumerate(zip(input.shape, source.shape, strict=True)):
            lo.require("==", read, index.shape[0] if place == axis else held, "index_add")
        terms = source
        if alpha is not True and alpha != 1:
            terms = lo.compute(lambda a, b: a * b, source, alpha, dtype=source.dtype)
        places = lo.expand(lo.along(index, axis, len(input.shape)), source.shape)
        return _added(lo, input, places, terms, axis)

    return _sum(lo, input, compute)
