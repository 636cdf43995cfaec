"""Gives sizes of inputs that must be equal one symbol, or their constant, so that equal shapes compare equal."""

from __future__ import annotations

from collections.abc import Iterable

from framefuse.ir.comparisons import Relation
from framefuse.ir.facts import Assumptions
from framefuse.ir.graph import Graph
from framefuse.ir.numbers import Expr, Symbol, expr
from framefuse.ir.rename import renamed

Names = dict[Symbol, Expr]


def with_equal_sizes(graph: Graph, relations: Iterable[Relation]) -> Graph:
    """The graph with one symbol, that of the earliest input, for all sizes that ``relations`` or its own say are equal,
    and the number itself for those that they say are one.

    The relations stay as they are: guards compare the sizes that the tensors really have.
    """
    names = _names(graph, (*relations, *graph.relations))
    if not names:
        return graph
    return renamed(graph, lambda value: value.substitute(names))


def fixed_sizes(assumed: Assumptions) -> dict[Symbol | int, int]:
    """The sizes of inputs of which relations say that they are a number."""
    sizes = {size for entry in assumed.inputs for size in entry.spec.sizes if isinstance(size, Symbol)}
    fixed: dict[Symbol | int, int] = {}
    for relation in assumed.relations:
        left, number = relation.left, relation.right.constant
        if relation.op == "==" and number is not None:
            fixed.update((symbol, number) for symbol in left.symbols & sizes if left is expr(symbol))
    return fixed


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

    known: dict[Expr, Expr] = {}  # sizes that are a number; below, by the first of their class
    for relation in relations:
        if relation.op != "==":
            continue
        for size, other in ((relation.left, relation.right), (relation.right, relation.left)):
            if size in order and other.constant is not None:
                known[size] = other
        if relation.left in order and relation.right in order:
            left, right = sorted((first(relation.left), first(relation.right)), key=rank.__getitem__)
            same[right] = left
    known = {first(size): number for size, number in known.items()}
    names = {symbol: known.get(first(size), first(size)) for size, symbol in order.items()}
    return {symbol: name for symbol, name in names.items() if name is not expr(symbol)}
