"""Turns a graph into the order of dimensions in memory that each of its values prefers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from framefuse.fuse.addressing.ranges import ONE
from framefuse.fuse.addressing.strided import View
from framefuse.ir import costs
from framefuse.ir.graph import Graph, Node, Output
from framefuse.ir.numbers import Expr, Symbol
from framefuse.ir.ops import ELEMENTWISE, TABLE

Order = tuple[int, ...]


def estimate(value: Expr, hints: Mapping[Symbol, int]) -> int:
    """The value for the recorded sizes; a symbol without a hint counts as :data:`costs.UNKNOWN`."""
    if value.constant is not None:
        return value.constant
    try:
        return value.evaluate(hints)
    except KeyError:
        return value.evaluate({symbol: hints.get(symbol, costs.UNKNOWN) for symbol in value.symbols})


def preferred_orders(graph: Graph) -> dict[Node, Order]:
    """For each node with a preference the permutation of its dimensions, outermost first, as eager's kernels would lay
    it out: operands of library calls lie as eager's own did, pointwise results follow their first operand with a
    preference, everything else is row-major.
    """
    orders: dict[Node, Order] = {}
    wanted = _of_library_operands(graph)
    for node in graph.nodes:
        if len(node.shape) < 2:
            continue
        if node in wanted:
            orders[node] = wanted[node]
            continue
        order = order_of_strides(node, graph.hints) if node.strides is not None else _of_operands(node, orders)
        if order is not None:
            orders[node] = order
    return orders


def dense_strides(sizes: Sequence[Expr], order: Order | None) -> tuple[Expr, ...]:
    """Strides without holes for dimensions laid out in ``order`` (row-major for None)."""
    strides = [ONE] * len(sizes)
    step = ONE
    for axis in reversed(order or range(len(sizes))):
        strides[axis] = step
        # A size of zero leaves no element; torch then counts it as one in strides.
        step = step if sizes[axis].constant == 0 else step * sizes[axis]
    return tuple(strides)


def lies_in(view: View, order: Order | None, hints: Mapping[Symbol, int]) -> bool:
    """Whether the dimensions of a view lie in ``order``, outermost first (None: any)."""
    if order is None or view.is_whole:
        return True
    real = [axis for axis in order if estimate(view.node.shape[axis], hints) != 1]
    strides = [estimate(view.strides[axis], hints) for axis in real]
    return strides == sorted(strides, reverse=True)


def _of_library_operands(graph: Graph) -> dict[Node, Order]:
    """The recorded order of each computed operand of a library call, and of what such an operand is a transpose of."""
    wanted: dict[Node, Order] = {}
    for node in graph.nodes:
        if node.op == "library":
            for operand, order in zip(node.inputs, node.attr("orders"), strict=True):
                if order is not None and len(order) > 1:
                    _want(wanted, operand, order)
    return wanted


def _want(wanted: dict[Node, Order], node: Node, order: Order) -> None:
    while node.strides is None:
        wanted.setdefault(node, order)
        if node.op != "permute":
            return
        axes = node.attr("axes")
        node, order = node.inputs[0], tuple(axes[axis] for axis in order)


def order_of_strides(node: Node, hints: Mapping[Symbol, int]) -> Order | None:
    """The order in which strides have the dimensions, those of one point in their places; None where all have one."""
    assert node.strides is not None
    movable = [
        axis
        for axis, (size, stride) in enumerate(zip(node.shape, node.strides, strict=True))
        if estimate(size, hints) != 1 and estimate(stride, hints) != 0
    ]
    if len(movable) < 2:
        return None
    sorted_axes = iter(sorted(movable, key=lambda axis: -estimate(node.strides[axis], hints)))  # type: ignore[index]
    places = set(movable)
    return tuple(next(sorted_axes) if axis in places else axis for axis in range(len(node.shape)))


def _of_operands(node: Node, orders: Mapping[Node, Order]) -> Order | None:
    first = node.inputs[0] if node.inputs else None
    if first is None:
        return None
    kind = TABLE[node.op].kind
    if kind in ELEMENTWISE or node.op in ("cat", "grown"):
        return next((orders[operand] for operand in node.inputs if operand in orders), None)
    order = orders.get(first)
    if order is None:
        return None
    if node.op == "permute":
        place = {axis: position for position, axis in enumerate(node.attr("axes"))}
        return tuple(place[axis] for axis in order)
    if node.op == "diagonal":  # it steps by both strides, so it lies where the larger one does
        axis = len(node.shape) - 1
        inner = max(order[::-1].index(axis), order[::-1].index(axis + 1))  # counted from the innermost
        left = [place for place in order if place < axis or order[::-1].index(place) == inner]
        return tuple(min(place, axis) for place in left) if axis else None
    if node.op == "windows":  # the elements of a window lie beside its places
        behind = order.index(node.attr("axis")) + 1
        return (*order[:behind], len(node.shape) - 1, *order[behind:])
    if node.op in ("slice", "pad") or (node.op == "expand" and len(node.shape) == len(first.shape)):
        return order
    if kind == "reduce":
        removed = {axis % len(first.shape) for axis in node.attr("axes")}
        kept = [axis for axis in range(len(first.shape)) if axis not in removed]
        place = {axis: position for position, axis in enumerate(kept)}
        return tuple(place[axis] for axis in order if axis in place) if len(kept) > 1 else None
    return None


def shown_order(output: Output, hints: Mapping[Symbol, int]) -> Order | None:
    """The order in which the program gets an output: as a library call gave it to eager, else as the output says. What
    a backward alone gets, which is no value of the trace, lies as is best.
    """
    node = output.node
    if output.input is not None or output.value < 0:
        return None
    if node.op == "result":
        return order_of_strides(node, hints) if node.strides is not None else None
    return output.order
