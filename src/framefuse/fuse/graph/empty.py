"""Turns values that have no element, and reductions over none, into constants, and scans of one into that element."""

from __future__ import annotations

from collections.abc import Sequence

from framefuse.ir.dtypes import BOOL
from framefuse.ir.graph import Graph, Node
from framefuse.ir.ops import ELEMENTWISE, REDUCE, SCAN, TABLE
from framefuse.ir.rename import rebuilt

# What a reduction of no element gives; eager refuses the others.
OF_NOTHING = {"sum": 0, "prod": 1, "any": 0, "all": 1}


def without_empty(graph: Graph) -> Graph:
    """The graph, in which what is known to be empty is a constant, and no scan has a single element: a loop over it
    would have no axis. Where an element may be asked for that is not there, eager's error is left to whatever raises
    it.
    """
    if not any(size.constant == 0 for node in graph.nodes for size in node.shape):
        if not any(_is_of_one(node) for node in graph.nodes):
            return graph
    return rebuilt(graph, _made)


def _is_of_one(node: Node) -> bool:
    return TABLE[node.op].kind == SCAN and node.shape[node.attr("axis")].constant == 1


def _made(node: Node, inputs: tuple[Node, ...]) -> Sequence[Node]:
    kind = TABLE[node.op].kind
    if kind in (*ELEMENTWISE, REDUCE, SCAN) and any(size.constant == 0 for size in node.shape):
        return (_constant(node, 0),)
    if node.op in OF_NOTHING and any(inputs[0].shape[axis].constant == 0 for axis in node.attr("axes")):
        return (_constant(node, OF_NOTHING[node.op]),)
    if _is_of_one(node):
        return _with_nothing(node, inputs[0])
    return (Node(node.op, inputs, node.attrs, node.dtype, node.shape, node.strides, node.line, node.device),)


def _with_nothing(node: Node, element: Node) -> Sequence[Node]:
    """What a scan of one element begins with, joined with the element: a sum from 0 on has no negative zero."""
    if node.op != "cumsum":
        return (Node("expand", (element,), (), node.dtype, node.shape, None, node.line, node.device),)
    nothing = _constant(node, 0)
    return nothing, Node("add", (nothing, element), (), node.dtype, node.shape, None, node.line, node.device)


def _constant(node: Node, value: int) -> Node:
    number = bool(value) if node.dtype is BOOL else float(value) if node.dtype.is_float else value
    return Node("full", (), (("value", number),), node.dtype, node.shape, node.strides, node.line, node.device)
