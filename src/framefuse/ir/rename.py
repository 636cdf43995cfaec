"""Turns a graph into the same graph over other size expressions."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from framefuse.ir.graph import Graph, Node
from framefuse.ir.numbers import Expr, Real

Rename = Callable[[Any], Any]  # an Expr or Real to one of the same kind


def renamed(graph: Graph, rename: Rename) -> Graph:
    """The graph with ``rename`` applied to sizes, strides and attributes; its relations and hints stay as they are."""
    made: dict[Node, Node] = {}
    for node in graph.nodes:
        made[node] = _node(node, made, rename)
    return replace(
        graph,
        inputs=tuple(made[node] for node in graph.inputs),
        nodes=tuple(made.values()),
        outputs=tuple(replace(output, node=made[output.node]) for output in graph.outputs),
        writes=tuple(replace(write, node=made[write.node]) for write in graph.writes),
        bound=tuple((symbol, made[node], dimension) for symbol, node, dimension in graph.bound),
        kept=tuple(made[node] for node in graph.kept),
    )


def _node(node: Node, made: dict[Node, Node], rename: Rename) -> Node:
    inputs = tuple([made[operand] for operand in node.inputs])
    shape = tuple([rename(size) for size in node.shape])
    strides = node.strides and tuple([rename(stride) for stride in node.strides])
    attrs = _value(node.attrs, rename)
    if attrs is node.attrs and (inputs, shape, strides) == (node.inputs, node.shape, node.strides):
        return node
    return replace(node, inputs=inputs, attrs=attrs, shape=shape, strides=strides)


def _value(value: Any, rename: Rename) -> Any:
    """A value of an attribute, the same object where nothing changes."""
    if isinstance(value, (Expr, Real)):
        return rename(value)
    if type(value) in (tuple, list):
        parts = [_value(part, rename) for part in value]
        return value if all(new is old for new, old in zip(parts, value, strict=True)) else type(value)(parts)
    if type(value) is dict:
        found = {key: _value(part, rename) for key, part in value.items()}
        return value if all(found[key] is part for key, part in value.items()) else found
    if type(value) is slice:
        return slice(_value(value.start, rename), _value(value.stop, rename), _value(value.step, rename))
    return value
