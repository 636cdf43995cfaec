"""Loads the places of facts into registers, and settles which long-lived objects they lead to."""

from __future__ import annotations

import types
from collections.abc import Hashable, Iterable

import torch

from framefuse import _native
from framefuse.guards.arithmetic import Arithmetic
from framefuse.guards.members import Dicts, Members
from framefuse.guards.source_nodes import MISSING, Instruction, Node, Nodes, Part, held_below, resolve
from framefuse.ir.classes import is_by_content
from framefuse.ir.comparisons import RealRelation, Relation
from framefuse.ir.facts import Assumptions, Fact, Source, TensorSpec
from framefuse.ir.frozen_classes import dataclass
from framefuse.ir.numbers import Expr, Real, Symbol, Whole
from framefuse.ir.own_class import is_a
from framefuse.ir.values import Value

# What a program rests on without a check, or was made by: the kind, and two values.
#   "lies"      (a tuple or method, the kind of place, its key), and what lies there for good
#   "held"      a source, and what it held when the program was made: no fact states it, the program checks it
#   "content"   an object and its dict of attributes; "globals", "builtins": a function and its dicts of names
#   "type"      an object and its class, which cannot be assigned
#   "atom"      an atom that lies somewhere for good, and an equal one; "length": a container and its length
#   "known"     an object that was compared with others when the program was made, and None
Granted = tuple[str, Value, Value]


@dataclass(eq=False, slots=True)  # thousands are made: frozen ones would take twice as long
class Reason:
    """Why a place is compared with an object: printed without the object's own text where that may be long."""

    source: Source
    value: Value

    def __str__(self) -> str:
        short = self.value is None or isinstance(self.value, (bool, type, torch.dtype))
        return f"{self.source} is {self.value!r}" if short else f"{self.source} is the object seen"


@dataclass(frozen=True, slots=True)
class Stated:
    """Relations that a part computes."""

    part: Part
    stated: set[Relation | RealRelation]


