"""Turns pointwise work on a transposed operand into tiles, in which the operand is turned before it is read."""

from __future__ import annotations

from collections.abc import Sequence

from framefuse.fuse.addressing.ranges import address
from framefuse.fuse.grouping.cells import Cell
from framefuse.fuse.nest.cpu.pieces import part, pieces
from framefuse.fuse.nest.forms import crossing_axis, is_along
from framefuse.fuse.nest.loop_order import joinable
from framefuse.fuse.nest.nest import Built, Nest
from framefuse.fuse.nest.parameters import is_local
from framefuse.fuse.nest.sweeps import Sweep
from framefuse.ir import costs
from framefuse.ir.dtypes import INT64
from framefuse.ir.loops import Index, Let, Load, Loop, LoopKind, Scratch, Store
from framefuse.ir.numbers import Expr, Symbol, ceildiv, expr, minimum, product

COLUMN = Symbol("@column")
Step = tuple[Symbol, Expr]  # an axis of a tile and how many points it has along it


def square_tiles(nest: Nest, axes: Sequence[Symbol], across: Symbol, only: Sweep, title: str, work: Expr) -> Built:
    """Pointwise work in tiles, so that each cache line of a transposed operand is used up while it is there."""
    lane = axes[-1]
    outer = [axis for axis in axes[:-1] if axis is not across]
    extents = nest.loops.extents
    strips = may_strip(nest, across, lane)
    sizes = (costs.CPU_STRIP, extents[lane]) if strips else costs.CPU_SQUARE
    counts = [*(extents[axis] for axis in outer), ceildiv(extents[across], sizes[0])]
    if not strips:
        counts.append(ceildiv(extents[lane], sizes[1]))
    parameters = nest.emitter.parameters
    with nest.scope() as top:
        nest.emitter.floor = 1
        symbol = nest.new_axis()
        with nest.loop(tuple(outer), symbol, product(counts), LoopKind.PARALLEL) as scope:
            wide = expr(1) if strips else parameters.index(counts[-1])
            high = parameters.index(counts[len(outer)])
            nest.decode(scope, symbol.expr // (wide * high), outer, counts[: len(outer)])
            column, row = symbol.expr % wide, symbol.expr // wide % high if outer else symbol.expr // wide
            steps: list[Step] = []
            for axis, tile, size in ((across, row, sizes[0]), (lane, column, sizes[1])):
                step = nest.new_axis()
                if axis is lane and strips:
                    parameters.name(axis, step.expr)
                    steps.append((step, parameters.index(extents[axis])))
                    continue
                start = nest.new_axis()
                scope.body.append(Let(start.name, Index(tile * size, INT64)))
                parameters.name(axis, start.expr + step.expr)
                steps.append((step, minimum(expr(size), parameters.index(extents[axis]) - start.expr)))
            transpose_operands(nest, across, lane, steps, sizes)
            if strips:
                _strip(nest, across, lane, only, steps)
            else:
                with nest.scope((across,)) as line:
                    _line(nest, lane, only, *steps[1])
                scope.body.append(Loop(steps[0][0], steps[0][1], tuple(line.body), LoopKind.SERIAL))
    return nest.built(title, top.body, product(counts), work, True)


def transposed_axis(nest: Nest, axes: Sequence[Symbol]) -> Symbol | None:
    """The axis along which an operand lies that blocks can transpose, if there are enough points for one."""
    across = crossing_axis(nest, axes, costs.CPU_CROSSED)
    return across if across is not None and crossed(nest, across, axes[-1]) else None


def written_lane(nest: Nest, order: Sequence[Symbol], lane: Symbol) -> Symbol | None:
    """The axis along which all results lie, if blocks can transpose every operand that lies across it, where most of
    what is read lies along ``lane``: what a loop along that stores lies apart.
    """
    found = crossing_axis(nest, [*(axis for axis in order if axis is not lane), lane], costs.CPU_CROSSED, written=True)
    if found is None or not all(_lies(access.address, found) for access in nest.accesses if access.weight == 2):
        return None
    size = max(root.dtype.size for root in nest.group.roots)
    if size > costs.CPU_WRITTEN_SIZE and nest.hinted()[found] * size < costs.CPU_WRITTEN_ROW:
        return None
    turned = {address(cell.index, nest.strides_of(cell.node)) for cell in crossed(nest, lane, found)}
    loads = (access.address for access in nest.accesses if access.weight == 1)
    return found if all(where in turned or _lies(where, found) for where in loads) else None


def _lies(where: Expr, axis: Symbol) -> bool:
    """Whether neighbours along an axis are neighbours in memory or one element."""
    slope = where.coefficient(axis)
    return slope is not None and slope.constant in (0, 1)


def crossed(nest: Nest, across: Symbol, lane: Symbol) -> list[Cell]:
    """The operands whose neighbours along ``across`` are neighbours in memory, and of which all points are read."""
    found = []
    for cell in nest.shape.order:
        where = address(cell.index, nest.strides_of(cell.node)) if cell.kind == "load" and not cell.mask else None
        step = where.coefficient(lane) if where is not None else None
        if where is None or step is None or step.constant in (-1, 0, 1) or not is_along(where, across):
            continue
        if all(symbol in nest.group.axes for symbol in where.symbols if is_local(symbol)):  # no position that is read
            found.append(cell)
    return found


def may_strip(nest: Nest, across: Symbol, lane: Symbol) -> bool:
    """Whether rows are short, and what is not turned lies row after row: then rows of a tile are one loop."""
    if nest.hinted()[lane] > costs.CPU_SQUARE[1] or len(pieces(nest, lane)) > 1:
        return False
    turned = {address(cell.index, nest.strides_of(cell.node)) for cell in crossed(nest, across, lane)}
    rest = [where for where in nest.expressions if where not in turned]
    return joinable(across, lane, nest.loops.extents[lane], rest)


def transpose_operands(
    nest: Nest,
    across: Symbol,
    lane: Symbol,
    steps: Sequence[Step],
    sizes: tuple[int, int | Expr],
    along: Symbol = COLUMN,
) -> None:
    """Copies the part of each crossed operand that a tile reads into a tile of its own, along the lanes. ``along`` is
    what has the place in a row of it where it is read: the lane itself, where a tile has whole rows.
    """
    (row, height), (column, width) = steps
    emitter, parameters, places = nest.emitter, nest.emitter.parameters, (Symbol("@row"), along)
    body = emitter.scopes[-1].body
    for place, step in zip(places, (row, column), strict=True):
        parameters.name(place, step.expr)
    index = places[0].expr * sizes[1] + places[1].expr
    for cell in crossed(nest, across, lane):
        dtype, name = cell.node.dtype, emitter.fresh("s")
        where = parameters.index(address(cell.index, nest.strides_of(cell.node)))
        load = Load(parameters.buffer(cell.node, dtype), where, dtype)
        body.append(Scratch(name, dtype, parameters.index(sizes[1] * expr(sizes[0]))))
        copied = Store(name, parameters.index(index), load)
        body.append(Loop(column, width, (Loop(row, height, (copied,), LoopKind.VECTOR),), LoopKind.SERIAL))
        emitter.kept[cell] = (name, index, dtype)
        emitter.readable.add(cell)


def _strip(nest: Nest, across: Symbol, lane: Symbol, only: Sweep, steps: Sequence[Step]) -> None:
    """The points of all rows of a tile as one loop."""
    parameters, size = nest.emitter.parameters, nest.loops.extents[lane]
    (row, height), (_, width) = steps
    start, flat, symbol = parameters.locals[across] - row.expr, Symbol("@flat"), nest.new_axis()
    first = Symbol("@first")
    parameters.name(flat, symbol.expr)
    parameters.name(first, start)
    for axis, begin in ((across, first.expr), (Symbol("@row"), expr(0))):
        parameters.place(axis, begin + flat.expr // size)
    for axis in (lane, COLUMN):
        parameters.place(axis, flat.expr - flat.expr // size * size)
    line = nest.emitter.scopes[-1]
    with nest.scope((across, lane)) as point:
        nest.point(only, ())
    line.body.append(Loop(symbol, height * width, tuple(point.body), LoopKind.VECTOR))


def _line(nest: Nest, lane: Symbol, only: Sweep, step: Symbol, length: Expr) -> None:
    """The points of a tile along the result's memory: a loop for the part of each piece that is joined there."""
    parameters = nest.emitter.parameters
    found, start = pieces(nest, lane), parameters.locals[lane] - step.expr
    if len(found) > 1:

        def inside() -> None:
            parameters.name(COLUMN, parameters.locals[lane] - start)  # of which a piece has loops of its own
            nest.point(only, ())

        for piece in found:
            part(nest, lane, piece, start, start + length, inside)
        return
    line = nest.emitter.scopes[-1]
    with nest.scope((lane,)) as point:
        nest.point(only, ())
    line.body.append(Loop(step, length, tuple(point.body), LoopKind.VECTOR))
