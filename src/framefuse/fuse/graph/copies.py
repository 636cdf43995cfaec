"""Turns reshapes that need a copy of the same value into one copy, where library calls or products read them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from framefuse.fuse.addressing.layout import dense_strides, preferred_orders
from framefuse.fuse.addressing.strided import Strides, strided
from framefuse.ir.graph import Graph, Node
from framefuse.ir.rename import rebuilt


def with_single_copies(graph: Graph) -> Graph:
    """The graph in which reshapes of one value that no view of memory gives are views of the first of them that a call
    reads: a projection's gradient goes, in two shapes, to two products and a sum.
    """
    copied = _copied(graph)
    if not copied:
        return graph
    copies: dict[Node, Node] = {}

    def change(node: Node, inputs: tuple[Node, ...]) -> Sequence[Node]:
        source = node.inputs[0] if node.op == "reshape" else None
        if source is None or source not in copied:
            return (node if inputs == node.inputs else node.over(inputs),)
        before: list[Node] = []
        if source not in copies:
            shaped = replace(node, inputs=inputs, shape=copied[source].shape)
            # An operation, though it changes nothing: what reads through views of it reads its memory.
            cast = (("dtype", node.dtype), ("loose", False))
            copies[source] = replace(shaped, op="cast", inputs=(shaped,), attrs=cast)
            before = [shaped, copies[source]]
        copy = copies[source]
        return (*before, copy if node.shape == copy.shape else replace(node, inputs=(copy,)))

    return rebuilt(graph, change)


def _copied(graph: Graph) -> dict[Node, Node]:
    """The values with several reshapes one of which is copied for a call, and that reshape."""
    orders = preferred_orders(graph)

    def strides_of(node: Node) -> Strides:
        return node.strides if node.strides is not None else dense_strides(node.shape, orders.get(node))

    reshapes: dict[Node, set[Node]] = {}
    for node in graph.nodes:
        if node.op == "reshape":
            reshapes.setdefault(node.inputs[0], set()).add(node)
    copied: dict[Node, Node] = {}
    for node in graph.nodes:
        if node.op not in ("library", "matmul"):
            continue
        for operand in node.inputs:
            several = operand.op == "reshape" and len(reshapes[operand.inputs[0]]) > 1
            if several and operand.inputs[0] not in copied and strided(operand, strides_of, graph.hints) is None:
                copied[operand.inputs[0]] = operand
    return copied
