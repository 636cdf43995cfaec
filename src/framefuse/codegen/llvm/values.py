"""Turns the values of a loop nest into registers, each of them as far out as it may be computed."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from framefuse.codegen.llvm.builder import Builder, Reg, Region
from framefuse.codegen.llvm.casts import HELD, cast, place, with_sign
from framefuse.codegen.llvm.integers import floor_quotient, lane_quotients
from framefuse.codegen.llvm.line_tests import line_test, tested_lanes
from framefuse.codegen.llvm.memory import Memory
from framefuse.codegen.llvm.pointwise import apply
from framefuse.ir.dtypes import BOOL, FLOAT64, INT64, DType
from framefuse.ir.loops import Apply, Const, Index, Load, Local, Scalar, Value
from framefuse.ir.loops.walk import in_order, operands
from framefuse.ir.numbers import Atom, Expr, Floordiv, Maximum, Minimum, Modulo, Symbol, expr

Memo = dict[Any, Reg]
# By how lanes reach a load's elements: how many operands say so (a mask follows), and how many of them are registers.
ADDRESSES = {"one": (1, 1), "row": (2, 1), "back": (2, 1), "steps": (3, 2), "any": (2, 2)}

# The longest distance between a load's elements at which all between them are loaded too, in place of a gather.
# Measured, rows of 768 float32 of an EPYC, of a gather's time: 2 0.4, 4 0.4, 8 0.8; with a mask 2 0.3, 4 1.0.
STEPS = 4


@dataclass(eq=False, slots=True)
class Node:
    """A value at this point of the nest. Equal ``key``, the number of the value or what an address is made of: equal
    value wherever both are known.

    ``level`` is the depth of the loop outside of which it cannot be computed; ``varying`` says that lanes of the vector
    loop differ in it.
    """

    key: Hashable
    op: str
    args: tuple[Node, ...]
    extra: Any
    dtype: DType
    level: int
    varying: bool


@dataclass(eq=False, slots=True)
class Scope:
    """A loop on the way to this point: ``before`` runs once before it, ``memo`` holds what its turn has computed and
    ``memo_before`` what ``before`` has.
    """

    before: Region
    memo: Memo = field(default_factory=dict)
    memo_before: Memo = field(default_factory=dict)


@dataclass(eq=False, slots=True)
class Group:
    """One vector's worth of iterations: the first one's ``start``, the lanes that are on (None: all) and how many these
    are, the first ones.
    """

    start: Reg
    mask: Reg | None = None
    count: Reg | None = None


@dataclass(eq=False, slots=True)
class Lanes:
    """The vector loop around this point: its axis, the ``count`` of lanes, and the groups computed side by side."""

    axis: Symbol
    level: int
    count: int
    groups: list[Group]


class Values:
    """Nodes and their registers. ``path`` are the scopes around this point, the function itself first; ``numbers`` are
    those of the nest's values, by id.
    """

    def __init__(self, b: Builder, memory: Memory, numbers: Mapping[int, int], fail: Callable[[Reg], None]) -> None:
        self.b, self.memory, self.numbers, self.fail = b, memory, numbers, fail
        self.path = [Scope(b.region)]
        self.registers: Memo = {}  # those of all scopes of the path
        self.lanes: Lanes | None = None
        self.symbols: dict[Symbol, Node] = {}
        self.digits: dict[Atom, Node] = {}  # divisions of the axis of a loop around this point that nobody computes
        self.reals: dict[Symbol, Reg] = {}
        self.locals: dict[str, Callable[[], Node]] = {}
        self._constants: Memo = {}
        self._indices: dict[Expr, Node] = {}  # while symbols stand for what they do

    @property
    def depth(self) -> int:
        return len(self.path) - 1

    def enter(self, scope: Scope) -> None:
        """Goes into a loop; what its ``before`` has computed for another of its forms is known again."""
        self.path.append(scope)
        self.registers.update(scope.memo_before)

    def leave(self) -> None:
        """Goes out of the innermost loop and forgets what was computed for it."""
        scope = self.path.pop()
        for memo in (scope.memo, scope.memo_before):
            for key in memo:
                del self.registers[key]

    def bind(self, symbol: Symbol, node: Node) -> None:
        """Says what a symbol stands for from here on."""
        self.symbols[symbol] = node
        self._indices.clear()

    @contextmanager
    def names(self) -> Iterator[None]:
        """What is named inside is forgotten behind."""
        saved = dict(self.locals), dict(self.symbols)
        yield
        self.locals, self.symbols = saved
        self._indices.clear()

    @property
    def groups(self) -> range:
        """The numbers of the groups computed side by side; one outside of vector loops."""
        return range(len(self.lanes.groups) if self.lanes else 1)

    # ---- nodes

    def make(
        self, op: str, args: Sequence[Node], dtype: DType, extra: Any = None, level: int = 0, key: Hashable = None
    ) -> Node:
        """A node that is as far in, and varies as much, as its operands; ``key`` if it is a value of the nest."""
        varying = False
        for arg in args:
            level, varying = max(level, arg.level), varying or arg.varying
        if key is None:
            key = (op, dtype.name, extra, *(arg.key for arg in args))
        return Node(key, op, tuple(args), extra, dtype, level, varying)

    def fresh(self, op: str, dtype: DType, extra: Any, level: int, varying: bool = False) -> Node:
        """A node equal to no other."""
        return Node(object(), op, (), extra, dtype, level, varying)

    def node(self, value: Value) -> Node:
        """The node of a value, which may share parts with others (they are objects of a graph, not of a tree)."""
        done: dict[int, Node] = {}
        for part in in_order(value, done):
            done[id(part)] = self._node(part, [done[id(operand)] for operand in operands(part)])
        return done[id(value)]

    def _node(self, value: Value, parts: list[Node]) -> Node:
        return VALUES[type(value)](self, value, parts)

    def _const(self, value: Const, parts: list[Node]) -> Node:
        return self._constant(value.value, value.dtype)

    def _scalar(self, value: Scalar, parts: list[Node]) -> Node:
        number = self.make("real", (), FLOAT64, value.symbol) if value.real else self.symbols[value.symbol]
        return self._cast(number, value.dtype)

    def _position(self, value: Index, parts: list[Node]) -> Node:
        return self._cast(self.index(value.index), value.dtype)

    def _local(self, value: Local, parts: list[Node]) -> Node:
        return self.locals[value.name]()

    def _operation(self, value: Apply, parts: list[Node]) -> Node:
        # What may fail is not moved out of a loop that may have no turn, but for the innermost: its surroundings run
        # only when there is one.
        level = self.depth - 1 if value.may_fail else 0
        axis = self.lanes.axis if self.lanes else None
        line = None if axis is None else line_test(value, axis)
        if axis is not None and line is not None and not (base := self.index(line.base)).varying:
            operands = base, self.symbols[axis]
            return self.make("line", operands, BOOL, (line.op, line.slope), 0, self.numbers[id(value)])
        if value.op == "cast" and parts[0].op in ("neg", "abs") and value.dtype.is_float and value.dtype.size == 2:
            (wide,) = parts[0].args
            if wide.op == "cast" and wide.args[0].dtype is value.dtype:
                return self.make(parts[0].op, wide.args, value.dtype, "apply", level, self.numbers[id(value)])
        return self.make(value.op, parts, value.dtype, "apply", level, self.numbers[id(value)])

    def _cast(self, node: Node, dtype: DType) -> Node:
        return node if node.dtype is dtype else self.make("cast", (node,), dtype, "apply")

    def _load(self, value: Load, mask: list[Node]) -> Node:
        level = max(self.memory.stored_level(value.buffer), self.depth - 1)
        how, args = self.place(value.index, value.buffer)
        if self.lanes and how == "steps" and value.index.coefficient(self.lanes.axis) == -1:
            how, args = "back", (args[0], args[2])
        extra = value.buffer, how
        return self.make("load", (*args, *mask), value.dtype, extra, level, self.numbers[id(value)])

    def place(self, index: Expr, buffer: str) -> tuple[str, tuple[Node, ...]]:
        """How lanes reach the elements at ``index``: ``one`` (all the same; operand: pointer), ``row`` (neighbours;
        pointer less the axis), ``steps`` (pointer less the axis, stride) or ``any`` (pointer to element 0, indices).
        """
        axis = self.lanes.axis if self.lanes else None
        varying = {symbol for symbol in index.symbols if self.symbols[symbol].varying}
        if not varying:
            return "one", (self._pointer(buffer, index),)
        stride = index.coefficient(axis) if axis is not None and varying == {axis} else None
        if axis is None or stride is None:
            return "any", (self._pointer(buffer, expr(0)), self.index(index))
        base = self._pointer(buffer, index.without(axis))
        if stride == 1:
            return "row", (base, self.symbols[axis])
        return "steps", (base, self.index(stride), self.symbols[axis])

    def _pointer(self, buffer: str, index: Expr) -> Node:
        return self.make("pointer", (self.index(index),), INT64, buffer, self.memory.level(buffer))

    def index(self, index: Expr) -> Node:
        """An index expression as an int64 node, summed from the outermost loop inwards."""
        node = self._indices.get(index)
        if node is None:
            node = self._indices[index] = self._index(index)
        return node

    def _index(self, index: Expr) -> Node:
        terms = []
        for atoms, factor in index.terms:
            parts = sorted((self._atom(atom) for atom in atoms), key=lambda node: node.level)
            if factor != 1 or not parts:
                parts.insert(0, self._integer(factor))
            term = parts[0]
            for part in parts[1:]:
                term = self.make("imul", (term, part), INT64)
            terms.append(term)
        if not terms:
            return self._integer(0)
        terms.sort(key=lambda node: (node.level, node.varying))
        total = terms[0]
        for term in terms[1:]:
            total = self.make("iadd", (total, term), INT64)
        return total

    def _integer(self, value: int) -> Node:
        return self._constant(value, INT64)

    def _constant(self, value: bool | int | float, dtype: DType) -> Node:
        return Node(("const", type(value), repr(value), dtype.name), "const", (), value, dtype, 0, False)

    def _atom(self, atom: Any) -> Node:
        if isinstance(atom, Symbol):
            return self.symbols[atom]
        known = self.digits.get(atom)
        if known is not None:
            return known
        operation = {Floordiv: "ifloordiv", Modulo: "imodulo", Minimum: "iminimum", Maximum: "imaximum"}[type(atom)]
        # A divisor may be zero where the loop that uses it has no turn.
        level = self.depth - 1 if operation in ("ifloordiv", "imodulo") else 0
        return self.make(operation, (self.index(atom.left), self.index(atom.right)), INT64, level=max(level, 0))

    # ---- registers

    def get(self, node: Node, group: int = 0, wide: bool = False) -> Reg:
        """The register of ``node``; with ``wide`` in all lanes even if they agree."""
        register = self._known(node, group, wide)
        if register is not None:
            return register
        waiting = [(node, wide)]  # one after the other: a long chain must not become a deep recursion
        while waiting:
            top, all_lanes = waiting[-1]
            register = self._known(top, group, all_lanes)
            if register is None:
                missing = [use for use in self._uses(top, all_lanes) if self._known(use[0], group, use[1]) is None]
                if missing:
                    waiting += reversed(missing)
                    continue
                register = self._written(top, group, all_lanes)
            waiting.pop()
        assert register is not None
        return register

    def _known(self, node: Node, group: int, wide: bool) -> Reg | None:
        """The register that holds ``node`` already."""
        lanes = self.lanes.count if self.lanes and (wide or node.varying) else 0
        if node.op == "const":
            constant = self._constants.get((node.key, lanes))
            if constant is None:
                constant = self._constants[node.key, lanes] = self.b.const(node.extra, HELD[node.dtype.name], lanes)
            return constant
        return self.registers.get((node.key, group if node.varying else -1, lanes))

    def _uses(self, node: Node, wide: bool) -> list[tuple[Node, bool]]:
        """The nodes whose registers computing ``node`` asks for, in that order, and whether in all lanes."""
        if wide and not node.varying:
            return [(node, False)]
        if node.op == "load":
            _, how = node.extra
            addresses = ADDRESSES[how]
            mask = [(arg, node.varying) for arg in node.args[addresses[0] :]]
            return [*mask, *((node.args[number], how == "any" and number == 1) for number in range(addresses[1]))]
        if node.op in ("pointer", "line"):
            return [(node.args[0], False)]
        return [(arg, node.varying) for arg in node.args]

    def _written(self, node: Node, group: int, wide: bool) -> Reg:
        """Writes what computes ``node``, whose operands are known."""
        lanes = self.lanes.count if self.lanes and (wide or node.varying) else 0
        key = (node.key, group if node.varying else -1, lanes)
        if lanes and not node.varying:
            return self._at(node.level, key, lambda: self.b.splat(self.get(node), lanes))
        return self._at(node.level, key, lambda: self._compute(node, group))

    def spread(self, node: Node) -> None:
        """Computes a varying node for all groups in step: a long chain of one group alone would leave the machine
        waiting for each result, since its window holds few turns of such a loop.
        """
        if not node.varying or len(self.groups) == 1:
            return
        seen: set[Hashable] = set()
        stack = [(node, False)]
        while stack:
            top, ready = stack.pop()
            if ready:
                for group in self.groups:
                    self.get(top, group)
            elif top.varying and top.key not in seen:
                seen.add(top.key)
                if all(self._known(top, group, False) is not None for group in self.groups):
                    continue
                stack.append((top, True))
                stack += [(arg, False) for arg in reversed(top.args) if arg.op != "axis"]

    def _at(self, level: int, key: Hashable, write: Callable[[], Reg]) -> Reg:
        """The register that is written outside of the loops deeper than ``level``."""
        if level >= self.depth:
            register = self.path[-1].memo[key] = write()
        else:
            scope = self.path[level + 1]
            here, self.b.region = self.b.region, scope.before
            register = scope.memo_before[key] = write()
            self.b.region = here
        self.registers[key] = register
        return register

    def _compute(self, node: Node, group: int) -> Reg:
        if node.extra == "apply":
            return self._apply(node, group)
        if node.op == "load":
            return self._read(node, group)
        if node.op == "axis":
            assert self.lanes is not None
            lanes = self.lanes.count
            start = self.b.splat(self.lanes.groups[group].start, lanes)
            return self.b.add(start, self.b.iota("i64", lanes))
        if node.op == "line":
            assert self.lanes is not None
            op, slope = node.extra
            start = self.lanes.groups[group].start
            first = self._index_arithmetic("iadd" if slope == 1 else "isub", self.get(node.args[0]), start)
            return tested_lanes(self.b, op, slope, first, self.lanes.count)
        if node.op == "pointer":
            address = self.memory.pointer(self.b, node.extra, self.get(node.args[0]))
            return self.b.opaque(address) if self.lanes and node.args[0].op != "const" else address
        if node.op == "real":
            return self.reals[node.extra]
        if node.op in ("computed", "place"):
            value: Reg = node.extra(group)
            return value
        if node.op == "ifloordiv" and node.args[0].op == "axis" and not node.args[1].varying:
            assert self.lanes is not None
            start = self.lanes.groups[group].start
            return lane_quotients(self.b, start, self.get(node.args[1]), self.lanes.count)
        return self._index_arithmetic(node.op, *(self.get(arg, group, node.varying) for arg in node.args))

    def _apply(self, node: Node, group: int) -> Reg:
        args = [self.get(arg, group, node.varying) for arg in node.args]
        source = node.args[-1].dtype
        if node.op == "cast":
            wide = source is INT64 and node.dtype.is_float and args[0].lanes > 0 and self.b.target.vector_bytes == 32
            if wide and _is_place(node.args[0]):
                return place(self.b, args[0], node.dtype)
            return cast(self.b, args[0], source, node.dtype)
        if node.op in ("neg", "abs") and source.is_float and source.size == 2:
            return with_sign(self.b, node.op, args[0])
        mask = self.lanes.groups[group].mask if self.lanes and node.varying else None
        result = node.dtype

        def fail(lanes: Reg) -> None:
            self.fail(lanes if mask is None else self.b.bit_and(lanes, mask))

        return apply(self.b, node.op, args, source, result, fail)

    def _index_arithmetic(self, op: str, x: Reg, y: Reg) -> Reg:
        b = self.b
        if op == "iadd":
            return b.op("i64", x.lanes, f"add nsw {x}, {y.name}")
        if op == "isub":
            return b.op("i64", x.lanes, f"sub nsw {x}, {y.name}")
        if op == "imul":
            return b.op("i64", x.lanes, f"mul nsw {x}, {y.name}")
        if op == "ifloordiv":
            return floor_quotient(b, x, y)
        if op == "imodulo":
            return b.sub(x, b.mul(floor_quotient(b, x, y), y))
        return b.select(b.compare("slt" if op == "iminimum" else "sgt", x, y), x, y)

    # ---- memory

    def _read(self, node: Node, group: int) -> Reg:
        buffer, how = node.extra
        masked = len(node.args) > ADDRESSES[how][0]
        mask = self.get(node.args[-1], group, node.varying) if masked else None
        if not node.varying:
            return self.memory.read_one(self.b, buffer, self.get(node.args[0]), mask)
        assert self.lanes is not None
        on = self.lanes.groups[group].mask
        if mask is not None and on is not None:
            mask = self.b.bit_and(mask, on)
        mask = on if mask is None else mask
        if how == "one":
            # One element, read where a lane asks for it.
            some = None if mask is None else self.b.any_lane(mask)
            wide = self.b.splat(self.memory.read_one(self.b, buffer, self.get(node.args[0]), some), self.lanes.count)
            return wide if mask is None else self.b.select(mask, wide, self.b.like(0, wide))
        step = node.args[1].extra if how == "steps" and node.args[1].op == "const" else 0
        # Rows of smaller elements are loaded with a mask by some machines only.
        near = 1 < abs(step) <= min(STEPS, self.lanes.count) and (mask is None or node.dtype.size >= 4)
        if step == -1 or near:
            return self.memory.read_steps(self.b, buffer, self._first(node.args, group), step, self.lanes.count, mask)
        pointer = self.pointer(how, node.args, group)
        if how == "back":
            mask = None if mask is None else self.b.turned(mask)
            return self.b.turned(self.memory.read(self.b, buffer, True, pointer, self.lanes.count, mask))
        return self.memory.read(self.b, buffer, how == "row", pointer, self.lanes.count, mask)

    def pointer(self, how: str, args: tuple[Node, ...], group: int) -> Reg:
        """The address of a group's first element (``row``), of its last (``back``: from there on) or of each."""
        assert self.lanes is not None
        lanes, start = self.lanes.count, self.lanes.groups[group].start
        base = self.get(args[0])
        buffer = args[0].extra
        if how == "row":
            return self.memory.pointer(self.b, buffer, start, base)
        if how == "back":
            return self.memory.pointer(self.b, buffer, self.b.sub(self.b.const(1 - lanes, "i64"), start), base)
        if how == "any":
            return self.memory.pointer(self.b, buffer, self.get(args[1], group, True), base)
        first = self._first(args, group)
        steps = self.make("imul", (args[1], self.make("iota", (), INT64, lanes)), INT64)
        return self.memory.pointer(self.b, buffer, self._steps(steps, lanes), first)

    def _first(self, args: tuple[Node, ...], group: int) -> Reg:
        """The address of the first of a group's elements that lie a ``stride`` apart."""
        assert self.lanes is not None
        along = self.b.mul(self.lanes.groups[group].start, self.get(args[1]))
        return self.memory.pointer(self.b, args[0].extra, along, self.get(args[0]))

    def _steps(self, node: Node, lanes: int) -> Reg:
        """``stride * (0, 1, 2...)``, computed where the stride is."""
        key = (node.key, -1, lanes)

        def write() -> Reg:
            wide = self.b.splat(self.get(node.args[0]), lanes)
            return self.b.mul(wide, self.b.iota("i64", lanes))

        return self.registers.get(key) or self._at(node.args[0].level, key, write)

    def write(self, buffer: str, index: Expr, value: Node) -> None:
        """Stores a value of every group; all are computed before the first is stored."""
        how, args = self.place(index, buffer)
        self.spread(value)
        registers = [self.get(value, group, wide=how != "one" or value.varying) for group in self.groups]
        for group, register in zip(self.groups, registers, strict=True):
            if self.lanes is None:
                self.memory.write_one(self.b, buffer, self.get(args[0]), register)
                continue
            on, count = self.lanes.groups[group].mask, self.lanes.groups[group].count
            if how == "row" and count is not None and not self.b.target.stores_masked:
                self.memory.write_first(self.b, buffer, self.pointer(how, args, group), register, count)
                continue
            if how == "one":
                # Every lane writes the same place: the last one stays, as in a serial loop.
                register = self.b.splat(register, self.lanes.count)
                pointer = self.b.splat(self.get(args[0]), self.lanes.count)
            else:
                pointer = self.pointer(how, args, group)
            self.memory.write(self.b, buffer, how == "row", pointer, register, on)
        self.memory.stored(buffer, self.depth)

    def write_row(self, buffer: str, index: Expr, values: Sequence[Node]) -> None:
        """Stores several values of every lane as neighbours, the first of them at ``index``, in whole vectors."""
        _, args = self.place(index, buffer)
        for value in values:
            self.spread(value)
        assert self.lanes is not None
        for group in self.groups:
            parts = [self.get(value, group, wide=True) for value in values]
            self.memory.write(self.b, buffer, True, self._first(args, group), self.b.interleaved(parts), None)
        self.memory.stored(buffer, self.depth)

    def truth(self, value: Value) -> list[tuple[Reg, Reg | None]]:
        """A bool of every group, with the lanes that are on."""
        node = self.node(value)
        assert node.dtype is BOOL
        if self.lanes is None or not node.varying:
            return [(self.get(node), None)]
        return [(self.get(node, group), self.lanes.groups[group].mask) for group in self.groups]


# What makes a node of each kind of value and the nodes of its operands.
VALUES: dict[type, Callable[[Values, Any, list[Node]], Node]] = {
    Const: Values._const,
    Scalar: Values._scalar,
    Index: Values._position,
    Local: Values._local,
    Load: Values._load,
    Apply: Values._operation,
}


SUMMED = frozenset(("iadd", "iminimum", "imaximum", "add", "sub", "neg", "abs", "minimum", "maximum"))


def _is_place(node: Node, steps: int = 4) -> bool:
    """Whether a node is a turn of a loop, or a few ``steps`` of sums and differences of such: all far below 2**51."""
    if node.op == "const":
        return bool(-(2**40) < node.extra < 2**40)
    if node.op in ("axis", "place"):
        return True
    return steps > 0 and node.op in SUMMED and all(_is_place(arg, steps - 1) for arg in node.args)
