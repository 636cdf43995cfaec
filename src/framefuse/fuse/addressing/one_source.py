"""Turns a cat of parts of one value into a view of it, whose index says which part it is, where that has a short form.

A border that repeats, mirrors or wraps what lies at the edge, a rolled tensor and the windows over one are such cats. A
kernel that computes the index loads once; one that chooses among the pieces loads each of them under a mask of its own.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import pairwise

from framefuse.fuse.addressing.indexing import MOVES, Index, Split, operand_index
from framefuse.fuse.addressing.ranges import ZERO
from framefuse.ir import costs
from framefuse.ir.graph import Node
from framefuse.ir.numbers import Expr, Symbol, maximum, minimum


def one_source(
    node: Node, index: Index, extents: Mapping[Symbol, Expr], hints: Mapping[Symbol, int]
) -> tuple[Node, Index] | None:
    """The value of which all pieces of the cat ``node`` are parts, and the index into it of the element at ``index``;
    None where there is none. Raises Split as views do.
    """
    return _merged(node, index, extents, hints, 0)


def has_one_source(node: Node) -> bool:
    """Whether the pieces of a cat, and of cats that these are, are views of one value that is in memory, of so few
    pieces that its index has a short form where it has one.
    """
    bases = set()
    while node.op == "cat":
        if len(node.inputs) > costs.GPU_RULELESS:
            return False
        bases = {_base(operand) for operand in node.inputs}
        if len(bases) > 1:
            return False
        (node,) = bases
    return node.op in ("input", "result")


def is_of_one_value(node: Node) -> bool:
    """Whether all pieces of a cat, and of the cats that these are, are views of one value."""
    found: set[Node] = set()
    waiting = [node]
    while waiting and len(found) < 2:
        base = _base(waiting.pop())
        if base.op == "cat":
            waiting += base.inputs
        else:
            found.add(base)
    return len(found) < 2


def _base(node: Node) -> Node:
    while node.op in MOVES:
        node = node.inputs[0]
    return node


def _merged(
    node: Node, index: Index, extents: Mapping[Symbol, Expr], hints: Mapping[Symbol, int], depth: int
) -> tuple[Node, Index] | None:
    """The same of a cat in ``depth`` others, each of which has a name for the place along its axis."""
    axis, start, place = node.attr("axis"), ZERO, Symbol(f"@place{depth}")
    inside = {**extents, place: node.shape[axis]}
    starts, found = [], []
    try:
        for operand in node.inputs:
            moved = ZERO if operand.shape[axis].constant == 1 else place.expr - start
            found.append(_behind(operand, (*index[:axis], moved, *index[axis + 1 :]), inside, hints))
            starts.append(start)
            start = start + operand.shape[axis]
        if any(source is not found[0][0] for source, _ in found):
            deeper = [_merged(*each, inside, hints, depth + 1) if each[0].op == "cat" else None for each in found]
            found = [each for each in deeper if each is not None and deeper[0] and each[0] is deeper[0][0]]
            if len(found) < len(deeper):
                return None
    except Split as split:
        if split.axis is place:
            return None
        raise
    single = all(operand.shape[axis].constant == 1 for operand in node.inputs)
    joined = [_joined(pieces, starts, place, single) for pieces in zip(*(each for _, each in found), strict=True)]
    merged = [each.substitute({place: index[axis]}) for each in joined if each is not None]
    return (found[0][0], tuple(merged)) if len(merged) == len(joined) else None


def _behind(
    node: Node, index: Index, extents: Mapping[Symbol, Expr], hints: Mapping[Symbol, int]
) -> tuple[Node, Index]:
    while node.op in MOVES:
        index = operand_index(node, index, extents, hints)
        node = node.inputs[0]
    return node, index


def _joined(pieces: Sequence[Expr], starts: Sequence[Expr], place: Symbol, single: bool) -> Expr | None:
    """The position that is ``pieces[k]`` from ``starts[k]`` on, as one expression; ``single`` pieces have one each."""
    if all(piece is pieces[0] for piece in pieces):
        return pieces[0]
    steps = [after - before for before, after in pairwise(pieces)]
    if single and all(step is steps[0] for step in steps):
        return pieces[0] + steps[0] * place.expr
    if len(pieces) > costs.GPU_RULELESS:
        return None
    return _bent(pieces, starts, place) or _stepped(pieces, starts, place)


def _bent(pieces: Sequence[Expr], starts: Sequence[Expr], place: Symbol) -> Expr | None:
    """Lines that meet where they change: the lower or the higher of two. Of three the outer ones have one slope, so
    that neither is met beyond the middle one.
    """
    slopes = [slope.constant if slope is not None else None for slope in (each.coefficient(place) for each in pieces)]
    if None in slopes or (len(pieces) == 3 and slopes[0] != slopes[2]):
        return None
    total = pieces[0]
    for (before, after), start in zip(pairwise(pieces), starts[1:], strict=True):
        apart = before - after
        left, right = (apart.substitute({place: at}).constant for at in (start - 1, start))
        if left is None or right is None:
            return None
        if left >= 0 >= right:
            total = maximum(total, after)
        elif left <= 0 <= right:
            total = minimum(total, after)
        else:
            return None
    return total


def _stepped(pieces: Sequence[Expr], starts: Sequence[Expr], place: Symbol) -> Expr:
    """What is added at each start, times whether it was passed."""
    total = pieces[0]
    for (before, after), start in zip(pairwise(pieces), starts[1:], strict=True):
        total = total + (after - before) * minimum(1, maximum(0, place.expr - start + 1))
    return total
