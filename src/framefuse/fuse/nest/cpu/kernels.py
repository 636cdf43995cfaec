"""Turns a group of cells into kernels for a CPU: pointwise loops, rows with sweeps, or the forms for long sums."""

from __future__ import annotations

from collections.abc import Callable

from framefuse.fuse.addressing.strided import Strides
from framefuse.fuse.grouping.cells import Group
from framefuse.fuse.nest.cpu.below import along_memory
from framefuse.fuse.nest.cpu.column_tiles import column_tiles, may_tile
from framefuse.fuse.nest.cpu.flat import flat_loop, may_flatten
from framefuse.fuse.nest.cpu.loops import around
from framefuse.fuse.nest.cpu.pieces import row_pieces
from framefuse.fuse.nest.cpu.row_blocks import computed_by_rows, row_blocks
from framefuse.fuse.nest.cpu.scans import scan_kernel
from framefuse.fuse.nest.cpu.short_cats import by_points, is_short_cat
from framefuse.fuse.nest.cpu.short_neighbours import are_short_neighbours, by_neighbours
from framefuse.fuse.nest.cpu.short_rows import side_by_side
from framefuse.fuse.nest.cpu.single_steps import with_single_steps
from framefuse.fuse.nest.cpu.square_tiles import square_tiles, transposed_axis, written_lane
from framefuse.fuse.nest.cpu.turned_rows import turned_axis, turned_rows
from framefuse.fuse.nest.cpu.two_stages import may_stage, two_stages
from framefuse.fuse.nest.forms import Runs, crossing_axis, is_along, primary, rows_of, runs_of, title_of, work_of
from framefuse.fuse.nest.loop_order import memory_order, vector_axis
from framefuse.fuse.nest.nest import Built, Nest
from framefuse.fuse.nest.sweeps import Sweep, choose_saved, per_point_times, shape_of, sweeps_of
from framefuse.ir import costs
from framefuse.ir.graph import Node
from framefuse.ir.numbers import Expr, Symbol, expr
from framefuse.ir.target import CPU, Target


def build_kernels(
    group: Group, strides_of: Callable[[Node], Strides], threads: bool, target: Target = CPU
) -> list[Built]:
    """The kernels of a group in the order in which they run: one, or two for a large sum over everything."""
    return [with_single_steps(built, group.hints) for built in _built(group, strides_of, threads, target)]


def _built(group: Group, strides_of: Callable[[Node], Strides], threads: bool, target: Target) -> list[Built]:
    shape = shape_of(group)
    nest = Nest(group, shape, strides_of)
    nest.cut = row_pieces
    title = title_of(group)
    if group.scans:
        sweeps = sweeps_of(shape)
        return [scan_kernel(nest, sweeps[0], title, work_of(nest, sweeps))]
    if group.rows is None:
        return [_pointwise(nest, title)]
    if not group.rows and along_memory(nest, memory_order(list(group.axes), primary(nest), group.hints)):
        return _built(group, strides_of, threads, target)
    sweeps = sweeps_of(shape)
    rows, vector = rows_of(nest, sweeps, written=True)
    if vector is None and side_by_side(nest, sweeps, rows):
        vector = rows[-1]
    runs = runs_of(nest, sweeps, vector)
    work = work_of(nest, sweeps)
    if vector is None and threads and may_stage(nest, sweeps, rows, work):
        return two_stages(nest, sweeps, runs, title, work)
    choose_saved(shape, sweeps, frozenset(group.rows))
    if vector is not None and may_tile(nest, sweeps, runs):
        return [column_tiles(nest, sweeps, rows, vector, runs, title, work)]
    return [_row_kernel(nest, sweeps, rows, vector, runs, title, work, target)]


def _pointwise(nest: Nest, title: str) -> Built:
    group = nest.group
    sweeps = sweeps_of(nest.shape)
    work = work_of(nest, sweeps)
    order = memory_order(group.domain, primary(nest), group.hints)
    if not order:
        with nest.scope() as scope:
            nest.point(sweeps[0], ())
        return nest.built(title, scope.body, expr(1), work, False)
    if along_memory(nest, order):
        return _pointwise(Nest(group, shape_of(group), nest.strides_of), title)
    order = nest.join(order)  # a row of single elements is no row: what is along memory is one loop
    if are_short_neighbours(nest, order) and not is_short_cat(nest, order):
        return nest.built(title, *by_neighbours(nest, order, lambda: nest.point(sweeps[0], ())), work, True)
    lane = vector_axis(order, nest.accesses, nest.hinted())
    lane = written_lane(nest, order, lane) or lane
    axes = nest.join([*(axis for axis in order if axis is not lane), lane])
    if len(axes) > 1 and nest.hinted()[axes[-1]] < costs.CPU_LEAST:
        lane = vector_axis(axes[:-1], nest.accesses, nest.hinted())
        if any(access.weight and is_along(access.address, lane) for access in nest.accesses):
            axes = [*(axis for axis in axes if axis is not lane), lane]
    across = crossing_axis(nest, axes, costs.CROSSED) or transposed_axis(nest, axes)
    if across is not None and not is_short_cat(nest, axes):
        return square_tiles(nest, axes, across, sweeps[0], title, work)
    if may_flatten(nest, axes, per_point_times(nest.shape, sweeps)[0]):
        body, extent, radices = flat_loop(nest, axes, lambda: nest.point(sweeps[0], ()))
        return nest.built(title, body, extent, work, True, radices)
    if is_short_cat(nest, axes):
        return nest.built(title, *by_points(nest, axes, lambda: nest.point(sweeps[0], ())), work, True)
    return nest.built(title, *around(nest, axes[:-1], axes[-1], lambda: nest.point(sweeps[0], ())), work, True)


def _row_kernel(
    nest: Nest,
    sweeps: list[Sweep],
    rows: list[Symbol],
    vector: Symbol | None,
    runs: Runs,
    title: str,
    work: Expr,
    target: Target,
) -> Built:
    chunk = costs.BLOCK if vector is not None else (0 if rows else costs.CHUNK)

    def sweep(current: Sweep) -> None:
        nest.run_sweep(current, runs.get(current.inner, ()), chunk, vector is None)

    def row() -> None:
        nest.keep_rows(sweeps, may_scratch=vector is None and target.scratch)
        for current in sweeps:
            sweep(current)

    if not rows:
        with nest.scope() as top:
            row()
        return nest.built(title, top.body, expr(1), work, False)
    across = turned_axis(nest, rows, runs) if vector is None else None
    if across is not None:
        lane = next(run[-1] for run in runs.values() if run)
        return nest.built(title, *turned_rows(nest, rows, across, lane, row), work, True)
    found = computed_by_rows(nest, sweeps, rows) if vector is None and target.scratch else ()
    if found:
        nest.keep_rows(sweeps, may_scratch=False)
        return nest.built(title, *row_blocks(nest, rows, sweeps, found, sweep), work, True)
    outer = rows if vector is None else rows[:-1]
    body, extent = around(nest, outer, vector, row)
    return nest.built(title, body, extent, work, True)
