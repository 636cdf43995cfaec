"""Turns an operand that lies across the rows of a kernel, some rows at a time, before these are gone along."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from framefuse.fuse.nest.cpu.blocked_axis import blocked
from framefuse.fuse.nest.cpu.square_tiles import crossed, transpose_operands
from framefuse.fuse.nest.forms import Runs
from framefuse.fuse.nest.nest import Nest
from framefuse.ir import costs
from framefuse.ir.loops import Loop, LoopKind, Statement
from framefuse.ir.numbers import Expr, Symbol


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
    parameters, size = nest.emitter.parameters, costs.CPU_TURNED
    with blocked(nest, [axis for axis in rows if axis is not across], across, size) as block:
        step, column = nest.new_axis(), nest.new_axis()
        parameters.name(across, block.start.expr + step.expr)
        parameters.name(lane, column.expr)
        width = nest.loops.extents[lane]
        steps = (step, block.height), (column, parameters.index(width))
        transpose_operands(nest, across, lane, steps, (size, width), lane)
        with nest.scope((across,)) as line:
            row()
        block.body.append(Loop(step, block.height, tuple(line.body), LoopKind.SERIAL))
    return block.loops, block.extent
