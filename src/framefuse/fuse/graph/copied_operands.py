"""Gives products copies of operands that lie as BLAS cannot read them where they must lie so."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from framefuse.fuse.addressing.indexing import MOVES
from framefuse.fuse.addressing.layout import Order, dense_strides, preferred_orders
from framefuse.fuse.addressing.product_layouts import has_blas_type, product_view
from framefuse.fuse.addressing.strided import Strides
from framefuse.fuse.graph.results import wanted
from framefuse.fuse.setting import Setting
from framefuse.ir.graph import Graph, Node
from framefuse.ir.rename import rebuilt


def with_copied_operands(graph: Graph, setting: Setting) -> Graph:
    """The graph in which a product reads its own copy of an input, of a call's result or of a value that others get as
    eager has it, where that lies channels-last or so: the library, called in its place, would make the same copy.
    """
    copied = _copied(graph, setting)
    if not copied:
        return graph
    copies: dict[Node, Node] = {}

    def change(node: Node, inputs: tuple[Node, ...]) -> Sequence[Node]:
        if node.op != "matmul" or copied.isdisjoint(node.inputs):
            return (node if inputs == node.inputs else node.over(inputs),)
        made: list[Node] = []
        read = list(inputs)
        for number, operand in enumerate(node.inputs):
            if operand not in copied:
                continue
            if operand not in copies:
                # An operation, though it changes nothing: its result has memory of its own.
                kept = (("dtype", operand.dtype), ("loose", False))
                copy = replace(inputs[number], op="cast", inputs=(inputs[number],), attrs=kept, strides=None)
                copies[operand] = replace(copy, line=node.line)
                made.append(copies[operand])
            read[number] = copies[operand]
        return (*made, node.over(tuple(read)))

    return rebuilt(graph, change)


def _copied(graph: Graph, setting: Setting) -> set[Node]:
    """The operands of products that BLAS cannot read as they lie, and that may not lie in another way."""
    orders: dict[Node, Order] = preferred_orders(graph)
    shown = wanted(graph).orders
    orders.update(shown)

    def strides_of(node: Node) -> Strides:
        if node.op == "matmul" and node not in shown:
            return dense_strides(node.shape, None)
        return node.strides if node.strides is not None else dense_strides(node.shape, orders.get(node))

    held = {node for node in graph.nodes if node.op in ("input", "result")} | set(shown)
    for node in graph.nodes:
        if node.op in ("library", "matmul"):
            for operand in node.inputs:
                base = _base(operand)
                if node.op == "library" or base is not operand:
                    held.update((operand, base))
    return {
        operand
        for node in graph.nodes
        if node.op == "matmul" and has_blas_type(node) and _is_ours(node, setting)
        for operand in node.inputs
        if operand in held and product_view(operand, strides_of, graph.hints) is None
    }


def _is_ours(node: Node, setting: Setting) -> bool:
    target = setting.targets(node.device)
    return target is not None and target.products


def _base(node: Node) -> Node:
    while node.op in MOVES:
        node = node.inputs[0]
    return node
