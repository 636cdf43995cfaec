"""Turns a scan into programs that go along rows in turns and carry what they have come to: a row each, or segments."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import torch

from framefuse.fuse.grouping.cells import Cell
from framefuse.fuse.nest.forms import primary
from framefuse.fuse.nest.gpu.decode import decode, decode_elements, gpu_nest
from framefuse.fuse.nest.gpu.pointwise import power
from framefuse.fuse.nest.gpu.rows import by_rows
from framefuse.fuse.nest.loop_order import memory_order, vector_axis
from framefuse.fuse.nest.nest import SCANS, Built, Nest, Partial
from framefuse.fuse.nest.sweeps import Sweep, sweeps_of
from framefuse.fuse.nest.values import cast
from framefuse.ir import costs
from framefuse.ir.dtypes import BOOL, INT64, DType
from framefuse.ir.loops import Accumulate, Accumulator, Apply, Const, Index, Load, Local, Loop, LoopKind, Store, Value
from framefuse.ir.numbers import Expr, Symbol, ceildiv, expr, minimum, product


def scan_kernels(nest: Nest, only: Sweep, title: str, work: Expr, units: int) -> list[Built]:
    """One kernel whose programs take a row each, or those that segments of rows take."""
    rows, line = _rows_of(nest)
    segment = segment_of(nest, rows, line, units)
    if segment is not None:
        return _Segments(nest, title, work, segment).kernels()

    def row() -> None:
        nest.begin_scans()
        symbol = nest.new_axis()
        with nest.loop(line, symbol, product(nest.loops.extents[axis] for axis in line), LoopKind.VECTOR):
            _elements(nest, line, symbol.expr)
            nest.point(only, ())

    return [by_rows(nest, rows, row, title, work)]


def _rows_of(nest: Nest) -> tuple[list[Symbol], list[Symbol]]:
    """The axes of rows, outermost first in memory, and those along them."""
    group, scanned = nest.group, nest.group.scans[0].inner
    rows = [axis for axis in memory_order(group.domain, primary(nest), group.hints) if axis not in scanned]
    return nest.join(rows), nest.join(scanned)


def _elements(nest: Nest, line: Sequence[Symbol], place: Expr) -> None:
    """Names the positions along a row in a count of its elements, from the end on where the scan goes that way."""
    extents = [nest.loops.extents[axis] for axis in line]
    if nest.group.backwards:
        place = nest.emitter.parameters.index(product(extents)) - 1 - place
    decode_elements(nest, place, line, extents)


def segment_of(nest: Nest, rows: Sequence[Symbol], line: Sequence[Symbol], units: int) -> int | None:
    """The length of the segments of a row, where whole rows keep too few of a GPU's units busy."""
    hints, extents = nest.hinted(), nest.loops.extents
    count = nest.hint(product(extents[axis] for axis in rows))
    length = nest.hint(product(extents[axis] for axis in line))
    lane = vector_axis([*rows, *line], nest.accesses, hints)
    lanes = 1 if lane in line else max(1, min(costs.GPU_SCAN_LANES, hints[lane]))
    programs = -(-count // lanes)
    least = max(costs.GPU_SEGMENT[1], costs.GPU_SEGMENT[0] // lanes)
    if not count or programs >= costs.GPU_SCAN_PROGRAMS * units or length < costs.GPU_SEGMENTS * least:
        return None
    return max(least, power(length * programs // (costs.GPU_SEGMENT_PROGRAMS * units)))


@dataclass
class _Segments:
    """A scan of rows in segments: what each segment comes to, a scan of that along each row, then each segment from
    what came before it on. A scan of what another one gives waits for that.
    """

    nest: Nest
    title: str
    work: Expr
    segment: int
    before: dict[Cell, Partial] = field(default_factory=dict)  # what rows have come to at the end of each segment

    def kernels(self) -> list[Built]:
        built: list[Built] = []
        depths = _depths(self.nest)
        for depth in range(1 + max(depths.values())):
            totals = {
                cell: Partial(cell.node.dtype, self.lines() * self.count(), self.nest.group.device)
                for cell in self.nest.group.scans
                if depths[cell] == depth
            }
            built.append(self.programs(depths, depth, totals))
            built.append(self.along(totals))
        built.append(self.programs(depths, 1 + max(depths.values()), {}))
        return built

    def fresh(self) -> tuple[Nest, list[Symbol], list[Symbol]]:
        """Another kernel of the same group."""
        nest = gpu_nest(self.nest.group, self.nest.strides_of)
        return nest, *_rows_of(nest)

    def lines(self) -> Expr:
        """The number of rows."""
        group = self.nest.group
        return product(group.axes[axis] for axis in group.domain if axis not in group.scans[0].inner)

    def length(self) -> Expr:
        """That of a row."""
        return product(self.nest.group.axes[axis] for axis in self.nest.group.scans[0].inner)

    def count(self) -> Expr:
        """The number of segments of a row."""
        return ceildiv(self.length(), self.segment)

    def programs(self, depths: Mapping[Cell, int], depth: int, totals: Mapping[Cell, Partial]) -> Built:
        """A program for each segment: what the scans at ``depth`` come to in it, or where there are no ``totals``, all
        that the kernel is for.
        """
        nest, rows, line = self.fresh()
        place, parameters = Symbol("@p0"), nest.emitter.parameters
        extents = nest.loops.extents
        extent = self.lines() * self.count()
        with nest.scope() as top:
            nest.emitter.floor = 1
            symbol = nest.new_axis()
            with nest.loop(tuple(rows), symbol, extent, LoopKind.PARALLEL) as scope:
                decode(nest, symbol.expr, [place, *rows], [self.count(), *(extents[axis] for axis in rows)])
                at, number = symbol.expr, parameters.index(place.expr)
                nest.begin_scans([cell for cell in nest.group.scans if depths[cell] < depth])
                for cell, running in nest.emitter.running.items():
                    scope.body.append(Accumulate(running.name, self.carried(nest, cell, at, number)))
                sums = {cell: self.total(nest, cell) for cell in totals}
                scope.body.extend(sums.values())
                inner = nest.new_axis()
                start = number * self.segment
                with nest.scope(tuple(line)) as body:
                    _elements(nest, line, start + inner.expr)
                    for cell, total in sums.items():
                        term = cast(nest.emitter.value(cell.kids[0]).value, total.dtype)
                        body.body.append(Accumulate(total.name, term))
                    if not totals:
                        nest.point(sweeps_of(nest.shape)[0], ())
                size = minimum(expr(self.segment), parameters.index(self.length()) - start)
                scope.body.append(Loop(inner, size, tuple(body.body), LoopKind.VECTOR))
                for cell, total in sums.items():
                    buffer = parameters.buffer(totals[cell], total.dtype, write=True)
                    scope.body.append(Store(buffer, at, Local(total.name, total.dtype)))
        title = f"{self.title}_totals" if totals else self.title
        return nest.built(title, top.body, extent, self.work, True)

    def total(self, nest: Nest, cell: Cell) -> Accumulator:
        """What a segment alone comes to."""
        return Accumulator(nest.emitter.fresh("a"), SCANS[cell.node.op], cell.node.dtype)

    def carried(self, nest: Nest, cell: Cell, at: Expr, number: Expr) -> Value:
        """What the segments before ``number`` of the row have come to; ``at`` counts segments of all rows."""
        parameters, partial, dtype = nest.emitter.parameters, self.before[cell], cell.node.dtype
        behind = Apply("gt", (Index(number, INT64), Const(0, INT64)), BOOL)
        buffer = parameters.buffer(partial, dtype)
        come = Load(buffer, at - parameters.index(self.lines()), dtype, behind)
        return Apply("where", (behind, come, Const(identity(SCANS[cell.node.op], dtype), dtype)), dtype)

    def along(self, totals: Mapping[Cell, Partial]) -> Built:
        """The scan of the segments' totals along each row; what it gives is what later kernels begin with."""
        nest, _, _ = self.fresh()
        parameters, lines = nest.emitter.parameters, self.lines()
        one = lines.constant == 1

        def row(at: Expr) -> None:
            scope = nest.emitter.scopes[-1]
            running = {cell: Accumulator(nest.emitter.fresh("a"), SCANS[cell.node.op], cell.node.dtype, running=True)
                       for cell in totals}  # fmt: skip
            scope.body.extend(running.values())
            step = nest.new_axis()
            where = step.expr * parameters.index(lines) + at
            body: list[Accumulate | Store] = []
            for cell, partial in totals.items():
                name, dtype = running[cell].name, partial.dtype
                body.append(Accumulate(name, Load(parameters.buffer(partial, dtype), where, dtype)))
                self.before[cell] = Partial(dtype, partial.size, partial.device)
                buffer = parameters.buffer(self.before[cell], dtype, write=True)
                body.append(Store(buffer, where, Local(name, dtype)))
            scope.body.append(Loop(step, parameters.index(self.count()), tuple(body), LoopKind.VECTOR))

        title, size = f"{self.title}_along", lines * self.count()
        with nest.scope() as top:
            if one:
                row(expr(0))
                return nest.built(title, top.body, expr(1), size, False)
            nest.emitter.floor = 1
            symbol = nest.new_axis()
            with nest.loop((), symbol, lines, LoopKind.PARALLEL):
                row(symbol.expr)
        return nest.built(title, top.body, lines, size, True)


def _depths(nest: Nest) -> dict[Cell, int]:
    """How many scans, one of the result of another, each one of the kernel waits for."""
    depths: dict[Cell, int] = {}
    for cell in nest.shape.order:
        below = (depths[kid] + (kid.kind == "scan") for kid in cell.kids) if cell.kind != "load" else ()
        depths[cell] = max(below, default=0)
    return {cell: depths[cell] for cell in nest.group.scans}


def identity(op: str, dtype: DType) -> int | float:
    """What a scan begins with."""
    if op in ("sum", "prod"):
        start = int(op == "prod")
        return float(start) if dtype.is_float else start
    if dtype.is_float:
        return math.inf if op == "min" else -math.inf
    limits = torch.iinfo(dtype.torch)
    return int(limits.min if op == "max" else limits.max)
