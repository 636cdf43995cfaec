"""Turns a group of cells into kernels for a GPU: programs of one tile each, rows as tiles, long sums in two stages."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

from framefuse.fuse.addressing.strided import Strides
from framefuse.fuse.grouping.cells import Group
from framefuse.fuse.nest.cpu.kernels import primary, rows_of, runs_of, title_of, work_of
from framefuse.fuse.nest.cpu.tiles import crossing_axis
from framefuse.fuse.nest.loop_order import memory_order, vector_axis
from framefuse.fuse.nest.nest import Built, Nest, Partial
from framefuse.fuse.nest.sweeps import Pass, passes_of, shape_of
from framefuse.ir.dtypes import INT64
from framefuse.ir.graph import Node
from framefuse.ir.loops import Accumulate, Index, Let, Load, Local, Loop, LoopKind, Store
from framefuse.ir.numbers import Expr, Symbol, ceildiv, expr, minimum, product

TILE = 1024  # points of a tile of pointwise work
LEAST = 256  # below which positions are decoded for each element instead,
NARROW = 16  # and likewise for rows shorter than this
FILLED = 0.7  # of a tile's points that should exist
CROSSED = 64  # points along both sides of a tile that is read across memory
SHORT = 512  # points of an inner loop below which it is joined with the loops around it, by division
PROGRAMS = 1024  # that keep a GPU busy
ALONE = 16384  # elements that one program may as well reduce by itself
CHUNK = 2048, 256  # least elements that one program of several takes of a reduction: along memory, and across it
MOST = 8192  # of them along memory: one tile, without turns


def build_tiled(group: Group, strides_of: Callable[[Node], Strides]) -> list[Built]:
    """The kernels of a group in the order in which they run: one, or two for a reduction to few results."""
    nest = _nest(group, strides_of)
    title = title_of(group)
    passes = passes_of(nest.shape)
    if group.rows is None:
        return [_pointwise(nest, passes[0], title, work_of(nest, passes))]
    rows, vector = rows_of(nest, passes)
    runs = runs_of(nest, passes, vector)
    work = work_of(nest, passes)
    chunk = _chunk(nest, passes, rows, vector)
    if chunk is not None:
        return _two_stages(nest, passes, rows, runs, chunk, title, work)
    return [_rows(nest, passes, rows, runs, title, work)]


def _nest(group: Group, strides_of: Callable[[Node], Strides]) -> Nest:
    nest = Nest(group, shape_of(group), strides_of)
    nest.reads_stored = False  # another thread of the program stored it
    return nest


@contextmanager
def _joined(nest: Nest, axes: Sequence[Symbol], kind: LoopKind) -> Iterator[None]:
    """One loop over all points of several axes."""
    symbol = nest.new_axis()
    extents = [nest.loops.extents[axis] for axis in axes]
    with nest.loop(axes, symbol, product(extents), kind):
        (_decode if kind is LoopKind.PARALLEL else _decode_elements)(nest, symbol.expr, axes, extents)
        yield


def _decode(nest: Nest, place: Expr, axes: Sequence[Symbol], extents: Sequence[Expr]) -> None:
    """Names the positions of ``axes`` in a row-major count ``place``."""
    if len(axes) == 1:
        nest.emitter.parameters.name(axes[0], place)
    else:
        nest.decode(nest.emitter.scopes[-1], place, axes, extents)


def _decode_elements(nest: Nest, place: Expr, axes: Sequence[Symbol], extents: Sequence[Expr]) -> None:
    """The same for a count that runs along memory: a position is what a division leaves, so that the address of a dense
    operand is the count itself again.
    """
    parameters = nest.emitter.parameters
    outer = expr(0)
    for number, axis in enumerate(axes):
        whole = place
        if number + 1 < len(axes):
            name = nest.new_axis()
            points = product(extents[number + 1 :])
            divisor = expr(1) if points.constant == 0 else parameters.index(points)
            nest.emitter.scopes[-1].body.append(Let(name.name, Index(place // divisor, INT64)))
            whole = name.expr
        parameters.name(axis, whole - outer * parameters.index(extents[number]))
        outer = whole


# ---- pointwise work


def _pointwise(nest: Nest, only: Pass, title: str, work: Expr) -> Built:
    group = nest.group
    order = memory_order(group.domain, primary(nest), group.hints)
    if not order:
        with nest.scope() as scope:
            nest.point(only, ())
        return nest.built(title, scope.body, expr(1), work, False)
    lane = vector_axis(order, nest.accesses, nest.hinted())
    axes = nest.join([*(axis for axis in order if axis is not lane), lane])
    across = crossing_axis(nest, axes)
    sides = _sides(nest, axes, across)
    if sides:
        return _tiles(nest, axes, sides, only, title, work)
    with nest.scope() as top:
        nest.emitter.floor = 1
        with _joined(nest, axes, LoopKind.PARALLEL_VECTOR):
            nest.point(only, ())
    return nest.built(title, top.body, product(nest.loops.extents[axis] for axis in axes), work, True)


def _sides(nest: Nest, axes: Sequence[Symbol], across: Symbol | None) -> list[tuple[Symbol, int]]:
    """The axes of a tile, outermost first, with its sizes; none where a tile would be small or hardly filled."""
    hints = nest.hinted()
    lane = axes[-1]
    if across is not None:
        return [(across, min(CROSSED, _power(hints[across]))), (lane, min(CROSSED, _power(hints[lane])))]
    if len(axes) == 1:
        return []
    wide = _filled(hints[lane], TILE)
    if wide is None or wide < min(NARROW, TILE):
        return []
    if wide >= TILE:
        return [(lane, wide)]
    high = _filled(hints[axes[-2]], TILE // wide)
    if high is None or high * wide < LEAST:
        return []
    return [(axes[-2], high), (lane, wide)] if high > 1 else [(lane, wide)]


def _filled(extent: int, most: int) -> int | None:
    """The largest power of two up to ``most`` in whose multiples an extent nearly fits."""
    size = most
    while size > 1 and extent < FILLED * size * -(-extent // size):
        size //= 2
    return size if extent else None


def _power(extent: int) -> int:
    return 1 << max(0, extent - 1).bit_length()


def _tiles(
    nest: Nest, axes: Sequence[Symbol], sides: Sequence[tuple[Symbol, int]], only: Pass, title: str, work: Expr
) -> Built:
    """``for tile in parallel(...)``: where it begins, then vector loops over its sides."""
    extents, parameters = nest.loops.extents, nest.emitter.parameters
    inner = [axis for axis, _ in sides]
    outer = [axis for axis in axes if axis not in inner]
    counts = [*(extents[axis] for axis in outer), *(ceildiv(extents[axis], size) for axis, size in sides)]
    with nest.scope() as top:
        nest.emitter.floor = 1
        symbol = nest.new_axis()
        with nest.loop(tuple(outer), symbol, product(counts), LoopKind.PARALLEL) as scope:
            places = [Symbol(f"@p{number}") for number in range(len(sides))]
            _decode(nest, symbol.expr, [*outer, *places], counts)
            steps: list[tuple[Symbol, Expr]] = []
            for place, (axis, size) in zip(places, sides, strict=True):
                start, step = nest.new_axis(), nest.new_axis()
                scope.body.append(Let(start.name, Index(parameters.index(place.expr) * size, INT64)))
                parameters.name(axis, start.expr + step.expr)
                steps.append((step, _length(parameters.index(extents[axis]), size, start)))
            _nested(nest, inner, steps, lambda: nest.point(only, ()))
    return nest.built(title, top.body, product(counts), work, True)


def _length(extent: Expr, size: int, start: Symbol) -> Expr:
    """The points of one tile along a side: all of them where it divides the extent."""
    if extent.constant is not None and extent.constant % size == 0:
        return expr(size)
    return minimum(expr(size), extent - start.expr)


def _nested(
    nest: Nest, axes: Sequence[Symbol], steps: Sequence[tuple[Symbol, Expr]], inside: Callable[[], None]
) -> None:
    """A vector loop for each axis, one in the other; extents are over the kernel's own symbols."""
    if not axes:
        inside()
        return
    outer = nest.emitter.scopes[-1]
    with nest.scope((axes[0],)) as scope:
        _nested(nest, axes[1:], steps[1:], inside)
    outer.body.append(Loop(steps[0][0], steps[0][1], tuple(scope.body), LoopKind.VECTOR))


