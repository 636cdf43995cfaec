"""Turns reductions over short runs of memory and over what lies across them into two: across, then along the runs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from framefuse.fuse.addressing.layout import Order, estimate, preferred_orders
from framefuse.fuse.setting import Setting
from framefuse.ir import costs
from framefuse.ir.builder import Builder
from framefuse.ir.graph import Graph, Node
from framefuse.ir.numbers import Expr, Symbol, product
from framefuse.ir.ops import ELEMENTWISE, TABLE
from framefuse.ir.rewrite import rewritten

OPS = ("sum", "amax", "amin", "any", "all", "squares")


def without_short_runs(graph: Graph, setting: Setting) -> Graph:
    """The graph in which a reduction over a few neighbours in memory and over points that lie apart (a group of
    channels, channels-last) reduces the points first, with all channels as lanes.
    """
    several = [node for node in graph.nodes if node.op in OPS and len(node.attr("axes")) > 1 and _run(node, setting)]
    orders = preferred_orders(graph) if several else {}
    axes: dict[Node, tuple[int, ...]] = {}
    for node in several:
        target = setting.targets(node.device)
        turned = target is not None and target.tiles  # else a GPU's tiles have the points as lanes
        if first := _across(node, orders, graph.hints, _run(node, setting), turned):
            axes[node] = first
    if not axes:
        return graph

    def change(node: Node, operands: tuple[Node, ...], build: Builder) -> Node | None:
        return _in_two(node, operands[0], axes[node], build) if node in axes else None

    return rewritten(graph, change)


def _in_two(node: Node, source: Node, first: Sequence[int], build: Builder) -> Node:
    """The reduction of these axes, and then of what is left of them. Squared distances from the mean of all are those
    from the mean of each part, and those of these means for each element.
    """
    kept = [axis for axis in range(len(source.shape)) if axis not in first]
    rest = [place for place, axis in enumerate(kept) if axis in node.attr("axes")]
    part = build.reduce(node.op, source, first)
    if node.op != "squares":
        return build.reduce(node.op, part, rest)
    count = product(source.shape[axis] for axis in first)
    total = build.reduce("sum", source, first)
    means = build.pointwise("div", total, build.full(count, node.dtype, total.shape, node.device))
    between = build.reduce("squares", means, rest)
    between = build.pointwise("mul", between, build.full(count, node.dtype, between.shape, node.device))
    return build.pointwise("add", build.reduce("sum", part, rest), between)


def _run(node: Node, setting: Setting) -> int:
    """How many elements are no short run where the node runs."""
    target = setting.targets(node.device)
    return costs.SHORT_RUN[target.tiles] if target is not None else 0


def _across(
    node: Node, orders: Mapping[Node, Order], hints: Mapping[Symbol, int], least: int, turned: bool
) -> tuple[int, ...]:
    """The axes to reduce first: those that lie outside of the innermost axis that is kept, if fewer elements than
    ``least`` inside of it are reduced too, many times; none where that is not so, or where only what lies ``turned``
    is looked at and this does not.
    """
    source, reduced = node.inputs[0], node.attr("axes")
    order = _order(source, orders, hints, turned)
    wide = [axis for axis in order or () if estimate(source.shape[axis], hints) > 1]
    last = max((place for place, axis in enumerate(wide) if axis not in reduced), default=0)
    outer, inner = tuple(sorted(axis for axis in wide[:last] if axis in reduced)), wide[last + 1 :]
    if turned and (order is None or order[-1] == len(source.shape) - 1):
        return ()
    run, points = [estimate(product(source.shape[axis] for axis in axes), hints) for axes in (inner, outer)]
    few = points < max(costs.CPU_TILED_ABOVE, costs.RUNS * run)
    return () if not inner or run >= least or few else outer


def _order(node: Node, orders: Mapping[Node, Order], hints: Mapping[Symbol, int], read: bool) -> Order | None:
    """How the dimensions of a value lie that is computed where it is read: as it would itself, or as what is ``read``
    for it.
    """
    while node not in orders or (read and TABLE[node.op].kind in ELEMENTWISE):
        kind = TABLE[node.op].kind
        if node.op == "reshape":
            below = _order(node.inputs[0], orders, hints, read)
            return None if below is None else _reshaped(node.inputs[0].shape, node.shape, below, hints)
        if kind not in ELEMENTWISE and not (node.op == "expand" and len(node.shape) == len(node.inputs[0].shape)):
            return None
        node = max(node.inputs, key=lambda operand: operand.op not in ("expand", "full"), default=node)
    return orders[node]


def _reshaped(
    source: Sequence[Expr], shape: Sequence[Expr], order: Order, hints: Mapping[Symbol, int]
) -> Order | None:
    """The order of dimensions that are those of ``source``, or several in the place of one."""
    pieces: list[list[int]] = []
    sizes, place = [estimate(size, hints) for size in shape], 0
    if 0 in sizes:
        return None
    for size in source:
        left = estimate(size, hints)
        piece: list[int] = []
        while place < len(sizes) and left % sizes[place] == 0 and (left > 1 or not piece):
            left //= sizes[place]
            piece.append(place)
            place += 1
        if left != 1:
            return None
        pieces.append(piece)
    return tuple(axis for before in order for axis in pieces[before]) if place == len(sizes) else None
