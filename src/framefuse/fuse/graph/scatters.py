"""Gives each sum at positions memory that it may begin in: a copy of its first operand that nobody else reads."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace

from framefuse.ir.graph import Graph, Node
from framefuse.ir.rename import rebuilt


def with_own_sums(graph: Graph) -> Graph:
    """The graph in which the first operand of every ``scatter_add`` is read by it alone: a copy, or a sum that goes on.

    A sum lies where this operand does: a kernel writes the operand, and another one adds to it.
    """
    if not any(node.op == "scatter_add" for node in graph.nodes):
        return graph
    readers = Counter(operand for node in graph.nodes for operand in node.inputs)
    outside = {*(output.node for output in graph.outputs), *(write.node for write in graph.writes)}

    def change(node: Node, inputs: tuple[Node, ...]) -> Sequence[Node]:
        if node.op != "scatter_add":
            return (node if inputs == node.inputs else node.over(inputs),)
        begun = node.inputs[0]
        if begun.op == "scatter_add" and readers[begun] == 1 and begun not in outside:
            return (node.over(inputs),)
        copy = Node("expand", inputs[:1], (), node.dtype, node.shape, None, node.line, node.device)
        return copy, replace(node, inputs=(copy, *inputs[1:]))

    return rebuilt(graph, change)


def beginnings(nodes: Sequence[Node], memories: set[Node]) -> set[Node]:
    """``memories`` with the operands in whose memory sums among them lie."""
    wide = set(memories)
    for node in reversed(nodes):
        if node.op == "scatter_add" and node in wide:
            wide.add(node.inputs[0])
    return wide