# ---- rows


def _rows(
    nest: Nest,
    passes: Sequence[Pass],
    rows: Sequence[Symbol],
    runs: dict[frozenset[Symbol], list[Symbol]],
    title: str,
    work: Expr,
) -> Built:
    """Passes over each row: the rows are the parallel axis, the loops of a pass vector loops."""

    def row() -> None:
        for current in passes:
            _pass(nest, current, runs.get(current.inner, []))

    with nest.scope() as top:
        if not rows:
            row()
            return nest.built(title, top.body, expr(1), work, False)
        nest.emitter.floor = 1
        extent = product(nest.loops.extents[axis] for axis in rows)
        with _joined(nest, rows, LoopKind.PARALLEL):
            row()
    return nest.built(title, top.body, extent, work, True)


def _pass(nest: Nest, current: Pass, run: Sequence[Symbol]) -> None:
    names = [nest.declare(reduce, nest.emitter.fresh("a")) for reduce in current.reduces]
    nest.emitter.scopes[-1].body.extend(names)

    def walk(run: Sequence[Symbol]) -> None:
        if len(run) > 1 and nest.hinted()[run[-1]] >= SHORT:
            with nest.axis(run[0], LoopKind.SERIAL):
                walk(run[1:])
        else:
            with _joined(nest, run, LoopKind.VECTOR):
                nest.point(current, names)

    if run:
        walk(run)
    else:
        with nest.scope() as scope:
            nest.point(current, names)
        nest.emitter.scopes[-1].body.extend(scope.body)
    nest.finish(current, names)


