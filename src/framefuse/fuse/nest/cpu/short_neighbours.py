"""Writes the few points of a short inner loop as neighbours in memory, each for a vector of the rows around it."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from framefuse.fuse.addressing.ranges import ONE, ZERO
from framefuse.fuse.nest.cpu.loops import outer_loops
from framefuse.fuse.nest.cpu.pieces import pieces
from framefuse.fuse.nest.cpu.short_cats import neighbours, points
from framefuse.fuse.nest.nest import Nest
from framefuse.fuse.nest.piece import Piece
from framefuse.ir import costs
from framefuse.ir.loops import Loop, LoopKind, Statement
from framefuse.ir.numbers import Expr, Symbol, ceildiv, expr, maximum, minimum


def are_short_neighbours(nest: Nest, axes: Sequence[Symbol]) -> bool:
    """Whether the innermost of ``axes`` had a few points when it was recorded, written as neighbours, and the loop
    around it is long enough for vectors: rows one by one would leave most lanes empty, and vectors across them write
    each element by itself.
    """
    if len(axes) < 2 or nest.group.scans:
        return False
    extent, count = nest.loops.extents[axes[-1]], nest.hinted()[axes[-1]]
    if extent.constant is None and not any(extent is symbol.expr for symbol in extent.symbols):
        return False
    few = 1 < count <= costs.CPU_NEIGHBOURS and count * len(nest.shape.order) <= costs.CPU_NEIGHBOUR_VALUES
    return few and nest.hinted()[axes[-2]] >= costs.CPU_VECTOR // 4 and neighbours(nest, axes[-2], axes[-1])


def by_neighbours(nest: Nest, axes: Sequence[Symbol], inside: Callable[[], None]) -> tuple[list[Statement], Expr]:
    """The loops over ``axes``, of which the outermost is parallel; returns the statements and its extent. The points
    are written one after the other for the recorded length of the innermost loop, in each piece of what is joined along
    the rows. Other lengths have a loop of their own, which stands first, since what it computes before it holds for
    all; one of the two has no turn.
    """
    outer, rows, inner = axes[:-2], axes[-2], axes[-1]
    extents, parameters = nest.loops.extents, nest.emitter.parameters
    length, count = extents[inner], nest.hinted()[inner]
    taken = [{inner: place} for place in range(count)]
    found = pieces(nest, rows)
    if any(inner in piece.inside.symbols for piece in found):  # that loop is not around them
        found = [Piece(ZERO, extents[rows])]

    def in_pieces(low: Expr, high: Expr, turns: Expr) -> None:
        for piece in found:
            first = low if piece.first is ZERO else maximum(low, parameters.index(piece.first))
            last = high if piece.last is extents[rows] else minimum(high, parameters.index(piece.last))
            length = last - first if len(found) == 1 else maximum(ZERO, last - first)
            with nest.settled(piece):
                points(nest, rows, taken, (first, first + length * turns * parameters.index(piece.inside)), inside)

    def walk(low: Expr, high: Expr) -> None:
        if length.constant is not None:
            in_pieces(low, high, ONE)
            return
        size = parameters.index(length)
        is_recorded = maximum(ZERO, minimum(ONE, minimum(size - (count - 1), expr(count + 1) - size)))
        _one_by_one(nest, rows, inner, (low, low + (high - low) * (ONE - is_recorded)), inside)
        with parameters.held({symbol: expr(count) for symbol in length.symbols}):
            in_pieces(low, high, is_recorded)

    with nest.scope() as top:
        nest.emitter.floor = 1
        if outer:
            return top.body, outer_loops(nest, outer, rows, lambda: walk(ZERO, parameters.index(extents[rows])))
        size, tile = costs.CPU_PIECES_TILE, nest.new_axis()
        tiles = ceildiv(extents[rows], size)
        with nest.loop((), tile, tiles, LoopKind.PARALLEL):
            low = tile.expr * size
            walk(low, minimum(low + size, parameters.index(extents[rows])))
        return top.body, tiles


def _one_by_one(
    nest: Nest, rows: Symbol, inner: Symbol, ends: tuple[Expr, Expr], inside: Callable[[], None]
) -> None:
    """A loop over rows from the first to the last of ``ends``, and in it one over the points of each."""
    low, high = ends
    outer, row = nest.emitter.scopes[-1].body, nest.new_axis()
    nest.emitter.parameters.name(rows, low + row.expr)
    with nest.scope((rows,)) as scope, nest.axis(inner, LoopKind.VECTOR):
        inside()
    outer.append(Loop(row, high - low, tuple(scope.body), LoopKind.SERIAL))
