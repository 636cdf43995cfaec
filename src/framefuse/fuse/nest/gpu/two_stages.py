"""Turns a reduction to few results into two kernels: chunks of rows, then their combination for each row."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from framefuse.fuse import costs
from framefuse.fuse.grouping.cells import Cell
from framefuse.fuse.nest.forms import Runs
from framefuse.fuse.nest.gpu.decode import decode, decode_elements, gpu_nest
from framefuse.fuse.nest.gpu.pointwise import power
from framefuse.fuse.nest.gpu.rows import sweep
from framefuse.fuse.nest.nest import Built, Nest, Partial
from framefuse.fuse.nest.sweeps import Sweep
from framefuse.fuse.nest.values import exact
from framefuse.ir.loops import Accumulate, Accumulator, Let, Load, Local, Loop, LoopKind, Store, Value
from framefuse.ir.numbers import Expr, Symbol, ceildiv, expr, minimum, product


@dataclass(frozen=True, slots=True)
class Running:
    """A reduction over the elements of a chunk: its accumulator, and for a position the extreme that lies there."""

    reduce: Cell
    accumulator: Accumulator
    extreme: Accumulator | None

    @property
    def kept(self) -> tuple[Accumulator, ...]:
        """What the second kernel needs of each chunk."""
        return (self.accumulator,) if self.extreme is None else (self.accumulator, self.extreme)

    def extremes(self, nest: Nest) -> Iterator[Accumulate]:
        """The extreme's own statement at a point."""
        if self.extreme is not None:
            yield Accumulate(self.extreme.name, exact(nest.emitter.value(self.reduce.kids[0])))


def _running(nest: Nest, reduce: Cell) -> Running:
    accumulator = nest.declare(reduce, nest.emitter.fresh("a"))
    if accumulator.of is None:
        return Running(reduce, accumulator, None)
    extreme = Accumulator(nest.emitter.fresh("a"), accumulator.op.removeprefix("arg"), accumulator.of)
    return Running(reduce, accumulator, extreme)


