"""Gives sizes of inputs that the program relies on to be equal one name, so that what has one shape is seen to."""

from __future__ import annotations

from collections.abc import Iterable

from framefuse.ir.graph import Graph
from framefuse.ir.numbers import Expr, Relation, Symbol, expr
from framefuse.ir.rename import renamed

Names = dict[Symbol, Expr]


def with_equal_sizes(graph: Graph, relations: Iterable[Relation]) -> Graph:
    """The graph with one symbol, that of the earliest input, for all sizes that ``relations`` or its own say are equal.

    The relations stay as they are: guards compare the sizes that the tensors really have.
    """
    names = _names(graph, (*relations, *graph.relations))
    if not names:
        return graph
    return renamed(graph, lambda value: value.substitute(names))


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