class Builder:
    """Collects instructions by when they may run: constants, arguments, words and blocks, then what stands on their
    registers.
    """

    def __init__(self, assumptions: Assumptions) -> None:
        self.assumptions = assumptions
        self.nodes = Nodes(assumptions.facts)
        self.numbers = Arithmetic()
        self.constants, self.front, self.words, self.late = Part(), Part(), Part(), Part()
        self.blocks: dict[int, Part] = {}
        self.held: dict[int, int] = {}
        self.registers = 0
        self.repeats: list[tuple[int, int, str]] = []
        self.set_late: set[int] = set()  # numbers that another part than the front sets
        self.done: set[tuple[Hashable, ...]] = set()
        self.dicts: Dicts = {}
        self.free_members: frozenset[tuple[type, str]] | None = None
        self.granted: list[Granted] = []
        self.types = {id(self.nodes.node(f.source)): f.value for f in assumptions.facts if f.kind == "type"}

    # ---- registers ----

    def fresh(self) -> int:
        self.registers += 1
        return self.registers - 1

    def constant(self, value: Value) -> int:
        """The register of a long-lived object."""
        register = self.held.get(id(value))
        if register is None:
            register = self.held[id(value)] = self.fresh()
            self.constants.add("a long-lived object", "object", register, value)
        return register

    def block(self, subject: dict[str, Value] | type) -> Part:
        """The instructions that depend on this dict or type only."""
        part = self.blocks.get(id(subject))
        if part is None:
            part = self.blocks[id(subject)] = Part(subject)
        return part

    def settle(self, node: Node) -> bool:
        """Makes sure that the program checks the identity of what ``node`` holds; False where that is no long-lived
        object.

        A tensor, or a container or record of which only the type is stated, is not held to its identity unless a fact
        says so: another one of its kind will do.
        """
        if node.settled:
            return True
        held = resolve(node)
        if held is MISSING or (not node.stated and (_is_tensor(held) or self._has_many(node))):
            return False
        if node.base is not None:
            self.settle(node.base)
        self.pin(node)
        return True

    def _by_content(self, node: Node) -> bool:
        if node.source.kind == "dict" and node.base is not None:  # the attributes of a record
            return not node.base.stated and self._by_content(node.base)
        kind = self.types.get(id(node))
        return kind is not None and is_by_content(kind)

    def _has_many(self, node: Node) -> bool:
        return self.types.get(id(node)) in BOUND or self._by_content(node)

    def pin(self, node: Node) -> None:
        """Loads the node and compares it with the object that it must be."""
        base, kind = node.base, node.source.kind
        if base is not None and base.settled and self.fixed(base.known, kind) and resolve_again(node) is node.known:
            node.settled = True
            self.granted.append(("lies", (base.known, kind, node.source.key), node.known))
            return
        if not node.stated:
            self.granted.append(("held", node.source, node.known))
        if kind == "type" and base is not None and base.settled:
            self.words.add(Fact(base.source, "type", node.known), "type_is", self.constant(base.known), node.known)
        else:
            register = self.load(node)
            assert node.where is not None, "what is loaded is loaded somewhere"
            node.where.add(Reason(node.source, node.known), "is", register, node.known)
        node.settled = True

    @staticmethod
    def fixed(holder: Value, kind: str) -> bool:
        """Whether what ``kind`` reads of this very object can never change."""
        return (kind == "item" and is_a(holder, tuple)) or (
            kind in ("func", "self") and is_a(holder, types.MethodType)
        )

    def load(self, node: Node) -> int:
        """The register that holds what the node holds at each call."""
        if node.settled or self.lies_fast(node):
            return self.constant(node.known)
        if node.register < 0:
            node.where, instruction = self.read(node)
            node.register = self.fresh()
            node.where.add(node.source, instruction[0], node.register, *instruction[1:])
        return node.register

    def lies_fast(self, node: Node) -> bool:
        """Whether the program settles what the node holds; so does what lies in a long-lived tuple or method."""
        base = node.base
        if not node.settled and node.source.kind in FAST and base is not None and resolve(node) is not MISSING:
            fit = resolve_again(node) is node.known and not _is_tensor(node.known)
            node.settled = fit and self.fixed(base.known, node.source.kind) and self.settle(base)
            if node.settled:
                self.granted.append(("lies", (base.known, node.source.kind, node.source.key), node.known))
        return node.settled

    def read(self, node: Node) -> tuple[Part, Instruction]:
        """The instruction that reads the node, less its destination, and the part in which it stands."""
        kind, key, base = node.source.kind, node.source.key, node.base
        if base is None:
            if kind != "arg":
                raise ValueError(f"no source begins with {kind}")
            return self.front, ("arg", key)
        if self.settle(base):
            if node.key is not None:
                return self.late, ("entry", self.constant(base.known), self.load(node.key))
            return self.read_held(kind, base.known, key)
        holder = self.load(base)
        part = self.front if base.where is self.front else self.late
        if kind == "attr":
            between = self.fresh()
            part.add(Source("dict", base.source), "dict", between, holder)
            return part, ("item_dict", between, key)
        if kind == "item":
            return part, ("item_dict" if self.is_dict(base, key) else "item_seq", holder, key)
        if kind == "grad":
            return part, ("getattr", holder, "grad")
        if node.key is not None:
            other = self.load(node.key)
            return (part if node.key.where is self.front else self.late), ("entry", holder, other)
        return part, (kind, holder) if kind in ("dict", "type", "func", "self") else (kind, holder, key)

    def is_dict(self, base: Node, key: Value) -> bool:
        """Whether an argument of unknown content is read as a dict: by its type fact, else by the key."""
        known = self.types.get(id(base))
        return issubclass(known, dict) if known is not None else type(key) is not int

    def read_held(self, kind: str, holder: Value, key: Value) -> tuple[Part, Instruction]:
        """The same below a long-lived object."""
        if kind == "attr":
            content = self.content(holder)
            return self.block(content), ("item_dict", self.constant(content), key)
        if kind == "item" and is_a(holder, dict):
            return self.block(holder), ("item_dict", self.constant(holder), key)
        if kind == "global" and is_a(holder, types.FunctionType):
            names = self.names(holder, key)
            return self.block(names), ("item_dict", self.constant(names), key)
        register = self.constant(holder)
        if kind == "type_attr" and is_a(holder, type):
            return self.block(holder), ("type_attr", register, key)
        if kind == "item":
            return self.words, ("item_seq", register, key)
        if kind in ("dict", "cell", "func", "self", "type"):
            return self.words, (kind, register, key) if kind == "cell" else (kind, register)
        if kind == "context":
            return self.late, ("context", register)
        return self.late, ("getattr", register, "grad" if kind == "grad" else key)

    def content(self, holder: Value) -> dict[str, Value]:
        """The instance dict of a long-lived object, with the check that it is still that dict."""
        content = _native.instance_dict(holder)
        if content is None:
            raise ValueError(f"{type(holder).__name__} objects have no attributes of their own")
        if ("dict", id(holder)) not in self.done:
            self.done.add(("dict", id(holder)))
            self.granted.append(("content", holder, content))
            between = self.fresh()
            self.words.add("the attributes of a long-lived object", "dict", between, self.constant(holder))
            self.words.add("the attributes of a long-lived object are still that dict", "is", between, content)
        return content

    def names(self, function: types.FunctionType, name: str) -> dict[str, Value]:
        """The dict in which a function finds the global ``name``; if that is its builtins, the globals must lack it."""
        self.granted.append(("globals", function, function.__globals__))
        if name in function.__globals__:
            return function.__globals__
        self.once(
            self.block(function.__globals__), f"no global {name}", "absent", self.constant(function.__globals__), name
        )
        builtins: dict[str, Value] = getattr(function, "__builtins__")  # noqa: B009
        self.granted.append(("builtins", function, builtins))
        return builtins

    def once(self, part: Part, reason: object, *instruction: Value) -> None:
        """Adds an instruction that may be stated by several facts."""
        mark: tuple[Hashable, ...]
        if len(instruction) == 3 and type(instruction[2]) is str:  # most are names that are absent
            mark = (id(part), *instruction)
        else:
            mark = (id(part), instruction[0], instruction[1], *map(repr, instruction[2:]))
        if mark not in self.done:
            self.done.add(mark)
            part.add(reason, *instruction)

    def settle_held(self, node: Node) -> bool:
        """Settles a node that its own facts or its children identify; a place that is only looked at stays a load."""
        return node.settled or (node.stated and self.settle(node))

    def members(self, kind: type) -> tuple[int, Members]:
        """The version tag of a type, and what decides when it has moved."""
        if self.free_members is None:
            self.free_members = frozenset(
                (base, fact.source.key)
                for fact in self.assumptions.facts
                if fact.kind in ("integer", "real") and fact.source.kind == "type_attr"
                for base in _defining(self.nodes.node(fact.source))
            )
        return _native.type_tag(kind), Members(kind, self.free_members, self.dicts)

    def tensor(self, source: Source, spec: TensorSpec) -> None:
        """Loads a tensor and checks and binds what its spec says."""
        node = self.nodes.node(source)
        register = self.load(node)
        part = self.front if node.where is self.front else self.late
        binds: list[tuple[str, int, int]] = []
        for kind, extents in (("size", spec.sizes), ("stride", spec.strides if spec.order is None else None)):
            for dimension, extent in enumerate(extents or ()):
                if isinstance(extent, Symbol):
                    what = f"{source}.{'shape' if kind == 'size' else 'stride()'}[{dimension}]"
                    binds.append((kind, dimension, self.bind(extent, what, part)))
        part.add(Fact(source, "tensor", spec), "tensor", register, spec, tuple(binds))

    # ---- numbers ----

    def bind(self, symbol: Symbol | str, what: str, part: Part) -> int:
        """The number that ``part`` is to set; where the symbol is bound already, another one that must equal it."""
        number = self.numbers.fresh()
        if part is not self.front:
            self.set_late.add(number)
        first = self.numbers.number_of.setdefault(symbol, number)
        if first != number:
            self.repeats.append((first, number, f"{what} == {symbol}"))
        return number

    def relations(self, relations: Iterable[Relation], comparisons: Iterable[RealRelation], early: bool) -> Stated:
        """The derived symbols and relations that can be computed from what is bound by now; the early ones from what
        arguments alone say, before any block has run.
        """
        part = Part()
        stated: set[Relation | RealRelation] = set()
        unset = self.set_late if early else frozenset()
        for left, right, text in self.repeats:
            if left not in unset and right not in unset:
                part.add(text, "relation", "==", left, right)
        self.repeats = [repeat for repeat in self.repeats if not unset.isdisjoint(repeat[:2])]
        numbers = self.numbers.number_of
        bound = {symbol for symbol, number in numbers.items() if number not in unset}
        for symbol, value in self.assumptions.definitions:
            if symbol not in numbers and value.names <= bound:
                numbers[symbol] = self.compute(part, value, f"{symbol} = {value}")
                bound.add(symbol)
        for relation in relations:
            if relation.left.symbols | relation.right.symbols <= bound:
                left, right = (self.compute(part, side, side) for side in (relation.left, relation.right))
                part.add(relation, "relation", relation.op, left, right)
                stated.add(relation)
        for comparison in comparisons:
            if comparison.names <= bound:
                left, right = (self.compute(part, side, side) for side in (comparison.left, comparison.right))
                part.add(comparison, "real_relation", comparison.op, left, right, comparison.holds)
                stated.add(comparison)
        return Stated(part, stated)

    def compute(self, part: Part, value: Expr | Real | Whole, reason: object) -> int:
        if isinstance(value, Whole):
            number = self.numbers.whole(value)
        else:
            number = self.numbers.real(value) if isinstance(value, Real) else self.numbers.expression(value)
        for instruction in self.numbers.emitted:
            part.add(reason, *instruction)
        self.numbers.emitted.clear()
        return number


def _defining(place: Node) -> list[type]:
    """The class on which an attribute of a long-lived type lies."""
    holder = resolve(place.base) if place.base is not None else MISSING
    if not is_a(holder, type):
        return []
    return [base for base in holder.__mro__ if place.source.key in vars(base)][:1]


def _is_tensor(held: Value) -> bool:
    return torch.Tensor in type(held).__mro__  # issubclass asks the metaclass of tensors, ten times as long


def resolve_again(node: Node) -> Value:
    """What the place holds now, whatever was assumed of it."""
    return MISSING if node.base is None else held_below(node)


BOUND = (types.BuiltinMethodType, types.MethodWrapperType)  # methods of C that have an owner
FAST = frozenset(("item", "func", "self"))  # what of a holder may never change
