"""Turns the statements of a loop nest into LLVM control flow: serial loops, vector loops with unrolling and tails."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from framefuse.codegen.llvm import reductions
from framefuse.codegen.llvm.builder import Builder, Reg, Region
from framefuse.codegen.llvm.digits import Digits, divisions
from framefuse.codegen.llvm.line_tests import lanes_at, lanes_within
from framefuse.codegen.llvm.memory import STORED, Area, Memory
from framefuse.codegen.llvm.reductions import Parts, Running
from framefuse.codegen.llvm.shape import Shape, vector_shape
from framefuse.codegen.llvm.transposes import transposed_copy, write_blocks
from framefuse.codegen.llvm.values import STEPS, Group, Lanes, Node, Scope, Values
from framefuse.codegen.unsupported import Unsupported
from framefuse.errors import CompilerBug
from framefuse.ir.dtypes import INT64
from framefuse.ir.loops import Accumulate, Accumulator, AtomicAdd, Check, Let, Loop, LoopKind, Scratch, Statement, Store
from framefuse.ir.loops.walk import statements
from framefuse.ir.numbers import Symbol

ARG = ("argmax", "argmin")
# Scratch rows up to this many bytes live on the stack, longer ones are allocated.
STACK_ROW = 32768
# Terms of a float sum that are added in order by a serial loop.
BLOCK = 64


@dataclass(eq=False, slots=True)
class Heap:
    """A scratch row that may have been allocated, to be freed at the end of its statements."""

    pointer: Reg


class Loops:
    """Writes statements at the point where ``values`` stands."""

    def __init__(self, b: Builder, memory: Memory, values: Values, entry: Region, fail: Callable[[Reg], None]) -> None:
        self.b, self.memory, self.values, self.entry, self.fail = b, memory, values, entry, fail
        self.running: dict[str, Running] = {}
        self.rows: set[str] = set()  # scratch rows
        self.heaps: list[Heap] = []  # of the statements that are written
        self.limits = (b.const(0, "i64"), b.const(1, "i64"))

    def statements(self, body: Sequence[Statement]) -> None:
        heaps: list[Heap] = []
        self.heaps, outer = heaps, self.heaps
        written = 0
        for place, statement in enumerate(body):
            if place < written:
                continue
            row = stored_row(body, place, self.values.lanes)
            if row:
                self.values.write_row(row[0].buffer, row[0].index, [self.values.node(each.value) for each in row])
                written = place + len(row)
            else:
                STATEMENTS[type(statement)](self, statement)
        self.heaps = outer
        for heap in heaps:
            self.b.call_void("free", [heap.pointer])

    def store(self, statement: Store) -> None:
        self.values.write(statement.buffer, statement.index, self.values.node(statement.value))

    def atomic_add(self, statement: AtomicAdd) -> None:
        raise Unsupported("an atomic sum")

    def let(self, statement: Let) -> None:
        node = self.values.node(statement.value)
        self.values.spread(node)
        for group in self.values.groups if node.varying else range(1):
            self.values.get(node, group)
        self.values.locals[statement.name] = lambda: node
        if node.dtype is INT64:
            self.values.bind(Symbol(statement.name), node)

    def check(self, statement: Check) -> None:
        for ok, on in self.values.truth(statement.ok):
            wrong = self.b.bit_not(ok)
            self.fail(wrong if on is None else self.b.bit_and(wrong, on))

    # ---- accumulators

    def accumulator(self, statement: Accumulator) -> None:
        if statement.op == "squares":
            raise Unsupported("a mean and the distances from it in one pass")
        lanes = self.values.lanes
        count = lanes.count if lanes else 0
        compared = (statement.of or statement.dtype) if statement.op.startswith("arg") else statement.dtype
        groups = [reductions.identity(self.b, statement.op, compared, count) for _ in self.values.groups]
        running = Running(statement, groups, count, bool(lanes), self.values.depth)
        self.running[statement.name] = running
        self.values.locals[statement.name] = lambda: self.finished(running)

    def accumulate(self, statement: Accumulate) -> None:
        running, values = self.running[statement.name], self.values
        node = values.node(statement.value)
        values.spread(node)
        position = values.index(statement.index) if statement.index is not None and running.op in ARG else None
        wide = bool(running.lanes)
        for group in range(len(running.groups)):
            at = values.get(position, group, wide) if position is not None else None
            more = reductions.term(self.b, running.op, running.compared, values.get(node, group, wide), at)
            mask = values.lanes.groups[group].mask if values.lanes and not running.own else None
            running.groups[group] = reductions.accumulate(
                self.b, running.op, running.compared, running.groups[group], more, mask
            )
        self.changed(running)

    def changed(self, running: Running) -> None:
        running.version += 1
        running.level = self.values.depth

    def finished(self, running: Running) -> Node:
        """The accumulator's value here, as a node."""
        parts = list(running.groups)

        def compute(group: int) -> Reg:
            return reductions.result(self.b, running.op, running.compared, parts[group])

        node = self.values.fresh("computed", running.accumulator.dtype, compute, running.level, bool(running.lanes))
        for group in range(len(parts)):
            self.values.get(node, group)
        version = running.version
        name = running.accumulator.name
        self.values.locals[name] = lambda: node if version == running.version else self.finished(running)
        return node

    def fed(self, body: Sequence[Statement]) -> list[Running]:
        """The accumulators declared outside of ``body`` that it feeds."""
        names = dict.fromkeys(s.name for s in statements(body) if isinstance(s, Accumulate))
        own = {s.name for s in statements(body) if isinstance(s, Accumulator)}
        return [self.running[name] for name in names if name not in own]

    # ---- loops

    def loop(self, statement: Loop) -> None:
        values = self.values
        if statement.kind.parallel:
            if values.depth:
                raise CompilerBug("a parallel loop inside another loop")
            start, end = self.limits
        else:
            start, end = self.b.const(0, "i64"), values.get(values.index(statement.extent))
        stores = {s.buffer for s in statements(statement.body) if isinstance(s, Store)} & self.memory.areas.keys()
        for name in stores:
            self.memory.stored(name, values.depth + 1)
        copy = transposed_copy(statement, self.rows) if self.rows and values.lanes is None else None
        with values.names():
            if copy is not None:
                write_blocks(self.b, self.memory, values, copy, lambda: self.serial(statement, start, end, []))
            elif statement.kind.vector and values.lanes is None:
                self.vector(statement, start, end)
            else:
                self.serial(statement, start, end, self.fed(statement.body))
        for name in stores:
            self.memory.stored(name, values.depth)
        for running in self.fed(statement.body):
            self.changed(running)

    def serial(self, statement: Loop, start: Reg, end: Reg, fed: list[Running], scope: Scope | None = None) -> None:
        """One turn an iteration; ``scope`` is given when this is the scalar tail of a vector loop.

        Float sums are taken in blocks of BLOCK terms, whose sums are added after: adding thousands of terms to one
        register in order would have ten times the error of eager's sums.
        """
        values = self.values
        before = None if scope else Region("")
        scope = scope or Scope(before or Region(""))
        sums = [r for r in fed if r.op == "sum" and r.compared.is_float and not r.accumulator.running]

        def turn(index: Reg) -> None:
            values.bind(statement.axis, values.fresh("place", INT64, lambda group: index, values.depth))
            self.statements(statement.body)

        constant = statement.extent.constant
        if not sums or statement.kind.parallel or (constant is not None and constant <= BLOCK):
            digits = self.digits(statement) if before is not None else None
            self.turns(start, end, 1, fed, scope, before, turn, digits)
            self.values.digits.clear()
            return

        def block(index: Reg) -> None:
            b = self.b
            totals = [r.groups for r in sums]
            for r in sums:
                r.groups = [reductions.identity(b, r.op, r.compared, r.lanes) for _ in r.groups]
            last = b.intrinsic("smin", b.add(index, b.const(BLOCK, "i64")), end)
            inner = Region("")
            self.turns(index, last, 1, fed, Scope(inner), inner, turn)
            for r, groups in zip(sums, totals, strict=True):
                pairs = zip(groups, r.groups, strict=True)
                r.groups = [reductions.joined(b, r.op, r.compared, total, part) for total, part in pairs]

        self.turns(start, end, BLOCK, fed, scope, before, block)

    def digits(self, statement: Loop) -> Digits | None:
        """What the rows of a parallel loop divide the axis by, as digits; inner loops are short or divide nothing."""
        if not statement.kind.parallel:
            return None
        found = divisions(statement.axis, statement.body, set(self.values.symbols))
        return Digits(self.b, self.values, found) if found else None

    def turns(
        self,
        start: Reg,
        end: Reg,
        step: int,
        fed: list[Running],
        scope: Scope,
        before: Region | None,
        turn: Callable[[Reg], None],
        digits: Digits | None = None,
    ) -> None:
        """A counted loop that carries the parts of the accumulators ``fed`` in it, and the ``digits`` of its axis."""
        values = self.values
        shapes = [[len(parts) for parts in running.groups] for running in fed]
        carried = [part for running in fed for parts in running.groups for part in parts]
        count = len(carried)
        if digits is not None:
            assert before is not None
            carried += digits.starts(start, before)
        scope.memo = {}

        def body(index: Reg, flat: list[Reg]) -> list[Reg]:
            _unflatten(fed, shapes, flat[:count])
            values.enter(scope)
            if digits is not None:
                digits.bind(flat[count:])
            turn(index)
            values.leave()
            after = [part for running in fed for group in running.groups for part in group]
            return after if digits is None else [*after, *digits.following()]

        _unflatten(fed, shapes, self.b.counted(start, end, step, carried, body, before)[:count])

    def vector(self, statement: Loop, start: Reg, end: Reg) -> None:
        """Main loop of several vectors a turn and a masked loop of single ones; or the masked loop alone; or, where
        the machine cannot mask, main loop, a loop of single vectors, and a masked or a scalar loop.
        """
        b = self.b
        shape = vector_shape(statement, b.target, self.values.depth > 0)
        fed = self.fed(statement.body)
        before = [list(running.groups[0]) for running in fed]
        scope = Scope(Region(""))
        inside = b.compare("slt", start, end)
        otherwise = [part for parts in before for part in parts]

        def loops() -> list[Reg]:
            scope.before.end = b.region.end
            b.region.append(scope.before)
            after = self._vector_loops(statement, start, end, shape, fed, scope, before)
            return [part for parts in after for part in parts]

        flat = b.guarded(inside, otherwise, loops)
        _unflatten(fed, [[len(parts)] for parts in before], flat)

    def _vector_loops(
        self, statement: Loop, start: Reg, end: Reg, shape: Shape, fed: list[Running], scope: Scope, before: list[Parts]
    ) -> list[Parts]:
        b, values = self.b, self.values
        constant = statement.extent.constant if statement.kind is LoopKind.VECTOR else None
        for running in fed:
            running.lanes = shape.lanes
            running.groups = [self._start(running, shape) for _ in range(shape.unroll)]
        if shape.main:
            step = shape.lanes * shape.unroll
            whole = b.bit_and(b.sub(end, start), b.const(-step, "i64"))
            middle = b.add(start, whole)
            self._lane_loop(statement, start, middle, shape.unroll, None, shape, fed, scope)
            for running in fed:
                running.groups = [reductions.tree(b, running.op, running.compared, running.groups)]
            start = middle
        if shape.singles:  # what is left may be most of a short row
            middle = b.add(start, b.bit_and(b.sub(end, start), b.const(-shape.lanes, "i64")))
            self._lane_loop(statement, start, middle, 1, None, shape, fed, scope)
            for running in fed:
                running.groups = [reductions.tree(b, running.op, running.compared, running.groups)]
            start = middle
        if shape.main and not shape.masked:
            after = self._fold(fed, before)
            self._unflatten_scalars(fed, after)
            saved = values.lanes
            values.lanes = None
            self.serial(statement, start, end, fed, scope)
            values.lanes = saved
            return [running.groups[0] for running in fed]
        if not (constant is not None and shape.main and constant % (shape.lanes * shape.unroll) == 0):
            self._lane_loop(statement, start, end, 1 if shape.main else shape.unroll, end, shape, fed, scope)
            for running in fed:
                running.groups = [reductions.tree(b, running.op, running.compared, running.groups)]
        after = self._fold(fed, before)
        self._unflatten_scalars(fed, after)
        return after

    def _start(self, running: Running, shape: Shape) -> Parts:
        return reductions.identity(self.b, running.op, running.compared, shape.lanes)

    def _fold(self, fed: list[Running], before: list[Parts]) -> list[Parts]:
        """The scalar parts after the vector loop: what there was, and the lanes' share."""
        b = self.b
        return [
            reductions.joined(b, r.op, r.compared, parts, reductions.folded(b, r.op, r.compared, r.groups[0]))
            for r, parts in zip(fed, before, strict=True)
        ]

    def _unflatten_scalars(self, fed: list[Running], after: list[Parts]) -> None:
        for running, parts in zip(fed, after, strict=True):
            running.lanes, running.groups = 0, [parts]

    def _lane_loop(
        self,
        statement: Loop,
        start: Reg,
        end: Reg,
        unroll: int,
        limit: Reg | None,
        shape: Shape,
        fed: list[Running],
        scope: Scope,
    ) -> None:
        """A loop over vectors of the axis; with ``limit`` the lanes at and beyond it are off."""
        b, values, count = self.b, self.values, shape.lanes

        def turn(index: Reg) -> None:
            starts = [index] + [b.op("i64", 0, f"add nsw i64 {index.name}, {k * count}") for k in range(1, unroll)]
            groups = [Group(s) if limit is None else self._first_lanes(limit, s, count) for s in starts]
            values.lanes = Lanes(statement.axis, values.depth, count, groups)
            values.bind(statement.axis, values.fresh("axis", INT64, None, values.depth, varying=True))
            self.statements(statement.body)
            values.lanes = None

        saved = values.lanes
        self.turns(start, end, count * unroll, fed, scope, None, turn)
        values.lanes = saved

    def _first_lanes(self, limit: Reg, start: Reg, count: int) -> Group:
        """A vector whose lanes are on where their iteration comes before ``limit``."""
        left = lanes_within(self.b, self.b.sub(limit, start), count)
        return Group(start, lanes_at(self.b, "ult", left, count), left)

    # ---- scratch rows

    def scratch(self, statement: Scratch) -> None:
        """Memory for a row: on the stack when it is short, else allocated for these statements."""
        b, values, dtype = self.b, self.values, statement.dtype
        if values.lanes is not None:
            raise CompilerBug("a scratch row inside a vector loop")
        constant = statement.size.constant
        room = STACK_ROW // dtype.size if constant is None else max(constant, 1)
        here, b.region = b.region, self.entry
        on_stack = constant is None or constant * dtype.size <= STACK_ROW
        base = b.op("ptr", 0, f"alloca [{room if on_stack else 1} x {STORED[dtype.name]}], align 64")
        b.region = here
        if constant is None or not on_stack:
            size = b.mul(values.get(values.index(statement.size)), b.const(dtype.size, "i64"))
            long = b.compare("sgt", size, b.const(STACK_ROW if on_stack else 0, "i64"))
            null = Reg("null", "ptr")
            b.imports |= {"malloc", "free"}
            (allocated,) = b.guarded(long, [null], lambda: [b.call("malloc", [size], null)])
            b.declarations["free"] = "declare void @free(ptr)"
            base = b.select(long, allocated, base)
            self.heaps.append(Heap(allocated))
        self.rows.add(statement.name)
        self.memory.areas[statement.name] = Area(dtype, base, values.depth, stored_level=values.depth)


