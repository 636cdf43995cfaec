"""Gives each result memory of its own: a copy where it would share another's, or an input's that is overwritten."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from framefuse.fuse.addressing.layout import Order
from framefuse.ir.graph import Graph, Node


def with_own_results(graph: Graph) -> Graph:
    """The graph with a copy for each result that is an input or another result, and for each written value that is an
    input which is written itself.
    """
    copies: list[Node] = []

    def copied(node: Node) -> Node:
        copies.append(Node("expand", (node,), (), node.dtype, node.shape, None, node.line, node.device))
        return copies[-1]

    taken: set[Node] = set()
    outputs = []
    for output in graph.outputs:
        node = output.node
        if output.input is None:
            if node.op == "input" or node in taken:
                node = copied(node)
            taken.add(node)
        outputs.append(output if node is output.node else replace(output, node=node))
    overwritten = {graph.inputs[write.input] for write in graph.writes}
    writes = tuple(
        replace(write, node=copied(write.node))
        if write.node in overwritten and write.node is not graph.inputs[write.input]
        else write
        for write in graph.writes
    )
    if not copies:
        return graph
    return replace(graph, nodes=(*graph.nodes, *copies), outputs=tuple(outputs), writes=writes)


@dataclass(frozen=True, slots=True)
class Wanted:
    """What must be in memory at the end: ``required`` nodes, and the ``orders`` in which some of them are laid out."""

    required: frozenset[Node]
    orders: dict[Node, Order] = field(default_factory=dict)


def wanted(graph: Graph) -> Wanted:
    """What the results and writes of a graph, and the nodes that it keeps, need in memory."""
    results = [output for output in graph.outputs if output.input is None]
    written = (write.node for write in graph.writes if write.node.op != "input")
    required = frozenset((*(output.node for output in results), *written, *graph.kept))
    laid = (output for output in results if output.node.op != "result")
    return Wanted(required, {output.node: output.order for output in laid if output.order is not None})
