"""The checks that each kind of fact becomes: an instruction in the part whose time is right, or what was granted."""

from __future__ import annotations

import math
import types
from collections import deque
from collections.abc import Callable

from framefuse.guards.instructions import same_atom
from framefuse.guards.registers import Builder, Reason
from framefuse.guards.source_nodes import Node, can_change_class
from framefuse.ir.classes import immutable
from framefuse.ir.facts import Fact, Source, TensorSpec
from framefuse.ir.own_class import is_a
from framefuse.ir.values import Value


def add(builder: Builder, fact: Fact) -> None:
    """Adds the checks of one fact. Raises ValueError for a fact that RULES does not have."""
    rule = RULES.get(fact.kind)
    if rule is None:
        raise ValueError(f"no fact {fact.kind!r}")
    rule(builder, fact, builder.nodes.node(fact.source))


def _identity(builder: Builder, fact: Fact, node: Node) -> None:
    if node.known is fact.value:
        builder.settle(node)
        return
    register = builder.load(node)
    (node.where or builder.late).add(Reason(node.source, fact.value), "is", register, fact.value)


def _type_of(builder: Builder, fact: Fact, node: Node) -> None:
    if builder.settle_held(node) or builder.lies_fast(node):
        if can_change_class(node.known) or type(node.known) is not fact.value:
            builder.once(builder.words, fact, "type_is", builder.constant(node.known), fact.value)
        else:
            builder.granted.append(("type", node.known, fact.value))
        return
    register = builder.load(node)
    movable = node.where is not builder.front and can_change_class(_instance_like(fact.value))
    (builder.late if movable else node.where or builder.late).add(fact, "type_is", register, fact.value)


def _atom(builder: Builder, fact: Fact, node: Node) -> None:
    register = builder.load(node)
    if not node.settled or not same_atom(node.known, fact.value):
        (node.where or builder.late).add(fact, f"{fact.kind}_eq", register, fact.value)
    else:
        builder.granted.append(("atom", node.known, fact.value))


def _answer(builder: Builder, fact: Fact, node: Node) -> None:
    """What a function gives for a string, whichever it is."""
    register = builder.load(node)
    (node.where or builder.late).add(fact, "answer", register, fact.value)


def _content_of(builder: Builder, fact: Fact, node: Node) -> None:
    """Length, keys, presence: of a long-lived dict in its own block, of a list as a word."""
    arguments = (fact.value,)
    if builder.settle(node):
        held = node.known
        register = builder.constant(held)
        if is_a(held, dict):
            ordered = fact.kind != "keys" or type(held).__iter__ is dict.__iter__
            builder.once(builder.block(held) if ordered else builder.late, fact, fact.kind, register, *arguments)
        elif is_a(held, (list, set, deque)) or fact.kind != "length" or len(held) != fact.value:
            builder.once(
                builder.words if is_a(held, list) else builder.late, fact, fact.kind, register, *arguments
            )
        else:
            builder.granted.append(("length", held, fact.value))
        return
    register = builder.load(node)
    (builder.front if node.where is builder.front else builder.late).add(fact, fact.kind, register, *arguments)


def _type_absent(builder: Builder, fact: Fact, node: Node) -> None:
    held = builder.settle(node) and is_a(node.known, type)
    register = builder.load(node)
    part = builder.block(node.known) if held else builder.front if node.where is builder.front else builder.late
    part.add(fact, "type_absent", register, fact.value)


def _bare(builder: Builder, fact: Fact, node: Node) -> None:
    """Names without an entry, and empty dicts: these are looked at on every call, without blocks of their own."""
    if builder.settle(node):
        content = builder.content(node.known)
        builder.block(content).add(fact, "bare", builder.constant(content), *fact.value)
        return
    holder, between = builder.load(node), builder.fresh()
    builder.late.add(Source("dict", node.source), "dict", between, holder)
    builder.late.add(fact, "bare", between, *fact.value)


def _unset(builder: Builder, fact: Fact, node: Node) -> None:
    base, kind, key = node.base, node.source.kind, node.source.key
    if base is None:
        raise ValueError("an argument is never unset")
    if not builder.settle(base):
        register = builder.load(base)
        (builder.front if base.where is builder.front else builder.late).add(fact, "unset", register, kind, key)
    elif kind == "attr":
        content = builder.content(base.known)
        builder.once(builder.block(content), fact, "absent", builder.constant(content), key)
    elif kind == "item" and is_a(base.known, dict):
        builder.once(builder.block(base.known), fact, "absent", builder.constant(base.known), key)
    else:
        builder.once(builder.late, fact, "unset", builder.constant(base.known), kind, key)


