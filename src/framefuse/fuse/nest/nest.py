"""Turns a loop nest under construction into a kernel: opening loops, decoding joined axes, sweeps over a row."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

from framefuse.fuse.addressing.layout import estimate
from framefuse.fuse.addressing.ranges import ZERO, address, row_major
from framefuse.fuse.addressing.strided import Strides
from framefuse.fuse.grouping.cells import Cell, Group, reduced_axes
from framefuse.fuse.nest.emitter import Emitter, Scope
from framefuse.fuse.nest.loop_order import Access, Loops, join_neighbours
from framefuse.fuse.nest.piece import Piece
from framefuse.fuse.nest.sweeps import Shape, Sweep, shape_axes
from framefuse.fuse.nest.values import Computed, cast, compute, exact
from framefuse.ir import costs
from framefuse.ir.dtypes import BOOL, INT64, DType
from framefuse.ir.graph import Node
from framefuse.ir.loops import (
    Accumulate,
    Accumulator,
    Index,
    Kernel,
    Let,
    Local,
    Loop,
    LoopKind,
    Scratch,
    Statement,
    Store,
    Value,
)
from framefuse.ir.numbers import Expr, Real, Symbol, ceildiv, expr, minimum, product

SCANS = {"cumsum": "sum", "cumprod": "prod", "cummax": "max", "cummin": "min", "logcumsumexp": "logaddexp"}
ACCUMULATORS = {"amax": "max", "amin": "min"}


@dataclass(frozen=True, slots=True)
class Built:
    """A kernel with what it is called with; ``buffers`` are nodes or partial results."""

    kernel: Kernel
    buffers: tuple[object, ...]
    numbers: tuple[Expr | Real, ...]
    extent: Expr
    work: Expr
    parallel: bool


@dataclass(frozen=True, slots=True, eq=False)
class Partial:
    """Memory for the sums of chunks between the two kernels of a large reduction."""

    dtype: DType
    size: Expr
    device: str = "cpu"


class Nest:
    """A kernel under construction for ``group``. With ``reads_stored`` a later sweep may load what an earlier one has
    stored. ``cut`` says in which pieces the innermost loop of a sweep is written.
    """

    cut: Callable[[Nest, Symbol, bool], Sequence[Piece]] | None = None

    def __init__(
        self, group: Group, shape: Shape, strides_of: Callable[[Node], Strides], reads_stored: bool = True
    ) -> None:
        self.group = group
        self.shape = shape
        self.strides_of = strides_of
        self.emitter = Emitter(shape, strides_of)
        self.loops = Loops(list(group.axes), dict(group.axes), set())
        self.accesses = list(_accesses(shape, strides_of))
        self.expressions = list(dict.fromkeys(access.address for access in self.accesses))
        self.axis_count = 0
        self.reads_stored = reads_stored
        for cell in shape.order:
            for kid in cell.kids if cell.kind != "load" else ():
                self.emitter.uses[kid] = self.emitter.uses.get(kid, 0) + 1
        for cell in group.roots.values():
            self.emitter.uses[cell] = self.emitter.uses.get(cell, 0) + 1

    def hint(self, value: Expr) -> int:
        """The value for the recorded sizes."""
        return estimate(value, self.group.hints)

    def hinted(self) -> dict[Symbol, int]:
        """The recorded extent of each axis."""
        return {axis: self.hint(extent) for axis, extent in self.loops.extents.items()}

    def join(self, run: Sequence[Symbol]) -> list[Symbol]:
        """Joins neighbouring axes of a run of loops."""
        left = join_neighbours(self.loops, run, self.expressions)
        for axis in self.loops.absorbed:
            self.emitter.parameters.name(axis, ZERO)
        return left

    def new_axis(self) -> Symbol:
        """The next axis of the kernel."""
        self.axis_count += 1
        return Symbol(f"i{self.axis_count - 1}")

    @contextmanager
    def scope(self, axes: Sequence[Symbol] = ()) -> Iterator[Scope]:
        """A new innermost scope in which ``axes`` have values; its statements are the caller's to place."""
        outer = self.emitter.scopes[-1].axes if self.emitter.scopes else frozenset(self.loops.absorbed)
        scope = Scope(outer | frozenset(axes))
        self.emitter.scopes.append(scope)
        yield scope
        self.emitter.scopes.pop()

    @contextmanager
    def loop(self, axes: Sequence[Symbol], symbol: Symbol, extent: Expr, kind: LoopKind) -> Iterator[Scope]:
        """A loop, placed at the end of the innermost scope; ``extent`` is over the group's axes and graph symbols."""
        outer = self.emitter.scopes[-1]
        with self.scope(axes) as scope:
            yield scope
        outer.body.append(Loop(symbol, self.emitter.parameters.index(extent), tuple(scope.body), kind))

    @contextmanager
    def axis(self, axis: Symbol, kind: LoopKind, backwards: bool = False) -> Iterator[Scope]:
        """The loop over one axis of the group, from its end on if ``backwards``."""
        symbol = self.new_axis()
        place = symbol.expr
        if backwards:
            place = self.emitter.parameters.index(self.loops.extents[axis]) - 1 - place
        self.emitter.parameters.name(axis, place)
        with self.loop((axis,), symbol, self.loops.extents[axis], kind) as scope:
            yield scope

    @contextmanager
    def many(self, axes: Sequence[Symbol], kind: LoopKind) -> Iterator[None]:
        """One loop over the product of several axes, whose positions are decoded by division."""
        symbol = self.new_axis()
        extents = [self.loops.extents[axis] for axis in axes]
        with self.loop(axes, symbol, product(extents), kind) as scope:
            self.decode(scope, symbol.expr, axes, extents)
            yield

    def decode(self, scope: Scope, rest: Expr, axes: Sequence[Symbol], extents: Sequence[Expr]) -> None:
        """Names the positions of ``axes`` in a row-major count ``rest``, an expression over the kernel's axes."""
        parameters = self.emitter.parameters
        for number in range(len(axes)):
            value = rest // parameters.index(_divisor(product(extents[number + 1 :])))
            if number:
                value = value % parameters.index(_divisor(extents[number]))
            name = self.new_axis()
            scope.body.append(Let(name.name, Index(value, INT64)))
            parameters.name(axes[number], name.expr)

    @contextmanager
    def settled(self, piece: Piece) -> Iterator[None]:
        """What the tests of points are known to be while the loop of a piece is written."""
        self.emitter.settled.update(piece.outcomes)
        yield
        for test in piece.outcomes:
            del self.emitter.settled[test]

    # ---- sweeps over a row

    def declare(self, reduce: Cell, name: str) -> Accumulator:
        """The accumulator of a reduction."""
        node = reduce.node
        if node.op in ("argmax", "argmin"):
            return Accumulator(name, node.op, INT64, compute(node.inputs[0].dtype))
        if node.op in ("any", "all"):
            return Accumulator(name, node.op, BOOL)
        dtype = node.dtype if node.op in ("sum", "prod") else node.inputs[0].dtype
        return Accumulator(name, ACCUMULATORS.get(node.op, node.op), compute(dtype))

    def begin_scans(self, scans: Sequence[Cell] | None = None) -> None:
        """Declares the accumulators of scans at the end of the innermost scope: of the group's, if none are given."""
        for cell in self.group.scans if scans is None else scans:
            running = Accumulator(self.emitter.fresh("a"), SCANS[cell.node.op], cell.node.dtype, running=True)
            self.emitter.running[cell] = running
            self.emitter.scopes[-1].body.append(running)

    def result(self, reduce: Cell, value: Value) -> Computed:
        """What a reduction's accumulator means to the cells that use it."""
        dtype = reduce.node.dtype
        return Computed(value, dtype if compute(dtype) is not dtype else None)

    def accumulate(self, reduce: Cell, accumulator: Accumulator) -> Accumulate:
        """Adds the element at this point."""
        computed = self.emitter.value(reduce.kids[0])
        if accumulator.op not in ("argmax", "argmin"):
            return Accumulate(accumulator.name, cast(computed.value, accumulator.dtype))
        return Accumulate(accumulator.name, exact(computed), self.emitter.parameters.index(position_of(reduce)))

    def point(self, current: Sweep, accumulators: Sequence[Accumulator]) -> None:
        """The statements of a sweep at one point."""
        body = self.emitter.scopes[-1].body
        for reduce, accumulator in zip(current.reduces, accumulators, strict=True):
            body.append(self.accumulate(reduce, accumulator))
        for cell in current.saved:
            name, index, dtype = self.emitter.kept[cell]
            value = cast(self.emitter.value(cell).value, dtype)
            body.append(Store(name, self.emitter.parameters.index(index), value))
        self._read_before_roots(current)
        for cell in current.roots:
            self.emitter.store(cell)

    def _read_before_roots(self, current: Sweep) -> None:
        """Loads what was kept in the memory of a root that is about to be written, if it is read here."""
        written = {self.emitter.parameters.known(cell.node) for cell in current.roots}
        held = [
            cell
            for cell, (name, _, _) in self.emitter.kept.items()
            if name in written and cell in self.emitter.readable and cell not in current.roots
        ]
        if held and len(current.roots) > 1:
            read = self.emitter.read_by(current.roots)
            for cell in held:
                if cell in read:
                    self.emitter.load_kept(cell)

    def finish(self, current: Sweep, accumulators: Sequence[Accumulator]) -> None:
        """Makes the results of a sweep known to what follows."""
        scope = self.emitter.scopes[-1]
        for reduce, accumulator in zip(current.reduces, accumulators, strict=True):
            scope.known[reduce] = self.result(reduce, Local(accumulator.name, accumulator.dtype))
        self.emitter.readable.update(current.saved)
        for cell in current.roots:
            index = address(cell.index, self.strides_of(cell.node))
            # A value that is the same along an axis is not read along it: that would be behind where others need it.
            along = shape_axes(self.shape, set(index.symbols)) <= self.shape.axes[cell]
            if current.inner and self.reads_stored and along:
                name = self.emitter.parameters.buffer(cell.node, cell.node.dtype)
                self.emitter.kept[cell] = (name, index, cell.node.dtype)
                self.emitter.readable.add(cell)

    def run_sweep(self, current: Sweep, run: Sequence[Symbol], chunk: int, vector: bool) -> None:
        """The loops of one sweep over ``run``; the last is a vector loop if ``vector``. Float sums go through a second
        accumulator for each ``chunk`` elements (0: never).
        """
        names = [self.declare(reduce, self.emitter.fresh("a")) for reduce in current.reduces]
        self.emitter.scopes[-1].body.extend(names)
        kind = LoopKind.VECTOR if vector else LoopKind.SERIAL
        if not run:
            with self.scope() as scope:
                self.point(current, names)
            self.emitter.scopes[-1].body.extend(scope.body)
        else:
            self._walk(current, list(run), names, chunk, kind)
        self.finish(current, names)

    def _walk(
        self, current: Sweep, run: list[Symbol], names: Sequence[Accumulator], chunk: int, kind: LoopKind
    ) -> None:
        if len(run) > 1:
            with self.axis(run[0], LoopKind.SERIAL):
                self._walk(current, run[1:], names, chunk, kind)
            return
        found = self._pieces(run[0], names, kind)
        for piece in found:
            with self.settled(piece):
                count = piece.length.constant
                sums = chunk and any(name.op == "sum" and name.dtype.is_float for name in names)
                if sums and (count is None or count > chunk):
                    self._chunks(current, run[0], piece, names, chunk, kind)
                else:
                    few = len(found) > 1 and count is not None and count < costs.CPU_LEAST
                    self._turns(current, run[0], piece, names, LoopKind.SERIAL if few else kind)

    def _pieces(self, axis: Symbol, names: Sequence[Accumulator], kind: LoopKind) -> Sequence[Piece]:
        """The pieces of the innermost loop of a sweep; one where the order of its points matters (a product of pieces
        may leave the range of floats where that of all does not).
        """
        if self.cut is None or any(name.running or name.op in ("argmax", "argmin", "prod") for name in names):
            return (Piece(ZERO, self.loops.extents[axis]),)
        return self.cut(self, axis, kind.vector)

    def _turns(
        self, current: Sweep, axis: Symbol, piece: Piece, names: Sequence[Accumulator], kind: LoopKind
    ) -> None:
        symbol = self.new_axis()
        self.emitter.parameters.name(axis, symbol.expr + self.emitter.parameters.index(piece.first))
        with self.loop((axis,), symbol, piece.length, kind):
            self.point(current, names)

    def _chunks(
        self, current: Sweep, axis: Symbol, piece: Piece, names: Sequence[Accumulator], chunk: int, kind: LoopKind
    ) -> None:
        """``for c in ceildiv(extent, chunk): partial = 0; for i in min(chunk, extent - c * chunk): ...``."""
        count, inner, parameters = self.new_axis(), self.new_axis(), self.emitter.parameters
        with self.loop((), count, ceildiv(piece.length, chunk), LoopKind.SERIAL) as scope:
            partial = [self.partial_of(name) for name in names]
            scope.body.extend(p for p, name in zip(partial, names, strict=True) if p is not name)
            parameters.name(axis, parameters.index(piece.first) + count.expr * chunk + inner.expr)
            with self.scope((axis,)) as body:
                self.point(current, partial)
            size = minimum(expr(chunk), parameters.index(piece.length) - count.expr * chunk)
            scope.body.append(Loop(inner, size, tuple(body.body), kind))
            for p, name in zip(partial, names, strict=True):
                if p is not name:
                    scope.body.append(Accumulate(name.name, Local(p.name, p.dtype)))

    def partial_of(self, name: Accumulator) -> Accumulator:
        """A second accumulator for a chunk of a float sum; the same one for the rest."""
        if name.op == "sum" and name.dtype.is_float:
            return Accumulator(self.emitter.fresh("a"), name.op, name.dtype)
        return name

    def keep_rows(self, sweeps: Sequence[Sweep], may_scratch: bool) -> None:
        """Chooses where each saved cell lives until the sweep that reads it: in the memory of a root that is written
        last, else in a private row; where neither is possible it is computed again.
        """
        taken: set[Cell] = set()
        for current in sweeps:
            for cell in tuple(current.saved):
                dtype = compute(cell.node.dtype)
                root = next((r for r in _last_roots(sweeps, current) if r.node.dtype is dtype and r not in taken), None)
                if root is not None:
                    taken.add(root)
                    name = self.emitter.parameters.buffer(root.node, dtype, write=True)
                    self.emitter.kept[cell] = (name, address(root.index, self.strides_of(root.node)), dtype)
                    continue
                axes = [axis for axis in self.group.axes if axis in current.inner and axis not in self.loops.absorbed]
                sizes = [self.loops.extents[axis] for axis in axes]
                size = product(sizes)
                if not may_scratch or self.hint(size) > costs.SCRATCH:
                    current.saved.remove(cell)
                    continue
                name = self.emitter.fresh("s")
                self.emitter.scopes[-1].body.append(Scratch(name, dtype, self.emitter.parameters.index(size)))
                self.emitter.kept[cell] = (name, address([axis.expr for axis in axes], row_major(sizes)), dtype)

    def built(
        self,
        title: str,
        body: Sequence[Statement],
        extent: Expr,
        work: Expr,
        parallel: bool,
        radices: Sequence[Expr] = (),
    ) -> Built:
        """The kernel with its parameters as they were used; ``radices`` are sizes that positions are divided by, of
        which those that were 1 may be so again.
        """
        parameters = self.emitter.parameters
        inner_extent = parameters.index(extent)
        lines = tuple(dict.fromkeys(cell.node.line for cell in self.shape.order if cell.node.line is not None))
        single = [radix for radix in radices if radix.constant is None and self.hint(radix) == 1]
        ones = tuple(dict.fromkeys(parameters.number(radix) for radix in single))
        numbers = tuple(parameters.numbers)
        kernel = Kernel(title, parameters.declared(), numbers, tuple(body), inner_extent, lines, ones=ones)
        return Built(kernel, tuple(parameters.buffers), tuple(parameters.values), extent, work, parallel)


