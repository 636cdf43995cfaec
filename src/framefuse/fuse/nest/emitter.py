"""Turns cells into statements at the outermost place of a loop nest where what they need is known."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from framefuse.errors import CompilerBug
from framefuse.fuse.addressing.ranges import address
from framefuse.fuse.addressing.strided import Strides
from framefuse.fuse.grouping.cells import Cell, Mask
from framefuse.fuse.nest.parameters import Parameters
from framefuse.fuse.nest.sweeps import Axes, Shape, shape_axes
from framefuse.fuse.nest.values import (
    Computed,
    before_widening,
    cast,
    chosen,
    constant,
    every,
    exact,
    loaded,
    operate,
    progression,
    stored,
)
from framefuse.ir import costs
from framefuse.ir.dtypes import BOOL, INT64, DType
from framefuse.ir.graph import Node
from framefuse.ir.loops import (
    Accumulate,
    Accumulator,
    Apply,
    AtomicAdd,
    Check,
    Const,
    Index,
    Let,
    Load,
    Local,
    Scalar,
    Statement,
    Store,
    Value,
)
from framefuse.ir.numbers import Expr, Symbol
from framefuse.ir.ops import CHECK, POINTWISE, TABLE


@dataclass(slots=True)
class Scope:
    """The body of one loop: the group's axes that have a value in it, and the cells already computed in it."""

    axes: Axes
    body: list[Statement] = field(default_factory=list)
    known: dict[Cell, Computed] = field(default_factory=dict)
    tests: dict[Mask, Value] = field(default_factory=dict)
    positions: set[Symbol] = field(default_factory=set)


