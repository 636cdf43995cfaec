"""Cuts few long rows whose largest elements and sums of exponentials are wanted into parts, which are read once."""

from __future__ import annotations

from dataclasses import dataclass

from framefuse.fuse.addressing.layout import estimate
from framefuse.fuse.setting import Setting
from framefuse.ir import costs
from framefuse.ir.builder import ONE, ZERO, Builder
from framefuse.ir.dtypes import FLOAT32
from framefuse.ir.graph import Graph, Node
from framefuse.ir.numbers import Expr, expr, product
from framefuse.ir.rewrite import rewritten

INFINITE = float("inf")


@dataclass(frozen=True, slots=True)
class _Softmax:
    """A sum of exponentials of how far elements of rows are from the ``largest`` of their row. ``finite`` where an
    infinite largest element counts as 0.
    """

    largest: Node
    finite: bool


def with_parts_of_softmaxes(graph: Graph, setting: Setting) -> Graph:
    """The graph in which a GPU finds the largest element of parts of a row and, while it has the part at hand, what the
    exponentials of the distances from it sum up to; what the whole row comes to follows from these. The rows of a
    softmax are read twice and those of a logsumexp once, where each reduction by itself would read them.
    """
    sums = {node: found for node in graph.nodes if node.op == "sum" and (found := _softmax(node)) is not None}
    sums = {node: found for node, found in sums.items() if _is_few(found.largest, graph, setting)}
    if not sums:
        return graph
    largest = {found.largest for found in sums.values()}
    parts: dict[Node, tuple[Node, Node]] = {}  # of the largest elements of rows: the rows in parts, and those of parts

    def change(node: Node, operands: tuple[Node, ...], build: Builder) -> Node | None:
        if node in largest:
            whole = _in_parts(operands[0], estimate(operands[0].shape[-1], graph.hints), build)
            of_parts = build.reduce("amax", whole, (len(whole.shape) - 1,))
            parts[node] = whole, of_parts
            return build.reduce("amax", of_parts, (len(of_parts.shape) - 1,))
        if node not in sums or sums[node].largest not in parts:
            return None
        whole, of_parts = parts[sums[node].largest]
        subtracted = operands[0].inputs[0].inputs[1].inputs[0]  # of each row
        nothing = _is_nothing(of_parts, sums[node].finite, build)
        begins = build.pointwise("where", nothing, _filled(0.0, of_parts, build), of_parts)
        far = build.pointwise("sub", whole, _along(begins, whole, build))
        total = build.reduce("sum", build.pointwise("exp", far), (len(whole.shape) - 1,))
        weight = build.pointwise("exp", build.pointwise("sub", of_parts, build.expand(subtracted, of_parts.shape)))
        return build.reduce("sum", build.pointwise("mul", total, weight), (len(total.shape) - 1,))

    return rewritten(graph, change)


def _softmax(node: Node) -> _Softmax | None:
    """What a sum adds up, where that is such distances along the last dimension."""
    exponential = node.inputs[0]
    last = len(exponential.shape) - 1
    if node.dtype is not FLOAT32 or tuple(node.attr("axes")) != (last,) or exponential.op != "exp":
        return None
    distance = exponential.inputs[0]
    if distance.op != "sub" or distance.inputs[1].op != "expand":
        return None
    row = distance.inputs[1].inputs[0]
    if row.shape != (*distance.shape[:-1], ONE):
        return None
    finite = row.op == "where"
    if finite:
        asked, zero, row = row.inputs
        infinite = asked.op == "eq" and asked.inputs[0].op == "abs" and asked.inputs[0].inputs[0] is row
        if not infinite or not _is_full(asked.inputs[1], INFINITE) or not _is_full(zero, 0.0):
            return None
    largest = row.inputs[0] if row.op == "reshape" else row
    if largest.op != "amax" or tuple(largest.attr("axes")) != (last,) or largest.inputs[0] is not distance.inputs[0]:
        return None
    return _Softmax(largest, finite)


def _is_full(node: Node, number: float) -> bool:
    return node.op == "full" and node.attr("value") == number


def _is_few(largest: Node, graph: Graph, setting: Setting) -> bool:
    """Whether rows are so few that a program for each would not keep a GPU busy, and long enough to have parts."""
    target = setting.targets(largest.device)
    if target is None or not target.tiles:
        return False
    rows, length = estimate(product(largest.shape), graph.hints), estimate(largest.inputs[0].shape[-1], graph.hints)
    most, elements = costs.GPU_FEW_SOFTMAX_ROWS
    return 0 < rows < most and rows * length >= elements and length >= 2 * costs.GPU_CHUNK_MOST


def _in_parts(row: Node, length: int, build: Builder) -> Node:
    """The last dimension as parts of at most a tile, each of which begins at a multiple of a warp's elements; what the
    last ones lack is less than all others.
    """
    count, least = -(-length // costs.GPU_CHUNK_MOST), costs.GPU_PART
    size: Expr = row.shape[-1]
    part = (size + (least * count - 1)) // (least * count) * least
    lead = [ZERO] * (len(row.shape) - 1)
    padded = build.pad(row, [*lead, ZERO], [*lead, part * count - size], -INFINITE)
    return build.reshape(padded, (*row.shape[:-1], expr(count), part))


def _is_nothing(largest: Node, finite: bool, build: Builder) -> Node:
    """Where the largest element of a part is none to measure distances from: infinity less infinity is no number."""
    limit = _filled(INFINITE if finite else -INFINITE, largest, build)
    return build.pointwise("eq", build.pointwise("abs", largest) if finite else largest, limit)


def _filled(value: float, like: Node, build: Builder) -> Node:
    return build.full(value, like.dtype, like.shape, like.device)


def _along(part: Node, whole: Node, build: Builder) -> Node:
    return build.expand(build.reshape(part, (*part.shape, ONE)), whole.shape)
