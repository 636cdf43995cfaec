"""Turns slices of joined values into slices of what they were joined from: the rows that a loop writes, one by one."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass, replace

from framefuse.fuse.addressing.ranges import ZERO, nonnegative
from framefuse.ir import costs
from framefuse.ir.graph import Graph, Node
from framefuse.ir.numbers import Expr, expr
from framefuse.ir.rename import rebuilt


def with_pieces(graph: Graph) -> Graph:
    """The graph in which a slice of a ``cat`` reads the pieces in which it lies, a ``cat`` joins no other one, and many
    rows are joined without a view of each.
    """
    if not any(node.op == "cat" for node in graph.nodes):
        return graph
    leaving = {output.node for output in graph.outputs}  # torch's own call gives them as they are to be
    made = rebuilt(graph, lambda node, inputs: _made(node, inputs, node in leaving))
    return graph if made.nodes == graph.nodes else made


def _made(node: Node, inputs: tuple[Node, ...], leaves: bool) -> Sequence[Node]:
    same = node if inputs == node.inputs else node.over(inputs)
    if node.op == "slice" and inputs[0].op == "cat":
        new: list[Node] = []
        cut = _cut(inputs[0], Box(node.attr("starts"), node.attr("steps"), node.shape), node, new)
        return (same,) if cut.op == "slice" and cut.inputs == inputs else (*new, cut)
    if node.op == "reshape":
        source = inputs[0]
        while source.op == "reshape" and source.shape != node.shape:
            source = source.inputs[0]
        return (source if source.shape == node.shape else same,)
    if node.op == "cat":
        axis = node.attr("axis")
        rows = None if leaves else _rows(same, axis)
        if rows is not None:
            return rows
        return (_joined(same, inputs) if any(_joins(piece, axis) for piece in inputs) else same,)
    return (same,)


def _rows(stacked: Node, axis: int) -> tuple[Node, Node] | None:
    """A stack that a call of the library joins, as what is stacked joined along the next dimension: one view in place
    of one for each piece. None for anything else.
    """
    pieces = stacked.inputs
    if len(pieces) <= costs.CAT_PIECES or axis + 1 >= len(stacked.shape) or stacked.device != "cpu":
        return None
    whole = (*stacked.shape[:axis], *stacked.shape[axis + 1 :])
    if any(piece.op != "reshape" or piece.inputs[0].shape != whole or piece.shape[axis] != expr(1) for piece in pieces):
        return None
    long = (*whole[:axis], whole[axis] * len(pieces), *whole[axis + 1 :])
    joined = replace(stacked.over(tuple(piece.inputs[0] for piece in pieces)), shape=long)
    return joined, Node("reshape", (joined,), (), stacked.dtype, stacked.shape, None, stacked.line, stacked.device)


@dataclass(frozen=True, slots=True)
class Box:
    """What a slice takes of each axis."""

    starts: tuple[Expr, ...]
    steps: tuple[int, ...]
    sizes: tuple[Expr, ...]

    def along(self, axis: int, start: Expr, size: Expr) -> Box:
        """The box with another range of one axis."""
        starts, sizes = list(self.starts), list(self.sizes)
        starts[axis], sizes[axis] = start, size
        return Box(tuple(starts), self.steps, tuple(sizes))


def _cut(value: Node, box: Box, line: Node, new: list[Node]) -> Node:
    """What a box takes of a value; ``new`` gets the nodes that were not there, with the line of another."""
    if value.shape == box.sizes and all(step == 1 for step in box.steps):
        return value
    pieces = _pieces(value, box) if value.op == "cat" else None
    if pieces is None:
        attrs = (("starts", box.starts), ("steps", box.steps))
        new.append(Node("slice", (value,), attrs, value.dtype, box.sizes, None, line.line, line.device))
        return new[-1]
    cuts = tuple([_cut(piece, part, line, new) for piece, part in pieces])
    if len(cuts) > 1:
        new.append(_joined(replace(value, shape=box.sizes, line=line.line), cuts))
    return new[-1] if len(cuts) > 1 else cuts[0]


def _pieces(joined: Node, box: Box) -> list[tuple[Node, Box]] | None:
    """The pieces that a box meets, and what it takes of each; None where the sizes do not say it."""
    axis = joined.attr("axis")
    begins = list(itertools.accumulate((piece.shape[axis] for piece in joined.inputs[:-1]), initial=ZERO))
    first, last = box.starts[axis], box.starts[axis] + box.sizes[axis]
    if box.steps[axis] != 1:
        return None
    found = []
    reached = max((place for place, begin in enumerate(begins) if nonnegative(first - begin)), default=0)
    for place in range(reached, len(begins)):
        piece, begin = joined.inputs[place], begins[place]
        end = begin + piece.shape[axis]
        if not (nonnegative(first - end) or nonnegative(begin - last)):
            start = _inner(first, begin, first - begin)
            stop = last if place == len(begins) - 1 else _inner(last, end, end - last)  # a slice ends inside
            if start is None or stop is None:
                return None
            crossed = (start is begin) != (stop is end)
            if crossed and not (start is first and stop is last) and not nonnegative(stop - start):
                return None
            found.append((piece, box.along(axis, start - begin, stop - start)))
        if nonnegative(end - last):
            break
    return found or None


def _inner(bound: Expr, end: Expr, distance: Expr) -> Expr | None:
    """The bound of a box, or the end of a piece where that is further inside; None where nothing says it."""
    if nonnegative(distance):
        return bound
    return end if nonnegative(-distance) else None


def _joins(piece: Node, axis: int) -> bool:
    return piece.op == "cat" and piece.attr("axis") == axis


def _joined(node: Node, pieces: Sequence[Node]) -> Node:
    """The ``cat`` of pieces, and of those that pieces were joined from along the same axis."""
    axis = node.attr("axis")
    flat = [part for piece in pieces for part in (piece.inputs if _joins(piece, axis) else (piece,))]
    return node.over(tuple(flat))