def chunk_of(nest: Nest, sweeps: Sequence[Sweep], rows: Sequence[Symbol], vector: Symbol | None) -> int | None:
    """Of how many elements each program of a first kernel takes a sum, where rows alone keep too few busy."""
    wide = [p for p in sweeps if p.inner]
    if len(wide) != 1 or wide[0].level or not wide[0].reduces:
        return None
    hints = nest.hinted()
    count = nest.hint(product(nest.loops.extents[axis] for axis in rows))
    length = nest.hint(product(nest.group.axes[axis] for axis in wide[0].inner))
    programs = count if vector is None else -(-count // max(1, min(costs.GPU_LANES, hints[vector])))
    least = costs.GPU_CHUNK[vector is not None]
    if programs * 2 > costs.GPU_PROGRAMS or length < 4 * least or length * max(1, count) < 4 * costs.GPU_ALONE:
        return None
    chunk = max(least, power(length * max(1, programs) // costs.GPU_PROGRAMS))
    return min(chunk, costs.GPU_CHUNK_MOST) if vector is None else chunk


def two_stages(
    nest: Nest,
    sweeps: Sequence[Sweep],
    rows: Sequence[Symbol],
    runs: Runs,
    chunk: int,
    title: str,
    work: Expr,
) -> list[Built]:
    """Chunks of rows in parallel into partial results, then their combination for each row and what follows."""
    wide = next(p for p in sweeps if p.inner)
    second = gpu_nest(nest.group, nest.strides_of)
    second.loops.absorbed |= nest.loops.absorbed
    second.loops.extents.update(nest.loops.extents)
    for axis in nest.loops.absorbed:
        second.emitter.parameters.name(axis, expr(0))
    run, extents, parameters = runs[wide.inner], nest.loops.extents, nest.emitter.parameters
    length = product(extents[axis] for axis in run)
    count = ceildiv(length, chunk)
    lines = product(extents[axis] for axis in rows)
    running = [_running(nest, reduce) for reduce in wide.reduces]
    names = [each.accumulator for each in running]
    kept = [accumulator for each in running for accumulator in each.kept]
    partials = [Partial(accumulator.dtype, lines * count, nest.group.device) for accumulator in kept]
    place = Symbol("@p0")
    with nest.scope() as top:
        nest.emitter.floor = 1
        symbol = nest.new_axis()
        with nest.loop(tuple(rows), symbol, lines * count, LoopKind.PARALLEL) as scope:
            decode(nest, symbol.expr, [place, *rows], [count, *(extents[axis] for axis in rows)])
            scope.body.extend(kept)
            inner = nest.new_axis()
            start = parameters.index(place.expr) * chunk
            with nest.scope(tuple(run)) as body:
                decode_elements(nest, start + inner.expr, run, [extents[axis] for axis in run])
                nest.point(wide, names)
                body.body.extend(term for each in running for term in each.extremes(nest))
            size = minimum(expr(chunk), parameters.index(length) - start)
            scope.body.append(Loop(inner, size, tuple(body.body), LoopKind.VECTOR))
            for accumulator, partial in zip(kept, partials, strict=True):
                buffer = parameters.buffer(partial, partial.dtype, write=True)
                scope.body.append(Store(buffer, symbol.expr, Local(accumulator.name, accumulator.dtype)))
    first = nest.built(f"{title}_chunks", top.body, lines * count, work, True)
    return [first, _second(second, sweeps, wide, partials, rows, count, f"{title}_total")]


def _second(
    nest: Nest,
    sweeps: Sequence[Sweep],
    wide: Sweep,
    partials: Sequence[Partial],
    rows: Sequence[Symbol],
    count: Expr,
    title: str,
) -> Built:
    """The combination of partial results and the sweeps without loops."""
    parameters, extents = nest.emitter.parameters, nest.loops.extents
    lines = product(extents[axis] for axis in rows)

    def load(partial: Partial, chunk: Expr, at: Expr) -> Load:
        where = chunk * parameters.index(lines) + at
        return Load(parameters.buffer(partial, partial.dtype), where, partial.dtype)

    def row(at: Expr) -> None:
        scope = nest.emitter.scopes[-1]
        running = [_running(nest, reduce) for reduce in wide.reduces]
        step = nest.new_axis()
        left = iter(partials)
        terms: list[Accumulate] = []
        positions: dict[Cell, Partial] = {}
        for each in running:
            partial = next(left)
            if each.extreme is None:
                terms.append(Accumulate(each.accumulator.name, load(partial, step.expr, at)))
            else:  # which chunk has the extreme; its position there is read after the loop
                positions[each.reduce] = partial
                terms.append(Accumulate(each.accumulator.name, load(next(left), step.expr, at), step.expr))
        names = [each.accumulator for each in running]
        scope.body += [*names, Loop(step, parameters.index(count), tuple(terms), LoopKind.VECTOR)]
        for each in running:
            value: Value = Local(each.accumulator.name, each.accumulator.dtype)
            if each.reduce in positions:
                chunk = nest.new_axis()
                scope.body.append(Let(chunk.name, value))
                value = load(positions[each.reduce], chunk.expr, at)
            scope.known[each.reduce] = nest.result(each.reduce, value)
        for current in sweeps:
            if current is not wide:
                sweep(nest, current, ())

    with nest.scope() as top:
        if not rows:
            row(expr(0))
            return nest.built(title, top.body, expr(1), partials[0].size, False)
        nest.emitter.floor = 1
        symbol = nest.new_axis()
        with nest.loop(tuple(rows), symbol, lines, LoopKind.PARALLEL):
            decode(nest, symbol.expr, rows, [extents[axis] for axis in rows])
            row(symbol.expr)
    return nest.built(title, top.body, lines, partials[0].size, True)
