"""Says which cats are calls of torch.cat: those of many pieces, and on a GPU those that only move what is in memory."""

from __future__ import annotations

from framefuse.fuse.addressing.indexing import MOVES
from framefuse.fuse.addressing.layout import Order, dense_strides, estimate
from framefuse.fuse.addressing.strided import strided
from framefuse.fuse.setting import Setting
from framefuse.ir import costs
from framefuse.ir.graph import Graph, Node


def is_call(node: Node, moves: bool, order: Order | None, setting: Setting, graph: Graph) -> bool:
    """Whether a cat of a graph is the library's, whose work for an element does not grow with the number of pieces;
    ``moves``: no kernel reads it. The result lies in this ``order``.
    """
    if len(node.inputs) > costs.CAT_PIECES:
        return True
    target = setting.targets(node.device)
    if not moves or target is None or not target.tiles or order not in (None, tuple(range(len(node.shape)))):
        return False
    if any(_base(piece).op not in ("input", "result") or _is_across(piece, graph) for piece in node.inputs):
        return False
    if len(node.inputs) > costs.GPU_CAT_PIECES:
        return True
    axis = node.attr("axis")
    inner = axis == len(node.shape) - 1
    try:
        sizes = [piece.shape[axis].evaluate(graph.hints) * node.dtype.size for piece in node.inputs]
    except KeyError:
        return False
    narrow, whole = costs.GPU_CAT_NARROW
    return node.dtype.size <= narrow and (not inner or all(size % whole == 0 for size in sizes))


def _is_across(piece: Node, graph: Graph) -> bool:
    """Whether neighbours along the last dimension lie apart in memory and others are neighbours there, as in pictures
    that lie channels-last: the library reads each by itself.
    """
    view = strided(piece, lambda base: base.strides or dense_strides(base.shape, None), graph.hints)
    if view is None:
        return False
    steps = [step for step, size in zip(view.strides, piece.shape, strict=True) if estimate(size, graph.hints) > 1]
    return len(steps) > 1 and steps[-1].constant not in (0, 1) and any(step.constant == 1 for step in steps)


def _base(node: Node) -> Node:
    """What a view shows; pieces of a stack are such."""
    while node.op in MOVES:
        node = node.inputs[0]
    return node
