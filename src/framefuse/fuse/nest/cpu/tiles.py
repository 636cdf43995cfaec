"""Turns work that plain loops serve badly into large sums in two stages, column tiles and tiles of transposes."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import torch

from framefuse.fuse.nest.nest import CHUNK, Built, Nest, Partial
from framefuse.fuse.nest.sweeps import Pass
from framefuse.fuse.nest.values import cast
from framefuse.ir.dtypes import FLOAT64, INT64, DType
from framefuse.ir.loops import (
    Accumulate,
    Accumulator,
    Apply,
    Const,
    Index,
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
from framefuse.ir.numbers import Expr, Symbol, ceildiv, expr, minimum, product

STAGED_ABOVE = 100_000  # nanoseconds of work from which two threads repay a second kernel
SHORT = 32  # rows that fit the registers of a plain loop
TILE = 512  # columns whose running results stay in the first-level cache
SQUARE = 64, 64  # points of a tile along a transposed operand's memory and along the result's
CROSSED = 64  # points along both, below which memory that is read across stays in the cache anyway
ROWS = 8  # rows of a column tile that are summed before they join the running result
BLOCKS = 16  # blocks of rows after which the running result of a float sum joins the total
COMBINE = {"sum": "add", "prod": "mul", "max": "maximum", "min": "minimum", "any": "bit_or", "all": "bit_and"}

Runs = dict[frozenset[Symbol], list[Symbol]]


def may_stage(nest: Nest, passes: Sequence[Pass], rows: Sequence[Symbol], work: Expr) -> bool:
    """Whether a reduction to few results is large enough for a parallel first kernel."""
    wide = [p for p in passes if p.inner]
    if rows or len(wide) != 1 or not wide[0].reduces or wide[0].level:
        return False
    return _is_plain(wide[0]) and nest.hint(work) > STAGED_ABOVE


def _is_plain(current: Pass) -> bool:
    return all(reduce.node.op not in ("argmax", "argmin") for reduce in current.reduces)


def two_stages(nest: Nest, passes: Sequence[Pass], runs: Runs, title: str, work: Expr) -> list[Built]:
    """Chunks in parallel into partial results, then their combination and what follows from it."""
    wide = next(p for p in passes if p.inner)
    second = Nest(nest.group, nest.shape, nest.strides_of)
    second.loops.absorbed |= nest.loops.absorbed
    run = runs[wide.inner]
    extents = nest.loops.extents
    accumulators = [nest.declare(reduce, nest.emitter.fresh("a")) for reduce in wide.reduces]
    if len(run) == 1:
        count = ceildiv(extents[run[0]], CHUNK)
    else:
        count = product(extents[axis] for axis in run[:-1])
    partials = [Partial(accumulator.dtype, count, nest.group.device) for accumulator in accumulators]
    with nest.scope() as top:
        nest.emitter.floor = 1
        symbol = nest.new_axis()
        with nest.loop(tuple(run[:-1]), symbol, count, LoopKind.PARALLEL) as scope:
            nest.decode(scope, symbol.expr, run[:-1], [extents[axis] for axis in run[:-1]])
            scope.body.extend(accumulators)
            inner = nest.new_axis()
            size = nest.emitter.parameters.index(extents[run[-1]])
            if len(run) == 1:
                nest.open_chunk(run[0], symbol, inner, CHUNK)
                size = minimum(expr(CHUNK), size - symbol.expr * CHUNK)
            else:
                nest.emitter.parameters.name(run[-1], inner.expr)
            with nest.scope((run[-1],)) as body:
                nest.point(wide, accumulators)
            scope.body.append(Loop(inner, size, tuple(body.body), LoopKind.VECTOR))
            for accumulator, partial in zip(accumulators, partials, strict=True):
                name = nest.emitter.parameters.buffer(partial, partial.dtype, write=True)
                scope.body.append(Store(name, symbol.expr, Local(accumulator.name, accumulator.dtype)))
    first = nest.built(f"{title}_chunks", top.body, count, work, True)
    return [first, _second(second, passes, wide, partials, f"{title}_total")]


def _second(nest: Nest, passes: Sequence[Pass], wide: Pass, partials: Sequence[Partial], title: str) -> Built:
    """The combination of partial results, in chunks of their own, and the passes without loops."""
    parameters = nest.emitter.parameters
    with nest.scope() as top:
        names = [nest.declare(reduce, nest.emitter.fresh("a")) for reduce in wide.reduces]
        top.body.extend(names)
        outer, inner = nest.new_axis(), nest.new_axis()
        count = parameters.index(partials[0].size)
        chunks = [Accumulator(nest.emitter.fresh("a"), name.op, name.dtype) for name in names]
        place = outer.expr * CHUNK + inner.expr
        steps = []
        for name, chunk, partial in zip(names, chunks, partials, strict=True):
            buffer = parameters.buffer(partial, partial.dtype)
            steps.append(Accumulate(chunk.name, Load(buffer, place, name.dtype)))
        body: tuple[Statement, ...] = (
            *chunks,
            Loop(inner, minimum(expr(CHUNK), count - outer.expr * CHUNK), tuple(steps), LoopKind.VECTOR),
            *(Accumulate(n.name, Local(c.name, c.dtype)) for n, c in zip(names, chunks, strict=True)),
        )
        top.body.append(Loop(outer, ceildiv(count, CHUNK), body, LoopKind.SERIAL))
        for reduce, name in zip(wide.reduces, names, strict=True):
            top.known[reduce] = nest.result(reduce, Local(name.name, name.dtype))
        for current in passes:
            if current is not wide:
                nest.run_pass(current, (), 0, False)
    return nest.built(title, top.body, expr(1), partials[0].size, False)


def may_tile(nest: Nest, passes: Sequence[Pass], runs: Runs) -> bool:
    """Whether one pass across memory is long enough to go through row blocks."""
    wide = [p for p in passes if p.inner]
    if len(wide) != 1 or wide[0].level or not wide[0].reduces or wide[0].saved or not _is_plain(wide[0]):
        return False
    return len(runs[wide[0].inner]) == 1 and nest.hint(product(nest.group.axes[a] for a in wide[0].inner)) > SHORT


def column_tiles(
    nest: Nest, passes: Sequence[Pass], rows: list[Symbol], vector: Symbol, runs: Runs, title: str, work: Expr
) -> Built:
    """Rows of memory in blocks of 8 into a private row of running results, for tiles of 512 neighbouring columns."""
    wide = next(p for p in passes if p.inner)
    width = nest.loops.extents[vector]
    tiles = ceildiv(width, TILE)
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
            size = minimum(expr(TILE), parameters.index(width) - tile * TILE)
            names = [nest.declare(reduce, nest.emitter.fresh("s")) for reduce in wide.reduces]
            totals = {name: _total(nest, name) for name in names if name.op == "sum" and name.dtype.is_float}
            kept = [*names, *totals.values()]
            scope.body.extend(Scratch(name.name, name.dtype, expr(TILE)) for name in kept)
            first = nest.new_axis()
            scope.body.append(
                Loop(first, size, tuple(Store(name.name, first.expr, _start(name)) for name in kept), LoopKind.VECTOR)
            )
            _blocks(nest, wide, runs[wide.inner][0], vector, tile, size, names, totals)
            at = nest.new_axis()
            parameters.name(vector, tile * TILE + at.expr)
            with nest.scope((vector,)) as lane:
                for reduce, name in zip(wide.reduces, names, strict=True):
                    result = nest.emitter.fresh("v")
                    total = totals.get(name, name)
                    lane.body.append(Let(result, cast(Load(total.name, at.expr, total.dtype), name.dtype)))
                    lane.known[reduce] = nest.result(reduce, Local(result, name.dtype))
                for current in passes:
                    if current is not wide:
                        nest.run_pass(current, (), 0, False)
            scope.body.append(Loop(at, size, tuple(lane.body), LoopKind.VECTOR))
    return nest.built(title, top.body, count, work, True)


def crossing_axis(nest: Nest, axes: Sequence[Symbol]) -> Symbol | None:
    """The axis along which a load is contiguous while the vector loop, over the last axis, reads it across."""
    lane = axes[-1]
    hints = nest.hinted()
    for access in nest.accesses:
        if access.weight != 1:
            continue
        step = access.address.coefficient(lane)
        if step is None or step.constant in (0, 1) or hints[lane] < CROSSED:
            continue
        for axis in axes[:-1]:
            slope = access.address.coefficient(axis)
            if slope is not None and slope.constant == 1 and hints[axis] >= CROSSED:
                return axis
    return None


def square_tiles(nest: Nest, axes: Sequence[Symbol], across: Symbol, only: Pass, title: str, work: Expr) -> Built:
    """Pointwise work in tiles, so that each cache line of a transposed operand is used up while it is there."""
    lane = axes[-1]
    outer = [axis for axis in axes[:-1] if axis is not across]
    extents = nest.loops.extents
    counts = [
        *(extents[axis] for axis in outer),
        ceildiv(extents[across], SQUARE[0]),
        ceildiv(extents[lane], SQUARE[1]),
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
            for axis, tile, size in ((across, row, SQUARE[0]), (lane, column, SQUARE[1])):
                start, step = nest.new_axis(), nest.new_axis()
                scope.body.append(Let(start.name, Index(tile * size, INT64)))
                parameters.name(axis, start.expr + step.expr)
                steps.append((step, minimum(expr(size), parameters.index(extents[axis]) - start.expr)))
            with nest.scope((across,)) as line, nest.scope((lane,)) as point:
                nest.point(only, ())
            line.body.append(Loop(steps[1][0], steps[1][1], tuple(point.body), LoopKind.VECTOR))
            scope.body.append(Loop(steps[0][0], steps[0][1], tuple(line.body), LoopKind.SERIAL))
    return nest.built(title, top.body, product(counts), work, True)


def _total(nest: Nest, name: Accumulator) -> Accumulator:
    """The outer level of a float sum: in double, so that however many rows there are it adds no error of its own."""
    return Accumulator(nest.emitter.fresh("s"), name.op, FLOAT64)


def _blocks(
    nest: Nest,
    wide: Pass,
    axis: Symbol,
    vector: Symbol,
    tile: Expr,
    size: Expr,
    names: Sequence[Accumulator],
    totals: Mapping[Accumulator, Accumulator],
) -> None:
    """``for block of rows: for column of the tile: running = running + (sum of 8 rows)``, and for float sums after
    every 16 blocks ``for column of the tile: total = total + running; running = 0``.
    """
    parameters = nest.emitter.parameters
    outer, block, column, step = nest.new_axis(), nest.new_axis(), nest.new_axis(), nest.new_axis()
    length = parameters.index(nest.loops.extents[axis])
    first = outer.expr * BLOCKS + block.expr if totals else block.expr
    parameters.name(vector, tile * TILE + column.expr)
    parameters.name(axis, first * ROWS + step.expr)
    partial = [Accumulator(nest.emitter.fresh("a"), name.op, name.dtype) for name in names]
    with nest.scope((vector,)) as lanes:
        with nest.scope((axis,)) as point:
            nest.point(wide, partial)
        left = minimum(expr(ROWS), length - first * ROWS)
        lanes.body.extend(partial)
        lanes.body.append(Loop(step, left, tuple(point.body), LoopKind.SERIAL))
        for name, part in zip(names, partial, strict=True):
            lanes.body.append(_add(name, Local(part.name, part.dtype), column))
    rows = Loop(column, size, tuple(lanes.body), LoopKind.VECTOR)
    count, body = ceildiv(length, ROWS), nest.emitter.scopes[-1].body
    if not totals:
        body.append(Loop(block, count, (rows,), LoopKind.SERIAL))
        return
    at = nest.new_axis()
    moved: list[Statement] = []
    for name, total in totals.items():
        moved.append(_add(total, cast(Load(name.name, at.expr, name.dtype), total.dtype), at))
        moved.append(Store(name.name, at.expr, _start(name)))
    blocks = Loop(block, minimum(expr(BLOCKS), count - outer.expr * BLOCKS), (rows,), LoopKind.SERIAL)
    after = Loop(at, size, tuple(moved), LoopKind.VECTOR)
    body.append(Loop(outer, ceildiv(count, BLOCKS), (blocks, after), LoopKind.SERIAL))


def _add(running: Accumulator, value: Value, column: Symbol) -> Store:
    """Joins a value to the running result of a column."""
    before = Load(running.name, column.expr, running.dtype)
    return Store(running.name, column.expr, Apply(COMBINE[running.op], (before, value), running.dtype))


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
