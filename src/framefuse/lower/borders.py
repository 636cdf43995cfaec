"""Padding with a tensor's own elements: what lies at a border is joined to it, in kernels with what is around."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from framefuse.ir.builder import ONE, ZERO
from framefuse.ir.graph import Node
from framefuse.ir.numbers import Expr, expr
from framefuse.lower.context import Lowering
from framefuse.lower.rules import Unsupported

Border = Callable[[Lowering, Node, int, Expr, bool], Node]  # (lowering, tensor, axis, amount, at the start)


def _reflected(lo: Lowering, node: Node, axis: int, amount: Expr, front: bool) -> Node:
    """What lies beside the first or the last element, turned."""
    size = node.shape[axis]
    lo.require("<=", amount + 1, size, "a reflected border")
    last = amount if front else size - 2
    starts: list[Expr] = [last if place == axis else ZERO for place in range(len(node.shape))]
    shape = tuple(amount if place == axis else other for place, other in enumerate(node.shape))
    return lo.slice(node, starts, [-1 if place == axis else 1 for place in range(len(shape))], shape)


def _replicated(lo: Lowering, node: Node, axis: int, amount: Expr, front: bool) -> Node:
    """The first or the last element."""
    edge = lo.narrow(node, axis, ZERO if front else node.shape[axis] - 1, ONE)
    return lo.expand(edge, tuple(amount if place == axis else size for place, size in enumerate(node.shape)))


def _wrapped(lo: Lowering, node: Node, axis: int, amount: Expr, front: bool) -> Node:
    """What lies at the other end."""
    size = node.shape[axis]
    lo.require("<=", amount, size, "a circular border")
    return lo.narrow(node, axis, size - amount if front else ZERO, amount)


BORDERS: dict[str, Border] = {"reflect": _reflected, "replicate": _replicated, "circular": _wrapped}


def bordered(lo: Lowering, input: Node, amounts: Sequence[Expr], mode: str) -> Node:
    """The tensor with borders of these amounts, those of the last dimension first."""
    for size in input.shape:
        lo.require("!=", size, ZERO, "a picture with elements")
    # Eager's gradient leads to the operand, of which it does not depend; that of a circular border is of copies.
    padded = input if mode == "circular" else lo.derived(input, "aside", (input,))
    for place in range(len(amounts) // 2):
        axis = len(input.shape) - 1 - place
        low, high = amounts[2 * place], amounts[2 * place + 1]
        if lo.size(low) < 0 or lo.size(high) < 0:
            raise Unsupported("a negative border")
        pieces = [padded]
        for amount, front in ((low, True), (high, False)):
            if lo.size(amount) == 0:
                lo.require("==", amount, expr(0), "no border")
                continue
            lo.require("<", expr(0), amount, "a border")
            piece = BORDERS[mode](lo, padded, axis, amount, front)
            pieces = [piece, *pieces] if front else [*pieces, piece]
        padded = lo.cat(pieces, axis)
    return padded
