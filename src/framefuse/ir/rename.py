"""Turns a graph into the same graph with other nodes, or over other size expressions."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from framefuse.ir.graph import Graph, Node
from framefuse.ir.nested import mapped
from framefuse.ir.numbers import Expr, Real
from framefuse.ir.values import Value

Rename = Callable[[Value], Value]  # an Expr or Real to one of the same kind


Change = Callable[[Node, tuple[Node, ...]], Sequence[Node]]


def rebuilt(graph: Graph, change: Change) -> Graph:
    """The graph in which ``change``, given a node and its new operands, says which nodes come in its place; the last of
    them stands for it.
    """
    forms: dict[Node, Node] = {}
    nodes: dict[Node, None] = {}
    for node in graph.nodes:
        instead = change(node, tuple([forms[operand] for operand in node.inputs]))
        nodes.update(dict.fromkeys(instead))
        forms[node] = instead[-1]
    return replace(
        graph,
        inputs=tuple(forms[node] for node in graph.inputs),
        nodes=tuple(nodes),
        outputs=tuple(replace(output, node=forms[output.node]) for output in graph.outputs),
        writes=tuple(replace(write, node=forms[write.node]) for write in graph.writes),
        bound=tuple((symbol, forms[node], dimension) for symbol, node, dimension in graph.bound),
        kept=tuple(forms[node] for node in graph.kept),
        lasting=frozenset(forms[node] for node in graph.lasting if node in forms),
        results=frozenset(forms[node] for node in graph.results if node in forms),
        regions={forms[node]: region for node, region in graph.regions.items() if node in forms},
    )


def renamed(graph: Graph, rename: Rename) -> Graph:
    """The graph with ``rename`` applied to sizes, strides and attributes; its relations and hints stay as they are."""
    return rebuilt(graph, lambda node, inputs: (_node(node, inputs, rename),))


def _node(node: Node, inputs: tuple[Node, ...], rename: Rename) -> Node:
    shape = tuple([rename(size) for size in node.shape])
    strides = node.strides and tuple([rename(stride) for stride in node.strides])
    attrs = mapped(node.attrs, lambda value: rename(value) if isinstance(value, (Expr, Real)) else value)
    if attrs is node.attrs and (inputs, shape, strides) == (node.inputs, node.shape, node.strides):
        return node
    return replace(node, inputs=inputs, attrs=attrs, shape=shape, strides=strides)
