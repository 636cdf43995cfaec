"""Turns pointwise work on a transposed operand into square tiles, which use up each of its cache lines."""

from __future__ import annotations

from collections.abc import Sequence

from framefuse.fuse import costs
from framefuse.fuse.nest.cpu.pieces import part, pieces
from framefuse.fuse.nest.nest import Built, Nest
from framefuse.fuse.nest.sweeps import Sweep
from framefuse.ir.dtypes import INT64
from framefuse.ir.loops import Index, Let, Loop, LoopKind
from framefuse.ir.numbers import Expr, Symbol, ceildiv, expr, minimum, product


def square_tiles(nest: Nest, axes: Sequence[Symbol], across: Symbol, only: Sweep, title: str, work: Expr) -> Built:
    """Pointwise work in tiles, so that each cache line of a transposed operand is used up while it is there."""
    lane = axes[-1]
    outer = [axis for axis in axes[:-1] if axis is not across]
    extents = nest.loops.extents
    counts = [
        *(extents[axis] for axis in outer),
        ceildiv(extents[across], costs.CPU_SQUARE[0]),
        ceildiv(extents[lane], costs.CPU_SQUARE[1]),
    ]
    parameters = nest.emitter.parameters
    with nest.scope() as top:
        nest.emitter.floor = 1
        symbol = nest.new_axis()
        with nest.loop(tuple(outer), symbol, product(counts), LoopKind.PARALLEL) as scope:
            wide, high = parameters.index(counts[-1]), parameters.index(counts[-2])
            nest.decode(scope, symbol.expr // (wide * high), outer, counts[:-2])
            column, row = symbol.expr % wide, symbol.expr // wide % high if outer else symbol.expr // wide
            steps = []
            for axis, tile, size in ((across, row, costs.CPU_SQUARE[0]), (lane, column, costs.CPU_SQUARE[1])):
                start, step = nest.new_axis(), nest.new_axis()
                scope.body.append(Let(start.name, Index(tile * size, INT64)))
                parameters.name(axis, start.expr + step.expr)
                steps.append((step, minimum(expr(size), parameters.index(extents[axis]) - start.expr)))
            with nest.scope((across,)) as line:
                _line(nest, lane, only, *steps[1])
            scope.body.append(Loop(steps[0][0], steps[0][1], tuple(line.body), LoopKind.SERIAL))
    return nest.built(title, top.body, product(counts), work, True)


def _line(nest: Nest, lane: Symbol, only: Sweep, step: Symbol, length: Expr) -> None:
    """The points of a tile along the result's memory: a loop for the part of each piece that is joined there."""
    found, start = pieces(nest, lane), nest.emitter.parameters.locals[lane] - step.expr
    if len(found) > 1:
        for piece in found:
            part(nest, lane, piece, start, start + length, lambda: nest.point(only, ()))
        return
    line = nest.emitter.scopes[-1]
    with nest.scope((lane,)) as point:
        nest.point(only, ())
    line.body.append(Loop(step, length, tuple(point.body), LoopKind.VECTOR))
