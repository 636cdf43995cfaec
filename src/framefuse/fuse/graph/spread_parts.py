"""Recognises values of which every second, fourth, ... element of an axis is new, or the diagonals of matrices."""

from __future__ import annotations

from dataclasses import dataclass

from framefuse.fuse.addressing.ranges import ONE, ZERO, exact_quotient
from framefuse.ir.graph import Attributes, Node, Part
from framefuse.ir.numbers import Expr


@dataclass(frozen=True, slots=True)
class Spread:
    """What lies in a part as ``old`` says, but that ``new`` lies in the part ``where``."""

    old: Node
    new: Node
    where: Part


def spread(node: Node, part: Part) -> Spread | None:
    """A value that lies in a part, taken so; None for other values. What is written twice there, as by ``x[::2] += y``,
    is new as it was written last.
    """
    found = _spread(node, part)
    before = None if found is None else _spread(found.old, part)
    while found is not None and before is not None and before.where == found.where:
        found = Spread(before.old, found.new, found.where)
        before = _spread(found.old, part)
    return found


def _spread(node: Node, part: Part) -> Spread | None:
    if node.op != "where" or node.inputs[0].op != "eq":
        return None
    mask, new, old = node.inputs
    if not mask.shape == new.shape == old.shape == node.shape:
        return None
    first, second = mask.inputs
    rank = len(node.shape)
    if rank > 1 and (_counted(first), _counted(second)) == (rank - 2, rank - 1):
        return _diagonal(node, new, old, part) if node.shape[-1] is node.shape[-2] else None
    last = _number(first.inputs[1]) if first.op == "bit_and" else None
    axis = _counted(first.inputs[0]) if first.op == "bit_and" else None
    if last is None or axis is None or _number(second) != 0 or last <= 0 or last & (last + 1):
        return None
    return _steps(node, new, old, part, axis, last + 1)


def _diagonal(node: Node, new: Node, old: Node, part: Part) -> Spread:
    strides = (*part.strides[:-2], part.strides[-2] + part.strides[-1])
    return Spread(old, _made(node, "diagonal", new, (), node.shape[:-1]), Part(strides, part.offset))


def _steps(node: Node, new: Node, old: Node, part: Part, axis: int, step: int) -> Spread | None:
    """Every ``step``-th element of an axis, from its first to its last."""
    between = exact_quotient(node.shape[axis] - 1, ONE * step)
    if between is None:
        return None
    shape = (*node.shape[:axis], between + 1, *node.shape[axis + 1 :])
    strides = (*part.strides[:axis], part.strides[axis] * step, *part.strides[axis + 1 :])
    steps = tuple(step if place == axis else 1 for place in range(len(shape)))
    attrs: Attributes = (("starts", (ZERO,) * len(shape)), ("steps", steps))
    return Spread(old, _made(node, "slice", new, attrs, shape), Part(strides, part.offset))


def _made(node: Node, op: str, operand: Node, attrs: Attributes, shape: tuple[Expr, ...]) -> Node:
    return Node(op, (operand,), attrs, node.dtype, shape, None, node.line, node.device)


def _counted(node: Node) -> int | None:
    """The axis of which a value holds the places: 0, 1, ... along it."""
    shown = node.inputs[0] if node.op == "expand" else node
    line = shown.inputs[0] if shown.op == "reshape" else shown
    if line.op != "iota" or (line.attr("start"), line.attr("step")) != (0, 1):
        return None
    axes = [axis for axis, size in enumerate(shown.shape) if size.constant != 1]
    return len(node.shape) - len(shown.shape) + axes[0] if len(axes) == 1 else None


def _number(node: Node) -> int | None:
    value = node.attr("value") if node.op == "full" else None
    return value if type(value) is int else None
