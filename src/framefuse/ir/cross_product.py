"""Writes the cross product of vectors of three, and so its derivatives, which are cross products too."""

from __future__ import annotations

from framefuse.ir.builder import Builder
from framefuse.ir.graph import Node


def cross_product(b: Builder, x: Node, y: Node, axis: int) -> Node:
    """The cross products along ``axis``, of size 3, of operands of one shape and dtype."""
    left, right = ([b.narrow(node, axis, place, 1) for place in range(3)] for node in (x, y))

    def part(first: int, second: int) -> Node:
        one, other = (b.pointwise("mul", left[i], right[j]) for i, j in ((first, second), (second, first)))
        return b.pointwise("sub", one, other)

    return b.cat([part(1, 2), part(2, 0), part(0, 1)], axis)
