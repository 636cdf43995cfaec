"""Turns a large sum to few results into two kernels: chunks in parallel, then their combination."""

from __future__ import annotations

from collections.abc import Sequence

from framefuse.fuse.addressing.ranges import ZERO
from framefuse.fuse.nest.cpu.pieces import part, row_pieces
from framefuse.fuse.nest.forms import Runs, is_plain
from framefuse.fuse.nest.nest import Built, Nest, Partial
from framefuse.fuse.nest.sweeps import Sweep
from framefuse.ir import costs
from framefuse.ir.loops import Accumulate, Accumulator, Load, Local, Loop, LoopKind, Statement, Store
from framefuse.ir.numbers import Expr, Symbol, ceildiv, expr, minimum, product


def may_stage(nest: Nest, sweeps: Sequence[Sweep], rows: Sequence[Symbol], work: Expr) -> bool:
    """Whether a reduction to few results is large enough for a parallel first kernel."""
    wide = [p for p in sweeps if p.inner]
    if rows or len(wide) != 1 or not wide[0].reduces or wide[0].level:
        return False
    return is_plain(wide[0]) and nest.hint(work) > costs.CPU_STAGED_ABOVE


def two_stages(nest: Nest, sweeps: Sequence[Sweep], runs: Runs, title: str, work: Expr) -> list[Built]:
    """Chunks in parallel into partial results, then their combination and what follows from it."""
    wide = next(p for p in sweeps if p.inner)
    second = Nest(nest.group, nest.shape, nest.strides_of)
    second.loops.absorbed |= nest.loops.absorbed
    run = runs[wide.inner]
    extents = nest.loops.extents
    accumulators = [nest.declare(reduce, nest.emitter.fresh("a")) for reduce in wide.reduces]
    if len(run) == 1:
        count = ceildiv(extents[run[0]], costs.CHUNK)
    else:
        count = product(extents[axis] for axis in run[:-1])
    partials = [Partial(accumulator.dtype, count, nest.group.device) for accumulator in accumulators]
    with nest.scope() as top:
        nest.emitter.floor = 1
        symbol = nest.new_axis()
        with nest.loop(tuple(run[:-1]), symbol, count, LoopKind.PARALLEL) as scope:
            nest.decode(scope, symbol.expr, run[:-1], [extents[axis] for axis in run[:-1]])
            scope.body.extend(accumulators)
            _chunk(nest, wide, run, symbol, accumulators)
            for accumulator, partial in zip(accumulators, partials, strict=True):
                name = nest.emitter.parameters.buffer(partial, partial.dtype, write=True)
                scope.body.append(Store(name, symbol.expr, Local(accumulator.name, accumulator.dtype)))
    first = nest.built(f"{title}_chunks", top.body, count, work, True)
    return [first, _second(second, sweeps, wide, partials, f"{title}_total")]


def _chunk(nest: Nest, wide: Sweep, run: Sequence[Symbol], chunk: Symbol, accumulators: Sequence[Accumulator]) -> None:
    """The vector loops over the points of a chunk: one for its part of each piece that is joined there."""
    found, size = row_pieces(nest, run[-1]), nest.emitter.parameters.index(nest.loops.extents[run[-1]])
    low, high = (chunk.expr * costs.CHUNK, minimum(chunk.expr * costs.CHUNK + costs.CHUNK, size))
    if len(run) > 1:
        low, high = ZERO, size
    if len(found) > 1 and all(each.op != "prod" for each in accumulators):  # its order matters, see Nest
        for piece in found:
            part(nest, run[-1], piece, low, high, lambda: nest.point(wide, accumulators))
        return
    inner, line = nest.new_axis(), nest.emitter.scopes[-1].body
    nest.emitter.parameters.name(run[-1], low + inner.expr)
    with nest.scope((run[-1],)) as body:
        nest.point(wide, accumulators)
    size = minimum(expr(costs.CHUNK), size - low) if len(run) == 1 else size
    line.append(Loop(inner, size, tuple(body.body), LoopKind.VECTOR))


def _second(nest: Nest, sweeps: Sequence[Sweep], wide: Sweep, partials: Sequence[Partial], title: str) -> Built:
    """The combination of partial results, in chunks of their own, and the sweeps without loops."""
    parameters = nest.emitter.parameters
    with nest.scope() as top:
        names = [nest.declare(reduce, nest.emitter.fresh("a")) for reduce in wide.reduces]
        top.body.extend(names)
        outer, inner = nest.new_axis(), nest.new_axis()
        count = parameters.index(partials[0].size)
        chunks = [Accumulator(nest.emitter.fresh("a"), name.op, name.dtype) for name in names]
        place = outer.expr * costs.CHUNK + inner.expr
        steps = []
        for name, chunk, partial in zip(names, chunks, partials, strict=True):
            buffer = parameters.buffer(partial, partial.dtype)
            steps.append(Accumulate(chunk.name, Load(buffer, place, name.dtype)))
        body: tuple[Statement, ...] = (
            *chunks,
            Loop(inner, minimum(expr(costs.CHUNK), count - outer.expr * costs.CHUNK), tuple(steps), LoopKind.VECTOR),
            *(Accumulate(n.name, Local(c.name, c.dtype)) for n, c in zip(names, chunks, strict=True)),
        )
        top.body.append(Loop(outer, ceildiv(count, costs.CHUNK), body, LoopKind.SERIAL))
        for reduce, name in zip(wide.reduces, names, strict=True):
            top.known[reduce] = nest.result(reduce, Local(name.name, name.dtype))
        for current in sweeps:
            if current is not wide:
                nest.run_sweep(current, (), 0, False)
    return nest.built(title, top.body, expr(1), partials[0].size, False)
