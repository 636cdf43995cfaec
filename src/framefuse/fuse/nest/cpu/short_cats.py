"""Writes a cat along a short inner loop point by point, each as a vector loop over the rows around it."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from framefuse.fuse import costs
from framefuse.fuse.addressing.ranges import ONE, ZERO
from framefuse.fuse.nest.cpu.pieces import pieces
from framefuse.fuse.nest.nest import Nest
from framefuse.fuse.nest.piece import Piece
from framefuse.ir.dtypes import INT64
from framefuse.ir.loops import Index, Let, Loop, LoopKind, Statement
from framefuse.ir.numbers import Expr, Symbol, ceildiv, expr, minimum, product


def is_short_cat(nest: Nest, axes: Sequence[Symbol]) -> bool:
    """Whether the innermost of ``axes`` has a few points, cut into pieces in whose vectors most lanes would be empty,
    and the loop around it is long enough for vectors.
    """
    if len(axes) < 2 or nest.hinted()[axes[-2]] < costs.CPU_LEAST:
        return False
    count = nest.loops.extents[axes[-1]].constant
    if count is None or count > costs.CPU_SHORT_CAT:
        return False
    found = pieces(nest, axes[-1])
    lengths = [piece.length.constant for piece in found]
    return len(found) > 1 and all(
        length is not None and length < costs.CPU_LEAST and piece.inside is ONE
        for length, piece in zip(lengths, found, strict=True)
    )


def by_points(nest: Nest, axes: Sequence[Symbol], inside: Callable[[], None]) -> tuple[list[Statement], Expr]:
    """The loops over ``axes``, of which the outermost is parallel; returns the statements and its extent."""
    *outer, rows, lane = axes
    extents, index = nest.loops.extents, nest.emitter.parameters.index
    points = [
        (piece, place)
        for piece in pieces(nest, lane)
        for place in range(piece.first.constant or 0, piece.last.constant or 0)
    ]
    with nest.scope() as top:
        nest.emitter.floor = 1
        if outer:
            with nest.axis(outer[0], LoopKind.PARALLEL) if len(outer) == 1 else nest.many(outer, LoopKind.PARALLEL):
                for piece, place in points:
                    _point(nest, (rows, lane), piece, place, (ZERO, index(extents[rows])), inside)
            return top.body, product(extents[axis] for axis in outer)
        size, tile = costs.CPU_PIECES_TILE, nest.new_axis()
        count = ceildiv(extents[rows], size)
        with nest.loop((), tile, count, LoopKind.PARALLEL):
            low = tile.expr * size
            for piece, place in points:
                _point(nest, (rows, lane), piece, place, (low, minimum(low + size, index(extents[rows]))), inside)
        return top.body, count


def _point(
    nest: Nest, axes: tuple[Symbol, Symbol], piece: Piece, place: int, ends: tuple[Expr, Expr],
    inside: Callable[[], None],
) -> None:  # fmt: skip
    """The vector loop over rows, from the first to the last of ``ends``, at one place of the inner loop."""
    parameters, outer = nest.emitter.parameters, nest.emitter.scopes[-1].body
    (rows, lane), (low, high) = axes, ends
    start, step = nest.new_axis(), nest.new_axis()
    outer.append(Let(start.name, Index(low, INT64)))
    parameters.name(rows, start.expr + step.expr)
    parameters.name(lane, expr(place))
    with nest.settled(piece), nest.scope(axes) as scope:
        inside()
    outer.append(Loop(step, high - low, tuple(scope.body), LoopKind.VECTOR))
