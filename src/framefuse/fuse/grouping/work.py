"""Turns graph values into estimates of time: what computing, recomputing or loading an element costs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from framefuse.fuse.addressing.indexing import MOVES
from framefuse.fuse.addressing.layout import estimate
from framefuse.ir import costs
from framefuse.ir.dtypes import DType
from framefuse.ir.graph import Graph, Node
from framefuse.ir.numbers import Symbol, product
from framefuse.ir.ops import ELEMENTWISE, TABLE


@dataclass(frozen=True, slots=True)
class Weight:
    """What one element costs when it is computed from memory: nanoseconds of arithmetic, loads of its own size, and the
    bytes that those load.
    """

    time: float
    loads: int
    bytes: int


NUMBER = Weight(0.0, 0, 0)  # of a value that is one number for all elements: kernels compute it before their loops


def op_time(node: Node) -> float:
    """Nanoseconds of one element of this node's own operation in a vector loop."""
    return TABLE[node.op].cost * _width(node.inputs[0].dtype if node.inputs else node.dtype)


def loop_time(node: Node) -> float:
    """Nanoseconds that the operation adds to an element of a loop that loads and stores anyway."""
    cost = TABLE[node.op].cost
    width = _width(node.inputs[0].dtype if node.inputs else node.dtype)
    return (costs.SINGLE[1] if 0 < cost <= costs.SINGLE[0] else costs.OVERLAP * cost) * width


def _width(dtype: DType) -> float:
    return 2.0 if dtype.size == 8 else 1.0


def points(node: Node, hints: Mapping[Symbol, int]) -> int:
    """The number of elements for the recorded sizes."""
    total = 1
    for size in node.shape:
        total *= estimate(size, hints)
    return total


def weights(graph: Graph) -> dict[Node, Weight]:
    """For each node the cost of one element computed from what is likely to be in memory: its operands may be, itself
    it is not.
    """
    consumers: dict[Node, int] = {}
    for node in graph.nodes:
        for operand in set(node.inputs):
            consumers[operand] = consumers.get(operand, 0) + 1
    by_node: dict[Node, Weight] = {}
    kept: set[Node] = set()
    for node in graph.nodes:
        row = TABLE[node.op]
        elementwise = row.kind in ELEMENTWISE or node.op in MOVES
        if node.op == "full" or (elementwise and all(by_node[operand] is NUMBER for operand in node.inputs)):
            by_node[node] = NUMBER
            continue
        if row.kind in ("call", "reduce", "scatter", "scan") or node.op in ("input", "grown"):
            by_node[node] = _loaded(node)
            continue
        time, loads, size = op_time(node), 0, 0
        for operand in dict.fromkeys(node.inputs):
            weight = _loaded(operand) if operand in kept else by_node[operand]
            placed = node.op == "expand" or (node.op == "take" and operand is not node.inputs[0])
            small = placed and product(node.shape) is not product(operand.shape)
            rare = small and points(operand, graph.hints) * costs.RARE <= points(node, graph.hints)
            time += 0.0 if rare else weight.time
            loads += 0 if small else weight.loads
            size += 0 if small else weight.bytes
        by_node[node] = Weight(time, loads, size)
        if row.kind in ELEMENTWISE and consumers.get(node, 0) > 1 and time > costs.KEPT_ABOVE:
            kept.add(node)
    return by_node


def _loaded(node: Node) -> Weight:
    return Weight(costs.LOADED, 1, node.dtype.size)
