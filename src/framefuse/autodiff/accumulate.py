"""Turns the gradients that reach one node by several paths into their sum, joining those of its pieces."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from framefuse.autodiff.library import call
from framefuse.ir.builder import Builder
from framefuse.ir.dtypes import BY_NAME
from framefuse.ir.graph import Node
from framefuse.ir.numbers import Expr, expr
from framefuse.ir.pairs import is_joined, joined, parts


def total(builder: Builder, parts: Sequence[Node]) -> Node:
    """The sum in the order in which the parts came; gradients of slices that lie side by side are joined."""
    parts = _joined(builder, parts)
    result = parts[0]
    for part in parts[1:]:
        result = add(builder, result, part)
    return result


def add(builder: Builder, a: Node, b: Node) -> Node:
    """``a + b``, rounded to their dtype as eager accumulates."""
    dtype = a.dtype
    if is_joined(a) and is_joined(b):
        (real, imaginary), (other, further) = parts(builder, a), parts(builder, b)
        return joined(builder, (add(builder, real, other), add(builder, imaginary, further)))
    if dtype.kind == "complex":
        return call(builder, torch.add, (a, b), like=a)
    inner = BY_NAME[dtype.compute]
    return builder.cast(builder.pointwise("add", builder.cast(a, inner), builder.cast(b, inner)), dtype)


def _joined(builder: Builder, parts: Sequence[Node]) -> list[Node]:
    """Zero-padded pieces of one axis that follow each other become one ``cat``: it writes each element once, where a
    sum of them would add zeros.
    """
    pieces: dict[int, list[tuple[Expr, Expr, Node]]] = {}
    rest = []
    for part in parts:
        place = _place(part)
        if place is None:
            rest.append(part)
        else:
            axis, start = place
            pieces.setdefault(axis, []).append((start, start + part.inputs[0].shape[axis], part))
    for axis, of_axis in pieces.items():
        rest += _chains(builder, axis, of_axis)
    return rest


def _place(node: Node) -> tuple[int, Expr] | None:
    """The axis along which ``node`` is zeros around a piece, and where the piece starts; None when it is none."""
    if node.op != "pad" or not node.dtype.is_float or node.attr("value") != 0:
        return None
    inner = node.inputs[0]
    axes = [axis for axis, size in enumerate(node.shape) if size is not inner.shape[axis]]
    return (axes[0], node.attr("before")[axes[0]]) if len(axes) == 1 else None


def _chains(builder: Builder, axis: int, pieces: Sequence[tuple[Expr, Expr, Node]]) -> list[Node]:
    """One node for each run of pieces of which the next starts where the last ended."""
    after = {}
    for piece in reversed(pieces):
        after[piece[0]] = piece
    ends = {end for _, end, _ in after.values()}
    starts = [piece[2] for piece in pieces if after[piece[0]] is not piece]
    for start in [start for start in after if start not in ends]:
        run: list[Node] = []
        at = start
        while at in after:
            _, at, node = after.pop(at)
            run.append(node.inputs[0])
        whole = builder.cat(run, axis)
        size = node.shape[axis]
        before = [expr(0)] * len(node.shape)
        behind = list(before)
        before[axis], behind[axis] = start, size - at
        padded = builder.pad(whole, before, behind, 0.0)
        starts.append(padded)
    starts += [node for _, _, node in after.values()]
    return starts
