"""Gives sizes of inputs that the program relies on to be equal one name, so that what has one shape is seen to."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import Any

from framefuse.ir.graph import Graph, Node
from framefuse.ir.numbers import Expr, Real, Relation, Symbol, expr

Names = dict[Symbol, Expr]


def with_equal_sizes(graph: Graph, relations: Iterable[Relation]) -> Graph:
    """The graph with one symbol, that of the earliest input, for all sizes that ``relations`` or its own say are equal.

    The relations stay as they are: guards compare the sizes that the tensors really have.
    """
    names = _names(graph, (*relations, *graph.relations))
    if not names:
        return graph
    made: dict[Node, Node] = {}
    for node in graph.nodes:
        made[node] = _renamed(node, made, names)
    return replace(
        graph,
        inputs=tuple(made[node] for node in graph.inputs),
        nodes=tuple(made.values()),
        outputs=tuple(replace(output, node=made[output.node]) for output in graph.outputs),
        writes=tuple(replace(write, node=made[write.node]) for write in graph.writes),
        bound=tuple((symbol, made[node], dimension) for symbol, node, dimension in graph.bound),
        kept=tuple(made[node] for node in graph.kept),
    )


def _names(graph: Graph, relations: Iterable[Relation]) -> Names:
    order: dict[Expr, Symbol] = {}
    for node in graph.inputs:
        for size in node.shape:
            for symbol in size.symbols:
                if size is expr(symbol):
                    order.setdefault(size, symbol)
    rank = {size: place for place, size in enumerate(order)}
    same = {size: size for size in order}  # to one of the same class, nearer to the first

    def first(size: Expr) -> Expr:
        while same[size] is not size:
            size = same[size]
        return size

    for relation in relations:
        if relation.op == "==" and relation.left in order and relation.right in order:
            left, right = sorted((first(relation.left), first(relation.right)), key=rank.__getitem__)
            same[right] = left
    return {symbol: first(size) for size, symbol in order.items() if first(size) is not size}


def _renamed(node: Node, made: dict[Node, Node], names: Names) -> Node:
    inputs = tuple([made[operand] for operand in node.inputs])
    shape = tuple([size.substitute(names) for size in node.shape])
    strides = node.strides and tuple([stride.substitute(names) for stride in node.strides])
    attrs = _value(node.attrs, names)
    if attrs is node.attrs and (inputs, shape, strides) == (node.inputs, node.shape, node.strides):
        return node
    return replace(node, inputs=inputs, attrs=attrs, shape=shape, strides=strides)


def _value(value: Any, names: Names) -> Any:
    """A value of an attribute, the same object where nothing changes."""
    if isinstance(value, (Expr, Real)):
        return value.substitute(names)
    if type(value) in (tuple, list):
        parts = [_value(part, names) for part in value]
        return value if all(new is old for new, old in zip(parts, value, strict=True)) else type(value)(parts)
    if type(value) is dict:
        found = {key: _value(part, names) for key, part in value.items()}
        return value if all(found[key] is part for key, part in value.items()) else found
    if type(value) is slice:
        return slice(_value(value.start, names), _value(value.stop, names), _value(value.step, names))
    return value
