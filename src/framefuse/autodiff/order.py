"""Puts the nodes of a backward pass in an order that holds little at a time: what is computed again comes late."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence

from framefuse.ir.graph import Node


def late(nodes: Sequence[Node], tangents: Collection[Node]) -> list[Node]:
    """The nodes in another program order: those that rest on tangents keep theirs, every other one stands right
    before its first reader.

    ::

        a = exp(x)           h = mul(g1, y)
        b = sin(x)           b = sin(x)
        h = mul(g1, y)   ->  i = mul(h, b)
        i = mul(h, b)        a = exp(x)
        j = mul(i, a)        j = mul(i, a)
    """
    rests = set(tangents)
    for node in nodes:
        if not rests.isdisjoint(node.inputs):
            rests.add(node)
    there = set(nodes)
    order: dict[Node, None] = {}
    for node in nodes:
        if node in rests or not node.inputs:
            _place(node, order, there)
    for node in nodes:
        _place(node, order, there)
    return list(order)


def _place(node: Node, order: dict[Node, None], there: Collection[Node]) -> None:
    """Puts a node behind its operands, which come first where they have no place yet."""
    waiting: list[tuple[Node, Iterable[Node]]] = [(node, iter(node.inputs))]
    while waiting:
        last, operands = waiting[-1]
        missing = next((operand for operand in operands if operand not in order and operand in there), None)
        if missing is not None:
            waiting.append((missing, iter(missing.inputs)))
        else:
            order.setdefault(last)
            waiting.pop()