# What writes each kind of statement.
STATEMENTS: dict[type, Callable[[Loops, Any], None]] = {
    Let: Loops.let,
    Accumulator: Loops.accumulator,
    Accumulate: Loops.accumulate,
    Store: Loops.store,
    AtomicAdd: Loops.atomic_add,
    Scratch: Loops.scratch,
    Check: Loops.check,
    Loop: Loops.loop,
}


def stored_row(body: Sequence[Statement], place: int, lanes: Lanes | None) -> list[Store]:
    """The stores from ``place`` on by which each lane writes as many neighbours as lie between two lanes; none where
    lanes may be off.
    """
    first = body[place]
    if not isinstance(first, Store) or lanes is None or any(group.mask is not None for group in lanes.groups):
        return []
    slope = first.index.coefficient(lanes.axis)
    count = slope.constant if slope is not None else None
    if count is None or not 1 < count <= STEPS:
        return []
    found = [each for each in body[place : place + count] if isinstance(each, Store) and each.buffer == first.buffer]
    row = [each for number, each in enumerate(found) if each.index is first.index + number]
    return row if len(row) == count else []


def _unflatten(fed: list[Running], shapes: list[list[int]], flat: Sequence[Reg]) -> None:
    rest = iter(flat)
    for running, shape in zip(fed, shapes, strict=True):
        running.groups = [[next(rest) for _ in range(count)] for count in shape]
