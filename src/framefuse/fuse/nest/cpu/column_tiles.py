"""Turns sums across memory into tiles of neighbouring columns, whose running results stay in the cache."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch

from framefuse.fuse.nest.forms import Runs, is_plain
from framefuse.fuse.nest.loop_order import joinable
from framefuse.fuse.nest.nest import Built, Nest
from framefuse.fuse.nest.sweeps import Sweep
from framefuse.fuse.nest.values import cast
from framefuse.ir import costs
from framefuse.ir.dtypes import FLOAT64, DType
from framefuse.ir.loops import (
    Accumulate,
    Accumulator,
    Apply,
    Const,
    Let,
    Load,
    Local,
    Loop,
    LoopKind,
    Scratch,
    Statement,
    Store,
    Value,
)
from framefuse.ir.numbers import Expr, Symbol, ceildiv, expr, maximum, minimum, product

COMBINE = {"sum": "add", "prod": "mul", "max": "maximum", "min": "minimum", "any": "bit_or", "all": "bit_and"}


def may_tile(nest: Nest, sweeps: Sequence[Sweep], runs: Runs) -> bool:
    """Whether one sweep across memory is long enough to go through row blocks."""
    wide = [p for p in sweeps if p.inner]
    if len(wide) != 1 or wide[0].level or not wide[0].reduces or wide[0].saved or not is_plain(wide[0]):
        return False
    rows = nest.hint(product(nest.group.axes[axis] for axis in wide[0].inner))
    return len(runs[wide[0].inner]) == 1 and rows > costs.CPU_TILED_ABOVE


def column_tiles(
    nest: Nest, sweeps: Sequence[Sweep], rows: list[Symbol], vector: Symbol, runs: Runs, title: str, work: Expr
) -> Built:
    """Rows of memory in blocks into a private row of running results, for tiles of neighbouring columns."""
    wide = next(p for p in sweeps if p.inner)
    width = nest.loops.extents[vector]
    tiles = ceildiv(width, costs.CPU_TILE)
    narrow = _are_joined(nest, rows, vector, runs[wide.inner][0])
    outer = [axis for axis in rows if axis is not vector]
    extents = [nest.loops.extents[axis] for axis in outer]
    count = product([*extents, tiles])
    parameters = nest.emitter.parameters
    with nest.scope() as top:
        nest.emitter.floor = 1
        symbol = nest.new_axis()
        with nest.loop(tuple(outer), symbol, count, LoopKind.PARALLEL) as scope:
            tile_count = parameters.index(tiles)
            nest.decode(scope, symbol.expr // tile_count, outer, extents)
            tile = symbol.expr % tile_count if outer else symbol.expr
            size = minimum(expr(costs.CPU_TILE), parameters.index(width) - tile * costs.CPU_TILE)
            running = [nest.declare(reduce, nest.emitter.fresh("s")) for reduce in wide.reduces]
            # Rows that are short lie below each other in one running row.
            most = expr(min(_together(nest, running, vector), costs.CPU_TILE))
            together = maximum(expr(1), most // maximum(expr(1), width)) if narrow else expr(1)
            totals = {name: _total(nest, name) for name in running if name.op == "sum" and name.dtype.is_float}
            kept = [*running, *totals.values()]
            axis, start = runs[wide.inner][0], tile * costs.CPU_TILE
            columns = ColumnTile(nest, wide, axis, vector, together, start, size, running, totals)
            scope.body.extend(Scratch(name.name, name.dtype, expr(costs.CPU_TILE)) for name in kept)
            first = nest.new_axis()
            begun = tuple(Store(each.name, first.expr, _start(each)) for each in kept)
            scope.body.append(Loop(first, columns.width, begun, LoopKind.VECTOR))
            if narrow:
                columns.rest()
            columns.blocks()
            at = nest.new_axis()
            parameters.name(vector, start + at.expr)
            with nest.scope((vector,)) as lane:
                for reduce, name in zip(wide.reduces, running, strict=True):
                    result = nest.emitter.fresh("v")
                    lane.body.append(Let(result, cast(columns.result(name, at), name.dtype)))
                    lane.known[reduce] = nest.result(reduce, Local(result, name.dtype))
                for current in sweeps:
                    if current is not wide:
                        nest.run_sweep(current, (), 0, False)
            scope.body.append(Loop(at, size, tuple(lane.body), LoopKind.VECTOR))
    return nest.built(title, top.body, count, work, True)


@dataclass(frozen=True)
class ColumnTile:
    """One tile of neighbouring columns, and the private row that its running results lie in.

    ``axis`` goes down the rows and ``vector`` along the columns, of which the tile has ``columns`` from
    ``first_column`` on. ``together`` rows of few columns lie below each other in the running row, ``width`` long.
    """

    nest: Nest
    sweep: Sweep
    axis: Symbol
    vector: Symbol
    together: Expr
    first_column: Expr
    columns: Expr
    running: Sequence[Accumulator]
    totals: Mapping[Accumulator, Accumulator]

    @property
    def width(self) -> Expr:
        """How long the running row is."""
        return self.nest.emitter.parameters.index(self.together) * self.columns

    def rest(self) -> None:
        """The last rows, fewer than lie ``together`` in the running row."""
        emitter, length = self.nest.emitter, self.nest.loops.extents[self.axis]
        parameters, column = emitter.parameters, self.nest.new_axis()
        done = length // self.together * self.together
        parameters.name(self.vector, self.first_column + column.expr)
        parameters.name(self.axis, parameters.index(done))
        partial = [Accumulator(emitter.fresh("a"), name.op, name.dtype) for name in self.running]
        with self.nest.scope((self.vector, self.axis)) as point:
            point.body.extend(partial)
            self.nest.point(self.sweep, partial)
            for name, part in zip(self.running, partial, strict=True):
                total = self.totals.get(name, name)
                point.body.append(_add(total, cast(Local(part.name, part.dtype), total.dtype), column))
        extent = parameters.index(length - done) * self.columns
        emitter.scopes[-1].body.append(Loop(column, extent, tuple(point.body), LoopKind.VECTOR))

    def blocks(self) -> None:
        """``for block of rows: for column of the tile: running = running + (sum of its rows)``, and for float sums
        after some blocks ``for column of the tile: total = total + running; running = 0``.
        """
        nest, emitter = self.nest, self.nest.emitter
        parameters = emitter.parameters
        outer, block, column, step = nest.new_axis(), nest.new_axis(), nest.new_axis(), nest.new_axis()
        length = parameters.index(nest.loops.extents[self.axis] // self.together)
        first = outer.expr * costs.CPU_TILE_BLOCKS + block.expr if self.totals else block.expr
        parameters.name(self.vector, self.first_column + column.expr)
        parameters.name(self.axis, (first * costs.CPU_TILE_ROWS + step.expr) * parameters.index(self.together))
        partial = [Accumulator(emitter.fresh("a"), name.op, name.dtype) for name in self.running]
        with nest.scope((self.vector,)) as lanes:
            with nest.scope((self.axis,)) as point:
                nest.point(self.sweep, partial)
            left = minimum(expr(costs.CPU_TILE_ROWS), length - first * costs.CPU_TILE_ROWS)
            lanes.body.extend(partial)
            lanes.body.append(Loop(step, left, tuple(point.body), LoopKind.SERIAL))
            for name, part in zip(self.running, partial, strict=True):
                lanes.body.append(_add(name, Local(part.name, part.dtype), column))
        rows = Loop(column, self.width, tuple(lanes.body), LoopKind.VECTOR)
        count, body = ceildiv(length, costs.CPU_TILE_ROWS), emitter.scopes[-1].body
        if not self.totals:
            body.append(Loop(block, count, (rows,), LoopKind.SERIAL))
            return
        at = nest.new_axis()
        moved: list[Statement] = []
        for name, total in self.totals.items():
            moved.append(_add(total, cast(Load(name.name, at.expr, name.dtype), total.dtype), at))
            moved.append(Store(name.name, at.expr, _start(name)))
        most = costs.CPU_TILE_BLOCKS
        blocks = Loop(block, minimum(expr(most), count - outer.expr * most), (rows,), LoopKind.SERIAL)
        after = Loop(at, self.width, tuple(moved), LoopKind.VECTOR)
        body.append(Loop(outer, ceildiv(count, most), (blocks, after), LoopKind.SERIAL))

    def result(self, name: Accumulator, column: Symbol) -> Value:
        """What a column comes to: the parts of it that lie below each other in the running row are joined."""
        total = self.totals.get(name, name)
        if self.together == expr(1):
            return Load(total.name, column.expr, total.dtype)
        emitter, turn = self.nest.emitter, self.nest.new_axis()
        part = Accumulator(emitter.fresh("a"), total.op, total.dtype)
        load = Load(total.name, turn.expr * self.columns + column.expr, total.dtype)
        below = emitter.parameters.index(self.together)
        emitter.scopes[-1].body += [part, Loop(turn, below, (Accumulate(part.name, load),), LoopKind.SERIAL)]
        return Local(part.name, part.dtype)


def _total(nest: Nest, name: Accumulator) -> Accumulator:
    """The outer level of a float sum: in double, so that however many rows there are it adds no error of its own."""
    return Accumulator(nest.emitter.fresh("s"), name.op, FLOAT64)


def _are_joined(nest: Nest, rows: Sequence[Symbol], vector: Symbol, axis: Symbol) -> bool:
    """Whether columns are few, and all that is read of them lies row after row in memory or is one element."""
    addresses = [access.address for access in nest.accesses if access.weight == 1]
    asked = any(access.address.symbols for access in nest.accesses if not access.weight)
    if asked or len(rows) != 1 or nest.hinted()[vector] > costs.CPU_NARROW_COLUMNS:
        return False
    return joinable(axis, vector, nest.loops.extents[vector], addresses)


def _together(nest: Nest, running: Sequence[Accumulator], vector: Symbol) -> int:
    """How many elements of short rows lie below each other: where rows fill vectors, what registers hold, so that
    memory is read in its order.
    """
    size, width = max(name.dtype.size for name in running), nest.hinted()[vector]
    held = costs.CPU_HELD // size
    return held if width * size >= costs.CPU_VECTOR and held % width == 0 else costs.CPU_TOGETHER


def _add(running: Accumulator, value: Value, column: Symbol) -> Store:
    """Joins a value to the running result of a column, which comes last: a NaN that stays in memory may be made a store
    by lanes, which machines without masks are slow at.
    """
    before = Load(running.name, column.expr, running.dtype)
    return Store(running.name, column.expr, Apply(COMBINE[running.op], (value, before), running.dtype))


def _start(accumulator: Accumulator) -> Const:
    """What a reduction of nothing is."""
    dtype = accumulator.dtype
    start: bool | int | float
    match accumulator.op:
        case "sum" | "any":
            start = 0
        case "prod" | "all":
            start = 1
        case "max":
            start = _bound(dtype, -1)
        case _:
            start = _bound(dtype, 1)
    return Const(float(start) if dtype.is_float else bool(start) if dtype.kind == "bool" else start, dtype)


def _bound(dtype: DType, sign: int) -> int | float:
    """The least (sign -1) or greatest value of a dtype."""
    if dtype.is_float:
        return sign * math.inf
    if dtype.kind == "bool":
        return int(sign > 0)
    information = torch.iinfo(dtype.torch)
    return information.max if sign > 0 else information.min
