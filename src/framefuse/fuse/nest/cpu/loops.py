"""Opens the loops around a kernel's statements: the outermost parallel, the innermost a vector loop."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from framefuse.fuse.grouping.work import loop_time
from framefuse.fuse.nest.cpu.pieces import part, pieces
from framefuse.fuse.nest.nest import Nest
from framefuse.fuse.nest.piece import Piece
from framefuse.ir import costs
from framefuse.ir.loops import LoopKind, Statement
from framefuse.ir.numbers import Expr, Symbol, ceildiv, minimum, product


def around(
    nest: Nest, outer: Sequence[Symbol], vector: Symbol | None, inside: Callable[[], None]
) -> tuple[list[Statement], Expr]:
    """The loops over ``outer`` and then the vector axis, of which the outermost is parallel, around a body; returns
    the statements and the extent of the parallel loop.
    """
    with nest.scope() as top:
        nest.emitter.floor = 1
        extents = nest.loops.extents
        if not outer:
            assert vector is not None
            found = pieces(nest, vector)
            if len(found) > 1:
                return top.body, _in_tiles(nest, vector, found, inside)
            with nest.axis(vector, LoopKind.PARALLEL_VECTOR):
                inside()
            return top.body, extents[vector]
        return top.body, outer_loops(nest, outer, vector, lambda: _lanes(nest, vector, inside))


def outer_loops(nest: Nest, outer: Sequence[Symbol], vector: Symbol | None, inside: Callable[[], None]) -> Expr:
    """The loops over ``outer``, of which the outermost is parallel, around a body with the loop over ``vector``; the
    extent of the parallel loop.
    """
    count = _shared(nest, outer, vector)
    shared = outer[:count]
    with nest.axis(outer[0], LoopKind.PARALLEL) if count == 1 else nest.many(shared, LoopKind.PARALLEL):
        _serial(nest, outer[count:], inside)
    return product(nest.loops.extents[axis] for axis in shared)


def _serial(nest: Nest, axes: Sequence[Symbol], inside: Callable[[], None]) -> None:
    if not axes:
        inside()
        return
    with nest.axis(axes[0], LoopKind.SERIAL):
        _serial(nest, axes[1:], inside)


def _lanes(nest: Nest, vector: Symbol | None, inside: Callable[[], None]) -> None:
    if vector is None:
        inside()
        return
    apart, found = _are_few_apart(nest, vector), pieces(nest, vector)
    single = len(found) > 1 and _work(nest) <= costs.CPU_SINGLE
    for piece in found:
        count, symbol = (piece.last - piece.first).constant, nest.new_axis()
        few = single and count is not None and count < costs.CPU_LEAST
        kind = LoopKind.SERIAL if apart or few else LoopKind.VECTOR
        with nest.settled(piece), nest.loop((vector,), symbol, piece.length, kind):
            nest.emitter.parameters.name(vector, symbol.expr + nest.emitter.parameters.index(piece.first))
            inside()


def _are_few_apart(nest: Nest, vector: Symbol) -> bool:
    """Whether a loop fills no vector, does little at each point, and what it writes lies apart: lanes are stored one by
    one, and many of them would be off.
    """
    if nest.group.rows is not None or nest.hinted()[vector] >= costs.CPU_VECTOR // 4:
        return False
    slopes = [access.address.coefficient(vector) for access in nest.accesses if access.weight == 2]
    apart = any(slope is None or slope.constant not in (0, 1) for slope in slopes)
    return apart and _work(nest) <= costs.CPU_LIGHT


def _work(nest: Nest) -> float:
    """Nanoseconds of what a point computes."""
    return sum(loop_time(cell.node) for cell in nest.shape.order if cell.kind == "op")


def _in_tiles(nest: Nest, vector: Symbol, found: Sequence[Piece], inside: Callable[[], None]) -> Expr:
    """One parallel loop over tiles of the vector axis, each with a loop for its part of each piece; its extent."""
    extent, size = nest.loops.extents[vector], costs.CPU_PIECES_TILE
    count, symbol = ceildiv(extent, size), nest.new_axis()
    with nest.loop((), symbol, count, LoopKind.PARALLEL):
        low = symbol.expr * size
        high = minimum(low + size, nest.emitter.parameters.index(extent))
        for piece in found:
            part(nest, vector, piece, low, high, inside)
    return count


def _shared(nest: Nest, outer: Sequence[Symbol], vector: Symbol | None) -> int:
    """How many of the outer axes become the one loop whose turns threads share: all of them, or as few as keep threads
    busy where finding the position of each row would show.
    """
    hints = nest.hinted()
    if vector is None or hints[vector] >= costs.CPU_NARROW:
        return len(outer)
    turns = 1
    for count, axis in enumerate(outer, 1):
        turns *= hints[axis]
        if turns >= costs.CPU_MANY:
            return count
    return len(outer)
