"""Turns sources into nodes, one for each place, and finds the long-lived object that a place holds."""

from __future__ import annotations

import types
from collections import deque
from collections.abc import Hashable, Iterable
from dataclasses import dataclass, field

from framefuse import _native
from framefuse.ir.classes import immutable
from framefuse.ir.facts import Fact, Source
from framefuse.ir.own_class import is_a
from framefuse.ir.values import Value

Instruction = tuple[Value, ...]  # of GUARD_OPS: the name, then what it asks for
Place = tuple[int, str, type, Hashable]  # a holder's id, the kind, and the key with its type
MISSING: Value = object()  # no object of the program


@dataclass(eq=False, slots=True)
class Part:
    """A run of instructions with their reasons; ``subject`` is the dict or type that all of them depend on, if there
    is one.
    """

    subject: dict[str, Value] | type | None = None
    instructions: list[Instruction] = field(default_factory=list)
    reasons: list[object] = field(default_factory=list)

    def add(self, reason: object, *instruction: Value) -> None:
        """Appends an instruction, explained by ``str(reason)``."""
        self.instructions.append(instruction)
        self.reasons.append(reason)


@dataclass(eq=False, slots=True)
class Node:
    """A place that guards read. ``known`` is the object that it must hold for the trace to be used, or MISSING;
    ``stated`` is True when a fact says so, and False when it is what the place held when the program was made.

    ``settled`` says that the check of that identity is part of the program, so that what lies below may be read from
    the object itself. ``register`` is set once the place is loaded, in list ``where``.
    """

    source: Source
    base: Node | None
    key: Node | None = None  # of an entry: the tensor that is its key
    known: Value = MISSING
    stated: bool = False
    settled: bool = False
    register: int = -1
    where: Part | None = None


class Nodes:
    """All places of a set of assumptions."""

    def __init__(self, facts: Iterable[Fact]) -> None:
        self._by_id: dict[int, Node] = {}
        self._below: dict[Place, Node] = {}
        self._keep: list[Source] = []
        for fact in facts:
            if fact.kind == "is":
                node = self.node(fact.source)
                if node.known is MISSING:
                    node.known, node.stated = fact.value, True

    def node(self, source: Source) -> Node:
        """The node of a source; equal sources have one node."""
        node = self._by_id.get(id(source))
        if node is None:
            base = self.node(source.base) if source.base is not None else None
            kind, key = source.kind, source.key
            mark: Place = (id(base), kind, type(key), id(key) if kind == "object" else key)
            node = self._below.get(mark)
            if node is None:
                node = self._below[mark] = Node(source, base, self.node(key) if kind == "entry" else None)
                if kind == "object":
                    node.known, node.settled = source.key, True
            self._by_id[id(source)] = node
            self._keep.append(source)
        return node


def resolve(node: Node) -> Value:
    """What a place below a long-lived object holds now, MISSING when that is unknown or there is nothing.

    Attributes read by ``getattr`` are left out: they may be made anew at each read.
    """
    if node.known is MISSING and node.base is not None:
        node.known = held_below(node)
    return node.known


def held_below(node: Node) -> Value:
    """What a place with a base holds now, whatever was assumed of it."""
    base = node.base
    assert base is not None
    holder = base.known if base.known is not MISSING else resolve(base)
    if holder is MISSING:
        return MISSING
    return held_in(node.source.kind, holder, node.source.key if node.key is None else resolve(node.key))


def held_in(kind: str, holder: Value, key: Value) -> Value:
    """What a place of a kind holds below ``holder``."""
    if kind == "dict":
        held = _native.instance_dict(holder)
        return MISSING if held is None else held
    if kind == "attr":
        content = _native.instance_dict(holder)
        return MISSING if content is None else dict.get(content, key, MISSING)
    if kind == "item":
        return _element(holder, key)
    if kind == "entry":
        return dict.get(holder, key, MISSING) if is_a(holder, dict) else MISSING
    if kind == "global" and is_a(holder, types.FunctionType):
        held = holder.__globals__.get(key, MISSING)
        return dict.get(getattr(holder, "__builtins__"), key, MISSING) if held is MISSING else held  # noqa: B009
    if kind == "cell" and is_a(holder, types.FunctionType):
        return _cell(holder, key)
    if kind == "type":
        return type(holder)
    if kind == "type_attr" and is_a(holder, type):
        try:
            return _native.type_lookup(holder, key)
        except AttributeError:
            return MISSING
    if kind in ("func", "self") and is_a(holder, types.MethodType):
        return holder.__func__ if kind == "func" else holder.__self__
    return MISSING


def _element(holder: Value, key: Value) -> Value:
    try:
        if is_a(holder, dict):
            return dict.get(holder, key, MISSING)
        if is_a(holder, list):
            return list.__getitem__(holder, key)
        if is_a(holder, tuple):
            return tuple.__getitem__(holder, key)
        return holder[key] if type(holder) is deque else MISSING
    except (IndexError, TypeError):
        return MISSING


def _cell(function: types.FunctionType, index: int) -> Value:
    try:
        return (function.__closure__ or ())[index].cell_contents
    except (IndexError, ValueError):
        return MISSING


def can_change_class(instance: Value) -> bool:
    """Whether ``instance.__class__ = ...`` may succeed: only instances of classes made at run time and modules."""
    return not immutable(type(instance)) or is_a(instance, types.ModuleType)