def _number(builder: Builder, fact: Fact, node: Node) -> None:
    register = builder.load(node)
    part = node.where or builder.late
    if fact.kind == "scalar" and part is not builder.front:
        part = builder.late  # an element changes without the place that holds the tensor
    part.add(fact, fact.kind, register, builder.bind(fact.value, str(fact.source), part))


def _count(builder: Builder, fact: Fact, node: Node) -> None:
    """A length as a number: it changes without the place that holds the container."""
    if builder.settle(node):
        part = builder.block(node.known) if is_a(node.known, dict) else builder.late
        register = builder.constant(node.known)
    else:
        register = builder.load(node)
        part = builder.front if node.where is builder.front else builder.late
    part.add(fact, "count", register, builder.bind(fact.value, f"len({fact.source})", part))


def _code(builder: Builder, fact: Fact, node: Node) -> None:
    held = builder.settle(node)
    register = builder.load(node)
    part = builder.words if held else builder.front if node.where is builder.front else builder.late
    part.add(fact, "code", register, *fact.value)


def _pair(builder: Builder, fact: Fact, node: Node) -> None:
    """Two places hold the same or different objects."""
    other = builder.nodes.node(fact.value)
    for each in (node, other):
        builder.settle_held(each)
    if node.settled and other.settled and fact.kind != "disjoint":
        if (node.known is other.known) == (fact.kind == "same"):
            builder.granted += (("known", each.known, None) for each in (node, other))
            return
    builder.late.add(fact, fact.kind, builder.load(node), builder.load(other))


def _apart(builder: Builder, fact: Fact, node: Node) -> None:
    """Tensors that are written share no memory with each other or with any other one."""
    written, rest = fact.value
    specs = {id(given.source): given.spec for given in builder.assumptions.inputs}
    nodes = [(builder.nodes.node(source), specs.get(id(source))) for source in (*written, *rest)]
    registers = tuple(builder.load(each) for each, _ in nodes)
    spans = tuple(-1 if spec is None else span(spec) for _, spec in nodes)
    builder.late.add(fact, "apart", registers, len(written), spans)


def _distinct(builder: Builder, fact: Fact, node: Node) -> None:
    """No two of these places hold one object."""
    nodes = [node, *map(builder.nodes.node, fact.value)]
    for each in nodes:
        builder.settle_held(each)
    if all(each.settled for each in nodes) and len({id(each.known) for each in nodes}) == len(nodes):
        builder.granted += (("known", each.known, None) for each in nodes)
        return
    builder.late.add(fact, "distinct", tuple(map(builder.load, nodes)))


def _version(builder: Builder, fact: Fact, node: Node) -> None:
    if not builder.settle(node):
        raise ValueError("the version of a type that is no long-lived object")
    builder.once(builder.late, fact, "version", builder.constant(node.known), builder.members(node.known))


def _tensor_fact(builder: Builder, fact: Fact, node: Node) -> None:
    builder.tensor(fact.source, fact.value)


def span(spec: TensorSpec) -> int:
    """The bytes between the first and the last element, -1 where sizes are free."""
    sizes = [size for size in spec.sizes if isinstance(size, int)]
    if len(sizes) != len(spec.sizes):
        return -1
    if 0 in sizes:
        return 0
    if spec.order is not None:
        return math.prod(sizes) * spec.dtype.size
    strides = [stride for stride in spec.strides or () if isinstance(stride, int)]
    if len(strides) != len(sizes):
        return -1
    return (1 + sum((size - 1) * stride for size, stride in zip(sizes, strides, strict=True))) * spec.dtype.size


class _Movable:
    """An instance of a class made at run time."""


def _instance_like(kind: type) -> Value:
    """Something whose class can be changed just when that of instances of ``kind`` can."""
    return _Movable() if not immutable(kind) or issubclass(kind, types.ModuleType) else 0


RULES: dict[str, Callable[[Builder, Fact, Node], None]] = {
    "is": _identity,
    "type": _type_of,
    "int": _atom,
    "float": _atom,
    "str": _atom,
    "answer": _answer,
    "length": _content_of,
    "keys": _content_of,
    "absent": _content_of,
    "present": _content_of,
    "type_absent": _type_absent,
    "bare": _bare,
    "unset": _unset,
    "tensor": _tensor_fact,
    "integer": _number,
    "real": _number,
    "scalar": _number,
    "count": _count,
    "address": _number,
    "code": _code,
    "same": _pair,
    "different": _pair,
    "disjoint": _pair,
    "apart": _apart,
    "distinct": _distinct,
    "version": _version,
}
