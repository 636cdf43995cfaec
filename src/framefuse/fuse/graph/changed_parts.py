"""Turns new contents of inputs that are the old ones but for some parts into writes of these parts alone."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from framefuse.fuse.addressing.indexing import MOVES
from framefuse.fuse.addressing.layout import dense_strides, estimate
from framefuse.fuse.addressing.ranges import ZERO
from framefuse.fuse.addressing.strided import Strides, strided
from framefuse.fuse.graph.spread_parts import spread
from framefuse.ir import costs
from framefuse.ir.graph import Graph, Node, Part, Write
from framefuse.ir.numbers import Expr, product

Piece = tuple[Node, Part]  # new contents, and where they go


def with_parts(graph: Graph) -> Graph:
    """The graph in which inputs are written where they change: what eager writes through a view leaves the rest of the
    memory alone.
    """
    writes = tuple(part for write in graph.writes for part in _parts(graph, write))
    if writes == graph.writes:
        return graph
    known = set(graph.nodes)
    made = tuple(write.node for write in writes if write.node not in known)
    return replace(graph, nodes=(*graph.nodes, *made), writes=writes)


def _parts(graph: Graph, write: Write) -> tuple[Write, ...]:
    """The write as those of parts, where that costs less. Guards hold that no two elements of a written input share
    memory; what a kernel writes of one that is turned, or has gaps, is a part of its memory.
    """
    target, strides = graph.inputs[write.input], graph.inputs[write.input].strides
    if strides is None:
        return (write,)
    pieces = list(_pieces(graph, target, write.node, Part(strides, ZERO)))
    if not pieces:
        return (replace(write, node=target),)
    changed = sum(estimate(product(node.shape), graph.hints) for node, _ in pieces)
    everything = changed >= estimate(product(target.shape), graph.hints)
    if everything and len(pieces) <= costs.WHOLE_PIECES:
        as_it_lies = write.node.op == "result" or _same_places(target, strides, dense_strides(target.shape, None))
        return (write if as_it_lies else replace(write, part=Part(strides, ZERO)),)
    bumps = (write.bumps, *[0] * (len(pieces) - 1))
    return tuple(Write(write.input, node, count, part) for (node, part), count in zip(pieces, bumps, strict=True))


def _pieces(graph: Graph, target: Node, node: Node, part: Part) -> Iterator[Piece]:
    """The values that ``node`` is made of where it is to lie in a part of ``target``, but for those that lie there."""
    if _lies_in(graph, target, node, part):
        return
    inner = _before(node, part)
    if node.op == "cat":
        axis, position = node.attr("axis"), ZERO
        for piece in node.inputs:
            begin = Part(part.strides, part.offset + part.strides[axis] * position)
            yield from _pieces(graph, target, piece, begin)
            position = position + piece.shape[axis]
    elif inner is not None and _base(node).op == "cat":
        yield from _pieces(graph, target, node.inputs[0], inner)
    else:
        apart = spread(node, part)
        kept = apart is not None and _lies_in(graph, target, apart.old, part)
        yield (apart.new, apart.where) if apart is not None and kept else (node, part)


def _lies_in(graph: Graph, target: Node, node: Node, part: Part) -> bool:
    """Whether a value is the very part of ``target``."""
    if _base(node) is not target:
        return False
    view = strided(node, lambda base: base.strides or (), graph.hints)
    return view is not None and view.offset is part.offset and _same_places(node, view.strides, part.strides)


def _base(node: Node) -> Node:
    while node.op in MOVES:
        node = node.inputs[0]
    return node


def _same_places(node: Node, strides: Strides, others: Strides) -> bool:
    rows = zip(node.shape, strides, others, strict=True)
    return all(size.constant == 1 or stride is other for size, stride, other in rows)


def _before(node: Node, part: Part) -> Part | None:
    """The part in which the operand of a view lies when the view lies in ``part``; None where no strides say it."""
    if node.op == "permute":
        places = dict(zip(node.attr("axes"), part.strides, strict=True))
        return Part(tuple(places[axis] for axis in range(len(places))), part.offset)
    if node.op != "reshape":
        return None
    sizes = node.inputs[0].shape
    if _longer(sizes) == _longer(node.shape):
        left = iter([stride for size, stride in zip(node.shape, part.strides, strict=True) if size.constant != 1])
        return Part(tuple(ZERO + 1 if size.constant == 1 else next(left) for size in sizes), part.offset)
    if _same_places(node, part.strides, dense_strides(node.shape, None)):
        return Part(dense_strides(sizes, None), part.offset)
    return None


def _longer(sizes: tuple[Expr, ...]) -> list[Expr]:
    return [size for size in sizes if size.constant != 1]
