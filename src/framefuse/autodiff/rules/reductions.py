"""Gradients of reductions."""

from __future__ import annotations

from collections.abc import Sequence

from framefuse.autodiff.formulas import run
from framefuse.autodiff.registry import Gradient, vjp
from framefuse.ir.builder import ONE, Builder
from framefuse.ir.graph import Node


def spread(builder: Builder, node: Node, reduce: Node) -> Node:
    """A node of a reduction's shape, repeated over what was reduced."""
    source, axes = reduce.inputs[0], reduce.attr("axes")
    kept = tuple(ONE if axis in axes else size for axis, size in enumerate(source.shape))
    return builder.expand(builder.reshape(node, kept), source.shape)


@vjp("sum")
def sum_(builder: Builder, node: Node, g: Node, need: Sequence[bool]) -> Sequence[Gradient]:
    return [spread(builder, g, node)]


@vjp("amax", "amin")
def extreme(builder: Builder, node: Node, g: Node, need: Sequence[bool]) -> Sequence[Gradient]:
    """Equal extremes share the gradient; where none equals the result, which is NaN, 0 / 0 says so."""
    source = node.inputs[0]
    hit = builder.cast(builder.pointwise("eq", source, spread(builder, node, node)), source.dtype)
    count = spread(builder, builder.reduce("sum", hit, node.attr("axes")), node)
    return [run(builder, "div(mul(g, a), b)", {"g": spread(builder, g, node), "a": hit, "b": count})]


@vjp("prod")
def prod(builder: Builder, node: Node, g: Node, need: Sequence[bool]) -> Sequence[Gradient]:
    """The product of the others: the result over the element, and for a lone zero the product of what is not zero."""
    source, axes = node.inputs[0], node.attr("axes")
    zeros = builder.pointwise("eq", source, builder.full(0, source.dtype, source.shape, source.device))
    one = builder.full(1, source.dtype, source.shape, source.device)
    safe = builder.pointwise("where", zeros, one, source)
    count = builder.reduce("sum", builder.cast(zeros, source.dtype), axes)
    lone = builder.pointwise("eq", count, builder.full(1, count.dtype, count.shape, count.device))
    rest = builder.reduce("prod", safe, axes)
    rest = builder.pointwise("where", lone, rest, builder.full(0, rest.dtype, rest.shape, rest.device))
    letters = {
        "g": spread(builder, g, node), "a": zeros, "b": spread(builder, rest, node), "c": safe,
        "r": spread(builder, node, node),
    }  # fmt: skip
    return [run(builder, "where(a, mul(g, b), div(mul(g, r), c))", letters)]
