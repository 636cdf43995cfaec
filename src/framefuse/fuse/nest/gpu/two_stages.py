"""Turns a reduction to few results into two kernels: chunks of rows, then their combination for each row."""

from __future__ import annotations

from collections.abc import Sequence

from framefuse.fuse import costs
from framefuse.fuse.nest.forms import Runs
from framefuse.fuse.nest.gpu.decode import decode, decode_elements, gpu_nest
from framefuse.fuse.nest.gpu.pointwise import power
from framefuse.fuse.nest.gpu.rows import sweep
from framefuse.fuse.nest.nest import Built, Nest, Partial
from framefuse.fuse.nest.sweeps import Sweep
from framefuse.ir.loops import Accumulate, Load, Local, Loop, LoopKind, Store
from framefuse.ir.numbers import Expr, Symbol, ceildiv, expr, minimum, product


def chunk_of(nest: Nest, sweeps: Sequence[Sweep], rows: Sequence[Symbol], vector: Symbol | None) -> int | None:
    """Of how many elements each program of a first kernel takes a sum, where rows alone keep too few busy."""
    wide = [p for p in sweeps if p.inner]
    if len(wide) != 1 or wide[0].level or not wide[0].reduces:
        return None
    if any(reduce.node.op in ("argmax", "argmin") for reduce in wide[0].reduces):
        return None
    hints = nest.hinted()
    count = nest.hint(product(nest.loops.extents[axis] for axis in rows))
    length = nest.hint(product(nest.group.axes[axis] for axis in wide[0].inner))
    lanes = costs.GPU_LANES
    programs = count if vector is None or hints[vector] < lanes else -(-count // lanes)
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
    names = [nest.declare(reduce, nest.emitter.fresh("a")) for reduce in wide.reduces]
    partials = [Partial(name.dtype, lines * count, nest.group.device) for name in names]
    place = Symbol("@p0")
    with nest.scope() as top:
        nest.emitter.floor = 1
        symbol = nest.new_axis()
        with nest.loop(tuple(rows), symbol, lines * count, LoopKind.PARALLEL) as scope:
            decode(nest, symbol.expr, [place, *rows], [count, *(extents[axis] for axis in rows)])
            scope.body.extend(names)
            inner = nest.new_axis()
            start = parameters.index(place.expr) * chunk
            with nest.scope(tuple(run)) as body:
                decode_elements(nest, start + inner.expr, run, [extents[axis] for axis in run])
                nest.point(wide, names)
            size = minimum(expr(chunk), parameters.index(length) - start)
            scope.body.append(Loop(inner, size, tuple(body.body), LoopKind.VECTOR))
            for name, partial in zip(names, partials, strict=True):
                buffer = parameters.buffer(partial, partial.dtype, write=True)
                scope.body.append(Store(buffer, symbol.expr, Local(name.name, name.dtype)))
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
