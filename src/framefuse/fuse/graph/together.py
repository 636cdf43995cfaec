"""Copies operands of calls that read neighbours where eager's own operand lay so and what the graph has does not."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from framefuse.fuse.addressing.layout import Order, estimate
from framefuse.ir.graph import Graph, Node
from framefuse.ir.rename import rebuilt

# They take what lies one behind the other for the last dimension, whatever the strides say: eager asks before.
READ_NEIGHBOURS = (
    torch.ops.aten._scaled_dot_product_flash_attention_for_cpu.default,
    torch.ops.aten._scaled_dot_product_flash_attention_for_cpu_backward.default,
)


def with_rows_together(graph: Graph) -> Graph:
    """The graph in which such a call reads a copy of an argument, of a call's result or of a value that leaves in
    another order, unless neighbours of its innermost dimension are neighbours in memory: what was ``contiguous()`` or a
    slice of joined values is a value itself by now.
    """
    if not any(map(_reads_neighbours, graph.nodes)):
        return graph
    leaving = {output.node: output.order for output in graph.outputs if output.order is not None}

    def apart(operand: Node, order: Order | None) -> bool:
        if order is None or not order or estimate(operand.shape[order[-1]], graph.hints) == 1:
            return False
        if operand.strides is not None:
            return operand.strides[order[-1]].constant != 1
        return operand in leaving and leaving[operand][-1] != order[-1]

    def change(node: Node, inputs: tuple[Node, ...]) -> Sequence[Node]:
        if not _reads_neighbours(node):
            return (node if inputs == node.inputs else node.over(inputs),)
        copies = {
            number: Node("expand", (operand,), (), operand.dtype, operand.shape, None, node.line, node.device)
            for number, (operand, order) in enumerate(zip(node.inputs, node.attr("orders"), strict=True))
            if apart(operand, order)
        }
        if not copies and inputs == node.inputs:
            return (node,)
        made = [copy.over((inputs[number],)) for number, copy in copies.items()]
        taken = dict(zip(copies, made, strict=True))
        return (*made, node.over(tuple(taken.get(number, operand) for number, operand in enumerate(inputs))))

    made = rebuilt(graph, change)
    return graph if made.nodes == graph.nodes else made


def _reads_neighbours(node: Node) -> bool:
    return node.op == "library" and any(node.attr("target") is function for function in READ_NEIGHBOURS)
