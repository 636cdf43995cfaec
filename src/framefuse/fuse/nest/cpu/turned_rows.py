"""Turns an operand that lies across the rows of a kernel, some rows at a time, before these are gone along."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from framefuse.fuse.nest.cpu.square_tiles import crossed, transpose_operands
from framefuse.fuse.nest.forms import Runs
from framefuse.fuse.nest.nest import Nest
from framefuse.ir import costs
from framefuse.ir.dtypes import INT64
from framefuse.ir.loops import Index, Let, Loop, LoopKind, Statement
from framefuse.ir.numbers import Expr, Symbol, ceildiv, expr, minimum, product


def turned_axis(nest: Nest, rows: Sequence[Symbol], runs: Runs) -> Symbol | None:
    """The axis of ``rows`` along which an operand lies that vectors along a row would gather, if there are enough
    points for blocks and not too many for the cache; None where rows are more than one loop.
    """
    loops = {tuple(run) for run in runs.values() if run}
    lane = next(iter(loops))[-1] if len(loops) == 1 else None
    hints = nest.hinted()
    if lane is None or len(next(iter(loops))) > 1 or not costs.CPU_SHORT_CAT <= hints[lane] <= costs.CPU_TURNED_LONG:
        return None
    return next((axis for axis in rows if hints[axis] >= costs.CPU_CROSSED and crossed(nest, axis, lane)), None)


def turned_rows(
    nest: Nest, rows: Sequence[Symbol], across: Symbol, lane: Symbol, row: Callable[[], None]
) -> tuple[list[Statement], Expr]:
    """The loops over ``rows``, of which the outermost is parallel, around what ``row`` writes for each; returns the
    statements and its extent.
    """
    extents, parameters, size = nest.loops.extents, nest.emitter.parameters, costs.CPU_TURNED
    outer = [axis for axis in rows if axis is not across]
    counts = [*(extents[axis] for axis in outer), ceildiv(extents[across], size)]
    with nest.scope() as top:
        nest.emitter.floor = 1
        symbol = nest.new_axis()
        with nest.loop(tuple(outer), symbol, product(counts), LoopKind.PARALLEL) as scope:
            high = parameters.index(counts[-1])
            nest.decode(scope, symbol.expr // high, outer, counts[:-1])
            start, step, column = nest.new_axis(), nest.new_axis(), nest.new_axis()
            scope.body.append(Let(start.name, Index((symbol.expr % high if outer else symbol.expr) * size, INT64)))
            parameters.name(across, start.expr + step.expr)
            parameters.name(lane, column.expr)
            height = minimum(expr(size), parameters.index(extents[across]) - start.expr)
            width = extents[lane]
            steps = (step, height), (column, parameters.index(width))
            transpose_operands(nest, across, lane, steps, (size, width), lane)
            with nest.scope((across,)) as line:
                row()
            scope.body.append(Loop(step, height, tuple(line.body), LoopKind.SERIAL))
    return top.body, product(counts)
