"""Turns a reduction to few results into two kernels: chunks of rows, then their combination for each row."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from framefuse.fuse.grouping.cells import Cell
from framefuse.fuse.nest.forms import Runs
from framefuse.fuse.nest.gpu.decode import decode, decode_elements, gpu_nest, lanes_of
from framefuse.fuse.nest.gpu.pointwise import power
from framefuse.fuse.nest.gpu.rows import sweep
from framefuse.fuse.nest.nest import Built, Nest, Partial
from framefuse.fuse.nest.sweeps import Sweep
from framefuse.fuse.nest.values import cast, exact
from framefuse.ir import costs
from framefuse.ir.dtypes import INT64, DType
from framefuse.ir.loops import Accumulate, Accumulator, Apply, Index, Let, Load, Local, Loop, LoopKind, Store, Value
from framefuse.ir.numbers import Expr, Symbol, ceildiv, expr, minimum, product


@dataclass(frozen=True, slots=True)
class Running:
    """A reduction over the elements of a chunk: its accumulator, and what else the second kernel needs of each chunk:
    for a position the extreme that lies there, for squared distances from the mean the sum, which another reduction
    (``shared``) may have.
    """

    reduce: Cell
    accumulator: Accumulator
    beside: Accumulator | None
    shared: bool = False

    @property
    def kept(self) -> tuple[Accumulator, ...]:
        """What the second kernel needs of each chunk, and no other reduction keeps."""
        return (self.accumulator,) if self.beside is None or self.shared else (self.accumulator, self.beside)

    def more(self, nest: Nest) -> Iterator[Accumulate]:
        """The statement at a point that the sweep itself does not have."""
        if self.beside is not None and not self.shared:
            value = nest.emitter.value(self.reduce.kids[0])
            whole = self.accumulator.of is None
            yield Accumulate(self.beside.name, cast(value.value, self.beside.dtype) if whole else exact(value))


def _running(nest: Nest, reduces: Sequence[Cell]) -> list[Running]:
    declared = [(reduce, nest.declare(reduce, nest.emitter.fresh("a"))) for reduce in reduces]
    sums = {(reduce.kids[0], each.dtype): each for reduce, each in declared if each.op == "sum"}
    running: list[Running] = []
    for reduce, accumulator in declared:
        if accumulator.of is not None:
            beside = Accumulator(nest.emitter.fresh("a"), accumulator.op.removeprefix("arg"), accumulator.of)
            running.append(Running(reduce, accumulator, beside))
        elif accumulator.op == "squares":
            known = sums.get((reduce.kids[0], accumulator.dtype))
            beside = known or Accumulator(nest.emitter.fresh("a"), "sum", accumulator.dtype)
            running.append(Running(reduce, accumulator, beside, known is not None))
        else:
            running.append(Running(reduce, accumulator, None))
    return running


def chunk_of(
    nest: Nest, sweeps: Sequence[Sweep], rows: Sequence[Symbol], vector: Symbol | None, units: int
) -> int | None:
    """Of how many elements each program of a first kernel takes a sum, where rows alone keep too few of a GPU's units
    busy.
    """
    wide = [p for p in sweeps if p.inner]
    if len(wide) != 1 or wide[0].level or not wide[0].reduces:
        return None
    count = nest.hint(product(nest.loops.extents[axis] for axis in rows))
    length = nest.hint(product(nest.group.axes[axis] for axis in wide[0].inner))
    lanes = 1 if vector is None else lanes_of(nest, rows)
    programs = -(-count // max(1, min(costs.GPU_LANES, lanes)))
    least = costs.GPU_CHUNK[vector is not None]
    busy = enough = costs.GPU_PROGRAMS * units
    if length >= costs.GPU_LONG_ROW:
        enough = costs.GPU_PROGRAMS_OF_LONG_ROWS * units
    if programs * 2 > enough or length < 4 * least or length * max(1, count) < 4 * costs.GPU_ALONE:
        return None
    chunk = max(least, power(length * max(1, programs) // busy))
    most = costs.GPU_CHUNK_MOST // (1 + any(reduce.node.op in ("argmax", "argmin") for reduce in wide[0].reduces))
    return min(chunk, most) if vector is None else chunk


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
    running = _running(nest, wide.reduces)
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
                body.body.extend(term for each in running for term in each.more(nest))
            size = minimum(expr(chunk), parameters.index(length) - start)
            scope.body.append(Loop(inner, size, tuple(body.body), LoopKind.VECTOR))
            for accumulator, partial in zip(kept, partials, strict=True):
                buffer = parameters.buffer(partial, partial.dtype, write=True)
                scope.body.append(Store(buffer, symbol.expr, Local(accumulator.name, accumulator.dtype)))
    first = nest.built(f"{title}_chunks", top.body, lines * count, work, True)
    by_accumulator = dict(zip((accumulator.name for accumulator in kept), partials, strict=True))
    parts = [[by_accumulator[a.name] for a in (each.accumulator, each.beside) if a is not None] for each in running]
    return [first, _second(second, sweeps, wide, parts, rows, (length, chunk), f"{title}_total")]


def _second(
    nest: Nest,
    sweeps: Sequence[Sweep],
    wide: Sweep,
    parts: Sequence[Sequence[Partial]],
    rows: Sequence[Symbol],
    cut: tuple[Expr, int],
    title: str,
) -> Built:
    """The combination of partial results and the sweeps without loops. ``parts`` are what each reduction has of a
    chunk; ``cut`` is the length of a row and that of a chunk.
    """
    extents = nest.loops.extents
    lines = product(extents[axis] for axis in rows)
    size = parts[0][0].size

    def row(at: Expr) -> None:
        _Total(nest, parts, cut, lines, at).combine(wide)
        for current in sweeps:
            if current is not wide:
                sweep(nest, current, ())

    with nest.scope() as top:
        if not rows:
            row(expr(0))
            return nest.built(title, top.body, expr(1), size, False)
        nest.emitter.floor = 1
        symbol = nest.new_axis()
        with nest.loop(tuple(rows), symbol, lines, LoopKind.PARALLEL):
            decode(nest, symbol.expr, rows, [extents[axis] for axis in rows])
            row(symbol.expr)
    return nest.built(title, top.body, lines, size, True)


@dataclass(frozen=True, slots=True)
class _Total:
    """The combination of the chunks of the row ``at`` of ``lines``."""

    nest: Nest
    parts: Sequence[Sequence[Partial]]
    cut: tuple[Expr, int]
    lines: Expr
    at: Expr

    def combine(self, wide: Sweep) -> None:
        """Makes the results known to what follows."""
        nest, scope = self.nest, self.nest.emitter.scopes[-1]
        running = _running(nest, wide.reduces)
        step = nest.new_axis()
        terms: list[Accumulate] = []
        for each, partials in zip(running, self.parts, strict=True):
            if each.accumulator.of is not None:  # which chunk has the extreme; its position is read after the loop
                terms.append(Accumulate(each.accumulator.name, self.load(partials[1], step.expr), step.expr))
            elif each.beside is None:
                terms.append(Accumulate(each.accumulator.name, self.load(partials[0], step.expr)))
            elif not each.shared:
                terms.append(Accumulate(each.beside.name, self.load(partials[1], step.expr)))
        fed = {term.name for term in terms}
        held = [each for one in running for each in (one.accumulator, one.beside) if each is not None]
        scope.body += [each for each in held if each.name in fed]
        self.loop(step, terms)
        for each, partials in zip(running, self.parts, strict=True):
            value: Value = Local(each.accumulator.name, each.accumulator.dtype)
            if each.accumulator.of is not None:
                chunk = nest.new_axis()
                scope.body.append(Let(chunk.name, value))
                value = self.load(partials[0], chunk.expr)
            elif each.beside is not None:
                value = self.squares(each.beside, *partials)
            scope.known[each.reduce] = nest.result(each.reduce, value)

    def squares(self, total: Accumulator, squares: Partial, sums: Partial) -> Value:
        """The squared distances from the mean of a row: those of each chunk from its own mean, and those of the means
        from the row's for each element.
        """
        nest, scope, dtype = self.nest, self.nest.emitter.scopes[-1], total.dtype
        length, chunk = self.cut
        mean, step = nest.emitter.fresh("v"), nest.new_axis()
        whole = nest.emitter.parameters.index(length)
        scope.body.append(Let(mean, Apply("div", (Local(total.name, dtype), _number(whole, dtype)), dtype)))
        count = _number(minimum(expr(chunk), whole - step.expr * chunk), dtype)
        own = Apply("div", (self.load(sums, step.expr), count), dtype)
        away = Apply("sub", (own, Local(mean, dtype)), dtype)
        between = Apply("mul", (count, Apply("mul", (away, away), dtype)), dtype)
        result = Accumulator(nest.emitter.fresh("a"), "sum", dtype)
        scope.body.append(result)
        term = Apply("add", (self.load(squares, step.expr), between), dtype)
        self.loop(step, [Accumulate(result.name, term)])
        return Local(result.name, dtype)

    def loop(self, step: Symbol, terms: Sequence[Accumulate]) -> None:
        """Over the chunks of the row."""
        length, chunk = self.cut
        count = self.nest.emitter.parameters.index(ceildiv(length, chunk))
        self.nest.emitter.scopes[-1].body.append(Loop(step, count, tuple(terms), LoopKind.VECTOR))

    def load(self, partial: Partial, chunk: Expr) -> Load:
        """What a chunk of the row gave."""
        parameters = self.nest.emitter.parameters
        where = chunk * parameters.index(self.lines) + self.at
        return Load(parameters.buffer(partial, partial.dtype), where, partial.dtype)


def _number(count: Expr, dtype: DType) -> Value:
    return cast(Index(count, INT64), dtype)