def position_of(reduce: Cell) -> Expr:
    """The index that argmax reports: along its axis, or flat over all that it reduces."""
    source = reduce.node.inputs[0]
    reduced = reduced_axes(reduce.node)
    sizes = [source.shape[axis] for axis in reduced]
    return address(reduce.inner_index, row_major(sizes))


def _last_roots(sweeps: Sequence[Sweep], current: Sweep) -> Sequence[Cell]:
    same = [p for p in sweeps if p.inner == current.inner]
    return same[-1].roots if same[-1] is not current else ()


def _accesses(shape: Shape, strides_of: Callable[[Node], Strides]) -> Iterator[Access]:
    for cell in shape.order:
        if cell.kind == "load":
            yield Access(address(cell.index, strides_of(cell.node)), 1)
        elif cell.node.op == "iota":
            yield Access(cell.index[0], 0)
        elif cell.kind == "reduce" and cell.node.op in ("argmax", "argmin"):
            yield Access(position_of(cell), 0)
        for tests in (cell.mask, *cell.tests):
            for test in tests:
                yield Access(test, 0)
    for cell in shape.group.roots.values():
        yield Access(address(cell.index, strides_of(cell.node)), 2)


def _divisor(extent: Expr) -> Expr:
    """An extent to divide by; where it is the constant zero the loop never turns."""
    return expr(1) if extent.constant == 0 else extent