@dataclass
class Emitter:
    """The kernel that is being written. ``scopes`` are the open loops, outermost first.

    ``kept`` says where an earlier sweep left a cell: a buffer or scratch row and the index in it.
    """

    shape: Shape
    strides_of: Callable[[Node], Strides]
    parameters: Parameters = field(default_factory=Parameters)
    scopes: list[Scope] = field(default_factory=list)
    kept: dict[Cell, tuple[str, Expr, DType]] = field(default_factory=dict)
    readable: set[Cell] = field(default_factory=set)  # kept cells whose sweep has ended
    uses: dict[Cell, int] = field(default_factory=dict)
    counter: int = 0
    settled: dict[Expr, bool] = field(default_factory=dict)  # tests whose outcome the open loops decide
    running: dict[Cell, Accumulator] = field(default_factory=dict)  # of scans
    floor: int = 0  # scopes outside the parallel loop, which may hold nothing but it

    def fresh(self, prefix: str) -> str:
        """A new name."""
        self.counter += 1
        return f"{prefix}{self.counter - 1}"

    def scope_for(self, axes: Axes) -> Scope:
        """The outermost open loop in which all these axes have values."""
        for scope in self.scopes[self.floor :]:
            if axes <= scope.axes:
                return scope
        raise CompilerBug(f"no loop over {set(axes) - self.scopes[-1].axes} is open")

    def value(self, cell: Cell) -> Computed:
        """The cell's value at the innermost open loop."""
        scope = self.scope_for(self.shape.axes[cell])
        known = scope.known.get(cell)
        if known is not None:
            return known
        for operand in self._operands(cell):  # one after the other: a long chain must not become a deep recursion
            place = self.scope_for(self.shape.axes[operand])
            if operand not in place.known:  # a scan that is met twice would take its step twice
                self._value(operand, place)
        return self._value(cell, scope)

    def _operands(self, cell: Cell) -> list[Cell]:
        """The cells behind ``cell`` that have no value yet, operands first; not those behind an indirect position."""
        order: list[Cell] = []
        seen: set[Cell] = set()
        stack = [(cell, False)]
        while stack:
            current, done = stack.pop()
            if done:
                order.append(current)
                continue
            if current in seen:
                continue
            seen.add(current)
            stack.append((current, True))
            if current.kind == "load" or current in self.readable:
                continue
            for kid in reversed(self._needed(current)):
                if kid not in seen and kid not in self.scope_for(self.shape.axes[kid]).known:
                    stack.append((kid, False))
        return order[:-1]

    def _needed(self, cell: Cell) -> Sequence[Cell]:
        """The operands that the cell's value is computed from, but for data at a position that is not known yet."""
        if cell.position is not None:
            return cell.kids[:1]
        return [kid for _, kid in self._pieces(cell)] if cell.node.op == "cat" else cell.kids

    def _pieces(self, cell: Cell) -> list[tuple[Mask, Cell]]:
        """The pieces of a cat that may be met here, in order, with what must hold for all but the last of them."""
        pieces: list[tuple[Mask, Cell]] = []
        for tests, kid in zip((*cell.tests, ()), cell.kids, strict=True):
            if any(self.settled.get(test) is False for test in tests):
                continue
            left = tuple(test for test in tests if test not in self.settled)
            pieces.append((left, kid))
            if not left:
                break
        return pieces

    def _value(self, cell: Cell, scope: Scope) -> Computed:
        if cell in self.readable:
            name, index, dtype = self.kept[cell]
            computed = self._named(scope, cell, loaded(Load(name, self.parameters.index(index), dtype)))
        else:
            computed = self._named(scope, cell, self._compute(cell))
        scope.known[cell] = computed
        return computed

    def _compute(self, cell: Cell) -> Computed:
        node = cell.node
        if cell.kind == "load":
            return self._load(cell)
        if cell.kind == "reduce":
            raise CompilerBug(f"{node.op} is read before its loop ended")
        if cell.kind == "scan":
            return self._scan(cell)
        if TABLE[node.op].kind == CHECK:
            return self._checked(cell)
        if TABLE[node.op].kind == POINTWISE:
            return operate(node, [self.value(kid) for kid in cell.kids])
        match node.op:
            case "full":
                return constant(node, self.parameters)
            case "iota":
                return progression(node, cell.index[0], self.parameters)
            case "pad":
                return self._pad(cell)
            case "cat":
                return self._cat(cell)
            case "take" | "gather":
                self._position(cell)
                return self.value(cell.kids[1])
            case _:
                return self.value(cell.kids[0])

    def _checked(self, cell: Cell) -> Computed:
        """A value whose condition is checked at each element that is computed."""
        value, condition = (self.value(kid) for kid in cell.kids)
        self._check(self._place(cell, cell), cell, condition.value)
        return value

    def _place(self, cell: Cell, read: Cell) -> Scope:
        """The outermost open loop in which ``read`` and what masks the cell have values."""
        masked = shape_axes(self.shape, {symbol for test in cell.mask for symbol in test.symbols})
        return self.scope_for(self.shape.axes[read] | masked)

    def _check(self, place: Scope, cell: Cell, holds: Value) -> None:
        """Has the kernel fail where a cell is read and this does not hold."""
        needed = Apply("bit_not", (self.holds(cell.mask),), BOOL) if cell.mask else None
        place.body.append(Check(holds if needed is None else Apply("bit_or", (holds, needed), BOOL)))

    def _scan(self, cell: Cell) -> Computed:
        """What the scan has come to at this point of its loop."""
        running, body = self.running[cell], self.scopes[-1].body
        body.append(Accumulate(running.name, cast(self.value(cell.kids[0]).value, running.dtype)))
        name = self.fresh("v")
        body.append(Let(name, Local(running.name, running.dtype)))
        return Computed(Local(name, running.dtype))

    def _load(self, cell: Cell) -> Computed:
        name = self.parameters.buffer(cell.node, cell.node.dtype)
        where = self.parameters.index(address(cell.index, self.strides_of(cell.node)))
        single = where.constant == 0 and all(size.constant == 1 for size in cell.node.shape)  # always there
        mask = () if single else tuple(test for test in cell.mask if self.settled.get(test) is not True)
        return loaded(Load(name, where, cell.node.dtype, self.holds(mask) if mask else None))

    def holds(self, mask: Mask) -> Value:
        """Whether the mask holds, computed once for each point of the loops it depends on."""
        scope = self.scope_for(shape_axes(self.shape, {symbol for test in mask for symbol in test.symbols}))
        known = scope.tests.get(mask)
        if known is None:
            name = self.fresh("m")
            scope.body.append(Let(name, every(mask, self.parameters)))
            known = scope.tests[mask] = Local(name, BOOL)
        return known

    def _pad(self, cell: Cell) -> Computed:
        inside = self.value(cell.kids[0])
        if not cell.tests[0]:
            return inside
        fill = constant(cell.node, self.parameters)
        return chosen(self.holds(cell.tests[0]), inside, fill, cell.node.device == "cpu")

    def _cat(self, cell: Cell) -> Computed:
        """A chain of selections: each piece where its own end was not passed."""
        pieces = [(ends, self.value(kid)) for ends, kid in self._pieces(cell)]
        found = pieces[-1][1]
        for ends, piece in reversed(pieces[:-1]):
            found = chosen(self.holds(ends), piece, found, cell.node.device == "cpu")
        return found

    def _position(self, cell: Cell) -> None:
        """Computes, checks and names the index that a take or gather reads."""
        assert cell.position is not None
        taker = cell.kids[0]
        place = self._place(cell, taker)
        if cell.position in place.positions:
            return
        value = cast(exact(self.value(taker)), INT64)
        axis = cell.node.attr("axis")
        size = cell.node.inputs[0].shape[axis]
        limit: Value = Index(self.parameters.index(size), INT64)
        zero = Const(0, INT64)
        if not isinstance(value, Local):
            raw = self.fresh("v")
            place.body.append(Let(raw, value))
            value = Local(raw, INT64)
        if cell.node.op == "take" and cell.node.attr("wrap") is None:
            place.positions.add(cell.position)
            self.parameters.name(cell.position, Symbol(value.name).expr)
            return
        if cell.node.op == "take" and cell.node.attr("wrap"):
            wrapped = self.fresh("v")
            moved = Apply(
                "where", (Apply("lt", (value, zero), BOOL), Apply("add", (value, limit), INT64), value), INT64
            )
            place.body.append(Let(wrapped, moved))
            value = Local(wrapped, INT64)
        inside: Value = Apply("bit_and", (Apply("ge", (value, zero), BOOL), Apply("lt", (value, limit), BOOL)), BOOL)
        good = self.fresh("m")
        place.body.append(Let(good, inside))
        inside = Local(good, BOOL)
        self._check(place, cell, inside)
        name = self.fresh("t")
        place.body.append(Let(name, Apply("where", (inside, value, zero), INT64) if size.constant else value))
        place.positions.add(cell.position)
        self.parameters.name(cell.position, Symbol(name).expr)

    def _named(self, scope: Scope, cell: Cell, computed: Computed) -> Computed:
        """Gives a value a name where it is used again or its statement would grow too long."""
        value = computed.value
        if isinstance(value, (Const, Local, Scalar)):
            return computed
        once = self.uses.get(cell, 0) <= 1 and scope is self.scopes[-1]
        if once and _operations(value) < costs.NESTED:
            return computed
        name = self.fresh("v")
        narrow = before_widening(value)
        if narrow is not None and not isinstance(
            narrow, Load
        ):  # the rounded value has the name, so that it can be stored
            scope.body.append(Let(name, narrow))
            return Computed(cast(Local(name, narrow.dtype), value.dtype), computed.rounded)
        scope.body.append(Let(name, value))
        return Computed(Local(name, value.dtype), computed.rounded)

    def read_by(self, cells: Sequence[Cell]) -> set[Cell]:
        """The cells that the values of ``cells`` are computed from, up to those that lie in memory."""
        seen: set[Cell] = set()
        waiting = [kid for cell in cells for kid in cell.kids]
        while waiting:
            cell = waiting.pop()
            if cell not in seen:
                seen.add(cell)
                if cell not in self.readable:
                    waiting += cell.kids
        return seen

    def load_kept(self, cell: Cell) -> None:
        """Names the value of a cell that was kept in memory, which something else is about to take."""
        scope = self.scope_for(self.shape.axes[cell])
        name, index, dtype = self.kept[cell]
        kept = loaded(Load(name, self.parameters.index(index), dtype))
        local = self.fresh("v")
        scope.body.append(Let(local, kept.value))
        scope.known[cell] = Computed(Local(local, kept.value.dtype), kept.rounded)

    def store(self, cell: Cell) -> None:
        """Writes a root to its memory, or adds to it."""
        if cell.node.op == "scatter_add":
            self.add(cell)
            return
        name = self.parameters.buffer(cell.node, cell.node.dtype, write=True)
        where = self.parameters.index(address(cell.index, self.strides_of(cell.node)))
        value = stored(self.value(cell), cell.node.dtype)
        self.scopes[-1].body.append(Store(name, where, value))

    def add(self, cell: Cell) -> None:
        """Adds what a scatter_add adds at this point."""
        self._position(cell)
        value = stored(self.value(cell.kids[1]), cell.node.dtype)
        mask = self.holds(cell.tests[0]) if cell.tests[0] else None
        name = self.parameters.buffer(cell.node, cell.node.dtype, write=True)
        where = self.parameters.index(address(cell.index, self.strides_of(cell.node)))
        self.scopes[-1].body.append(AtomicAdd(name, where, value, mask))


def _operations(value: Value) -> int:
    if isinstance(value, Apply):
        return 1 + sum(map(_operations, value.args))
    return 1 if isinstance(value, Load) and value.mask is not None else 0