# ---- reductions in two stages


def _chunk(nest: Nest, passes: Sequence[Pass], rows: Sequence[Symbol], vector: Symbol | None) -> int | None:
    """Of how many elements each program of a first kernel takes a sum, where rows alone keep too few busy."""
    wide = [p for p in passes if p.inner]
    if len(wide) != 1 or wide[0].level or not wide[0].reduces:
        return None
    if any(reduce.node.op in ("argmax", "argmin") for reduce in wide[0].reduces):
        return None
    hints = nest.hinted()
    count = nest.hint(product(nest.loops.extents[axis] for axis in rows))
    length = nest.hint(product(nest.group.axes[axis] for axis in wide[0].inner))
    programs = count if vector is None else -(-count // 32) if hints[vector] >= 32 else count
    least = CHUNK[vector is not None]
    if programs * 2 > PROGRAMS or length < 4 * least or length * max(1, count) < 4 * ALONE:
        return None
    chunk = max(least, _power(length * max(1, programs) // PROGRAMS))
    return min(chunk, MOST) if vector is None else chunk


def _two_stages(
    nest: Nest,
    passes: Sequence[Pass],
    rows: Sequence[Symbol],
    runs: dict[frozenset[Symbol], list[Symbol]],
    chunk: int,
    title: str,
    work: Expr,
) -> list[Built]:
    """Chunks of rows in parallel into partial results, then their combination for each row and what follows."""
    wide = next(p for p in passes if p.inner)
    second = _nest(nest.group, nest.strides_of)
    second.loops.absorbed |= nest.loops.absorbed
    second.loops.extents.update(nest.loops.extents)
    for axis in nest.loops.absorbed:
        second.emitter.parameters.name(axis, expr(0))
    run, extents, parameters = runs[wide.inner], nest.loops.extents, nest.emitter.parameters
    length = product(extents[axis] for axis in run)
    count = ceildiv(length, chunk)
    lines = product(extents[axis] for axis in rows)
    names = [nest.declare(reduce, nest.emitter.fresh("a")) for reduce in wide.reduces]
    partials = [Partial(name.dtype, lines * count, nest.group.device) for name in names]
    place = Symbol("@p0")
    with nest.scope() as top:
        nest.emitter.floor = 1
        symbol = nest.new_axis()
        with nest.loop(tuple(rows), symbol, lines * count, LoopKind.PARALLEL) as scope:
            _decode(nest, symbol.expr, [place, *rows], [count, *(extents[axis] for axis in rows)])
            scope.body.extend(names)
            inner = nest.new_axis()
            start = parameters.index(place.expr) * chunk
            with nest.scope(tuple(run)) as body:
                _decode_elements(nest, start + inner.expr, run, [extents[axis] for axis in run])
                nest.point(wide, names)
            size = minimum(expr(chunk), parameters.index(length) - start)
            scope.body.append(Loop(inner, size, tuple(body.body), LoopKind.VECTOR))
            for name, partial in zip(names, partials, strict=True):
                buffer = parameters.buffer(partial, partial.dtype, write=True)
                scope.body.append(Store(buffer, symbol.expr, Local(name.name, name.dtype)))
    first = nest.built(f"{title}_chunks", top.body, lines * count, work, True)
    return [first, _second(second, passes, wide, partials, rows, count, f"{title}_total")]


def _second(
    nest: Nest,
    passes: Sequence[Pass],
    wide: Pass,
    partials: Sequence[Partial],
    rows: Sequence[Symbol],
    count: Expr,
    title: str,
) -> Built:
    """The combination of partial results and the passes without loops."""
    parameters, extents = nest.emitter.parameters, nest.loops.extents
    lines = product(extents[axis] for axis in rows)

    def row(at: Expr) -> None:
        scope = nest.emitter.scopes[-1]
        names = [nest.declare(reduce, nest.emitter.fresh("a")) for reduce in wide.reduces]
        step = nest.new_axis()
        where = step.expr * parameters.index(lines) + at
        loads = [Load(parameters.buffer(partial, partial.dtype), where, partial.dtype) for partial in partials]
        terms = tuple(Accumulate(name.name, load) for name, load in zip(names, loads, strict=True))
        scope.body += [*names, Loop(step, parameters.index(count), terms, LoopKind.VECTOR)]
        for reduce, name in zip(wide.reduces, names, strict=True):
            scope.known[reduce] = nest.result(reduce, Local(name.name, name.dtype))
        for current in passes:
            if current is not wide:
                _pass(nest, current, ())

    with nest.scope() as top:
        if not rows:
            row(expr(0))
            return nest.built(title, top.body, expr(1), partials[0].size, False)
        nest.emitter.floor = 1
        symbol = nest.new_axis()
        with nest.loop(tuple(rows), symbol, lines, LoopKind.PARALLEL):
            _decode(nest, symbol.expr, rows, [extents[axis] for axis in rows])
            row(symbol.expr)
    return nest.built(title, top.body, lines, partials[0].size, True)
