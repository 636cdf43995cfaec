"""Turns a graph into one whose convolutions, and the values around them, lie as costs the least over all of it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from framefuse.fuse.addressing.layout import Order, dense_strides, preferred_orders, shown_order
from framefuse.fuse.graph.results import wanted
from framefuse.fuse.layouts.assignment import Assignment, either
from framefuse.fuse.layouts.movable_calls import NAMES, rate
from framefuse.fuse.layouts.prices import Labels
from framefuse.fuse.setting import Setting
from framefuse.ir import costs
from framefuse.ir.flow import SINK, SOURCE
from framefuse.ir.graph import Graph, Node
from framefuse.ir.ops import CREATE, TABLE, VIEW
from framefuse.ir.rename import rebuilt


def with_layouts(graph: Graph, setting: Setting) -> Graph:
    """The graph in which each value of four or five dimensions lies contiguous or channels-last, whichever is best for
    all together; what the program gets lies as it did. The same graph where that gains too little.
    """
    if not any(node.op == "library" and node.attr("name") in NAMES for node in graph.nodes):
        return graph
    if any(_is_kept_norm(node, setting) for node in graph.nodes):
        return graph
    assignment = Assignment(graph, setting)
    prices = assignment.prices
    labels, before = prices.least(), labels_of(assignment)
    least = max((rate(costs.LAYOUT_GAIN, setting.targets(call.device)) for call in assignment.calls), default=0.0)
    if prices.total(labels) + least > prices.total(before):
        return graph
    return _Rewriting(assignment, labels).graph()


def _is_kept_norm(node: Node, setting: Setting) -> bool:
    """Whether a backward pass on a GPU will sum along the columns of what a norm over batches keeps: measured, a step
    of ResNet-50 in float32 takes 1.5 times as long if all of it lies channels-last.
    """
    target = setting.targets(node.device) if node.op == "library" and node.attr("name") == "batch_norm_kept" else None
    return target is not None and target.device != "cpu"


def labels_of(assignment: Assignment) -> Labels:
    """The labels under which the graph lies as it is."""
    graph, prices = assignment.graph, assignment.prices
    orders = {**preferred_orders(graph), **wanted(graph).orders}
    labels = [0] * prices.count
    labels[SINK] = 1
    for node, place in assignment.places.items():
        if place.vertex not in (SOURCE, SINK):
            labels[place.vertex] = int(orders.get(node) == place.orders[1])
    return labels


class _Rewriting:
    """Gives every value of a graph the layout that its label says, with copies where labels differ."""

    def __init__(self, assignment: Assignment, labels: Labels) -> None:
        self.assignment = assignment
        self.labels = labels
        self.copies: dict[tuple[Node, Order], Node] = {}

    def graph(self) -> Graph:
        """The whole graph; only once."""
        graph = rebuilt(self.assignment.graph, self._change)
        extra: list[Node] = []
        outputs = []
        for before, output in zip(self.assignment.graph.outputs, graph.outputs, strict=True):
            order = shown_order(before, graph.hints)
            if order is not None and self._lies_elsewhere(before.node, order):
                known = self.copies.get((before.node, order))
                copy = known if known is not None else self._copy(output.node)
                extra += [copy] if known is None else []
                output = replace(output, node=copy, order=order)
            outputs.append(output)
        return replace(graph, nodes=(*graph.nodes, *extra), outputs=tuple(outputs))

    def _lies_elsewhere(self, node: Node, order: Order) -> bool:
        """Whether a call that is made channels-last leaves its result in another order, or, where all orders are the
        same one, with other strides of the dimensions of size 1.
        """
        vertex = self.assignment.calls.get(node.inputs[0]) if node.op == "result" else None
        if vertex is None or len(node.shape) < 4:
            return False
        lies = self._order(node)
        if lies is not None:
            return lies != order
        recorded = node.inputs[0].attr("orders")[:1]  # of the picture: the recorded call lay as the new one does
        return self.labels[vertex] == 1 and recorded != (either(len(node.shape))[1],)

    def _order(self, node: Node) -> Order | None:
        """In which order a value lies, where that was to choose."""
        place = self.assignment.places.get(node)
        return place.order(self.labels) if place is not None else None

    def _is_free(self, node: Node) -> bool:
        place = self.assignment.places.get(node)
        return place is not None and not place.is_fixed

    def _change(self, node: Node, inputs: tuple[Node, ...]) -> Sequence[Node]:
        if node.op == "library":
            return self._call(node, inputs)
        order = self._order(node)
        if order is None or not self._is_free(node) or TABLE[node.op].kind in (CREATE, VIEW):
            return (node if inputs == node.inputs else replace(node, inputs=inputs),)
        return (replace(node, inputs=inputs, strides=dense_strides(node.shape, order)),)

    def _call(self, call: Node, inputs: tuple[Node, ...]) -> Sequence[Node]:
        vertex = self.assignment.calls.get(call)
        orders: list[Order | None] = []
        operands: list[Node] = []
        fresh: list[Node] = []
        for old, new, order in zip(call.inputs, inputs, call.attr("orders"), strict=True):
            lies = self._order(old)
            if vertex is not None and len(old.shape) in (4, 5) and old not in self.assignment.turning.get(call, ()):
                order = either(len(old.shape))[self.labels[vertex]]
            may_turn = vertex is not None or self._is_free(old)
            if may_turn and lies is not None and order is not None and lies != order:
                turned = self.copies.get((old, order))
                if turned is None:
                    turned = self.copies[old, order] = self._copy(new)
                    fresh.append(turned)
                new = turned
            operands.append(new)
            orders.append(order)
        attrs = tuple((name, tuple(orders) if name == "orders" else value) for name, value in call.attrs)
        return *fresh, replace(call, inputs=tuple(operands), attrs=attrs)

    def _copy(self, node: Node) -> Node:
        """The same value in memory of its own: it lies as its reader asks."""
        return Node("expand", (node,), (), node.dtype, node.shape, None, node.line, node.device)
