"""Gradients of matrix and cross products; an operand repeated over a batch gets its sum over it in one product."""

from __future__ import annotations

from collections.abc import Sequence

from framefuse.autodiff.registry import Gradient, Onto, vjp, vjp_derived
from framefuse.autodiff.rules.views import stretched
from framefuse.ir.builder import Builder
from framefuse.ir.cross_product import cross_product
from framefuse.ir.graph import Node


@vjp("matmul")
def matmul(builder: Builder, node: Node, g: Node, need: Sequence[bool]) -> Sequence[Gradient]:
    a, b = node.inputs
    return [
        _gradient(builder, a, g, b) if need[0] else None,
        _gradient(builder, b, transpose(builder, a), transpose(builder, g)) if need[1] else None,
    ]


def _gradient(builder: Builder, operand: Node, left: Node, right: Node) -> Gradient:
    """``sum over c of left[..., i, c] * right[..., j, c]``, for the operand's element ``[..., i, j]``."""
    rank = len(operand.shape)
    if operand.op == "expand":
        source = operand.inputs[0]
        repeated = stretched(builder, source.shape, operand.shape)
        if repeated and len(source.shape) >= 2 and max(repeated) < rank - 2:
            left, right = (_folded(builder, node, repeated) for node in (left, right))
            return Onto(source, builder.reshape(_product(builder, source, left, right), source.shape))
    return _product(builder, operand, left, right)


def _product(builder: Builder, operand: Node, left: Node, right: Node) -> Node:
    """``left`` times ``right`` transposed, as a product whose memory lies as that of the operand below its views."""
    if operand.op == "permute" and operand.attr("axes")[-2:] == (len(operand.shape) - 1, len(operand.shape) - 2):
        return transpose(builder, builder.matmul(right, transpose(builder, left)))
    return builder.matmul(left, transpose(builder, right))


def _folded(builder: Builder, node: Node, batch: Sequence[int]) -> Node:
    """The node with its ``batch`` axes moved into its last one."""
    rank = len(node.shape)
    kept = [axis for axis in range(rank - 2) if axis not in batch]
    moved = builder.permute(node, [*kept, rank - 2, *batch, rank - 1])
    width = builder.count((*(node.shape[axis] for axis in batch), node.shape[-1]))
    return builder.reshape(moved, (*(node.shape[axis] for axis in kept), node.shape[-2], width))


def transpose(builder: Builder, node: Node) -> Node:
    """The last two dimensions changed for each other."""
    rank = len(node.shape)
    return builder.permute(node, [*range(rank - 2), rank - 1, rank - 2])


@vjp_derived("cross")
def cross(builder: Builder, node: Node, g: Node, need: Sequence[bool]) -> Sequence[Gradient]:
    """Of cross products along an axis."""
    _, x, y = node.inputs
    (axis,) = node.attr("parameters")
    return [
        None,
        cross_product(builder, y, g, axis) if need[1] else None,
        cross_product(builder, g, x, axis) if need[2] else None,
    ]
