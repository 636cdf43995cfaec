"""Computes what a program computes of every second, fourth, ... element of an axis at the elements between, too."""

from __future__ import annotations

from framefuse.ir import costs
from framefuse.ir.builder import Builder
from framefuse.ir.graph import Node
from framefuse.ir.numbers import Expr
from framefuse.ir.ops import POINTWISE, TABLE


def with_those_between(
    builder: Builder, node: Node, axis: int, step: int, length: Expr, deep: int = costs.BETWEEN_DEEP
) -> Node | None:
    """A value of ``length`` elements along ``axis``, of which each ``step``-th, from the first to the last, is that of
    ``node``: vectors then read what lies in order in memory. None where ``node`` is more than arithmetic on elements
    that lie so far apart, or what is between might be divided by zero.
    """
    shape = (*node.shape[:axis], length, *node.shape[axis + 1 :])
    if node.op == "full" or (node.op == "expand" and _is_same_along(node, axis)):
        return builder.expand(node, shape)
    if node.op == "slice":
        starts, steps = node.attr("starts"), node.attr("steps")
        if steps[axis] != step:
            return None
        steps = tuple(1 if place == axis else each for place, each in enumerate(steps))
        return builder.slice(node.inputs[0], starts, steps, shape)
    row = TABLE[node.op]
    if row.kind != POINTWISE or row.fails or not deep:
        return None
    inputs = [with_those_between(builder, part, axis, step, length, deep - 1) for part in node.inputs]
    known = tuple(part for part in inputs if part is not None)
    return builder.make(node.op, known, node.attrs, node.dtype, shape) if len(known) == len(inputs) else None


def _is_same_along(node: Node, axis: int) -> bool:
    """Whether what is expanded has a single element along ``axis``."""
    place = axis - len(node.shape) + len(node.inputs[0].shape)
    return place < 0 or node.inputs[0].shape[place].constant == 1
