"""Turns sums over rows and all in them, of what needs each row reduced first, into two: each row's, then theirs."""

from __future__ import annotations

from framefuse.fuse.addressing.layout import estimate
from framefuse.fuse.graph.two_steps import in_two_steps
from framefuse.fuse.setting import Setting
from framefuse.ir import costs
from framefuse.ir.dtypes import FLOAT32, FLOAT64
from framefuse.ir.graph import Graph, Node
from framefuse.ir.numbers import product
from framefuse.ir.ops import ELEMENTWISE, TABLE, VIEW


def with_row_sums(graph: Graph, setting: Setting) -> Graph:
    """The graph in which a GPU sums a loss of softmaxes for each row, in the kernel that has the row at hand, and then
    over the rows: in one step the sum would walk over all elements once more (the Kullback-Leibler divergence of two
    softmaxes of 8192 x 8192 float32: 0.42 ms on an H100 in one step, 0.20 in two).
    """
    axes = {node: first for node in graph.nodes if node.op == "sum" and (first := _row(node, graph, setting))}
    return in_two_steps(graph, axes)


def _row(node: Node, graph: Graph, setting: Setting) -> tuple[int, ...]:
    """The axes of one row of what is summed, where rows are reduced before that; none where it has no such rows, or
    few. Of 16-bit floats the sums of rows would be rounded.
    """
    target, reduced = setting.targets(node.device), set(node.attr("axes"))
    if target is None or not target.tiles or node.dtype not in (FLOAT32, FLOAT64):
        return ()
    whole = node.inputs[0]
    waiting, seen = list(whole.inputs), set[Node]()
    while waiting and len(seen) < costs.SOURCES:
        current = waiting.pop()
        kind = TABLE[current.op].kind
        if kind == "reduce" and current.inputs[0].shape == whole.shape:
            axes = tuple(sorted(current.attr("axes")))
            rows = estimate(product(current.shape), graph.hints)
            if set(axes) < reduced and axes[-1] == len(whole.shape) - 1 and rows >= costs.GPU_FEW_ROWS[0]:
                return axes
        if current not in seen and kind in (*ELEMENTWISE, VIEW):
            seen.add(current)
            waiting += current.inputs
    return ()
