"""Finds what a graph computes from parameters and buffers alone, and cuts it out as a graph of its own."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

from framefuse.fuse.addressing.layout import Order, dense_strides
from framefuse.fuse.setting import Setting
from framefuse.ir.graph import Graph, Node, Output
from framefuse.ir.numbers import Real
from framefuse.ir.ops import CALL, CREATE, TABLE
from framefuse.ir.values import Value

PURE_CALLS = ("matmul",)


def fixed_nodes(graph: Graph, setting: Setting) -> frozenset[Node]:
    """The values that stay what they are while parameters and buffers do: these inputs, and what pure operations of
    constant sizes make of them.
    """
    if not setting.fixed:
        return frozenset()
    written = {write.input for write in graph.writes}
    stays = setting.fixed.keys() - written
    fixed = {node for number, node in enumerate(graph.inputs) if number in stays and _is_sized(node)}
    constants: set[Node] = set()
    for node in graph.nodes:
        row = TABLE[node.op]
        if row.fails or not _is_sized(node) or (row.kind == CALL and node.op not in PURE_CALLS):
            continue  # what may fail does so in each call
        if row.kind == CREATE and node.op != "input":
            constants.add(node)
        elif node.inputs and all(operand in fixed or operand in constants for operand in node.inputs):
            (constants if constants.issuperset(node.inputs) else fixed).add(node)
    return frozenset(fixed)


def _is_sized(node: Node) -> bool:
    """Whether no number of a call says how large a value is, or what it is."""
    sizes = (*node.shape, *(node.strides or ()))
    return all(size.constant is not None for size in sizes) and not _has_symbols(node.attrs)


def _has_symbols(value: Value) -> bool:
    if isinstance(value, (tuple, list)):
        return any(map(_has_symbols, value))
    return isinstance(value, Real) or bool(getattr(value, "symbols", None))


def count_of(node: Node) -> int:
    """The elements of a value of constant sizes."""
    return math.prod(size.constant or 0 for size in node.shape)


def first_fixed(graph: Graph, fixed: frozenset[Node]) -> Graph:
    """The graph with what is fixed before everything else, and the constants that it needs."""
    early: dict[Node, None] = dict.fromkeys(graph.inputs)
    early.update(dict.fromkeys(behind(graph, fixed)))
    return replace(graph, nodes=(*early, *(node for node in graph.nodes if node not in early)))


def behind(graph: Graph, wanted: Iterable[Node]) -> tuple[Node, ...]:
    """What values are computed from, and themselves, in program order."""
    waiting = list(wanted)
    needed = set(waiting)
    while waiting:
        fresh = [operand for operand in waiting.pop().inputs if operand not in needed]
        needed.update(fresh)
        waiting += fresh
    return tuple(node for node in graph.nodes if node in needed)


def pruned(graph: Graph) -> Graph:
    """The graph without values that nothing needs; library calls stay."""
    roots = {node for node in graph.nodes if node.op in ("input", "library")}
    roots.update(output.node for output in graph.outputs)
    roots.update(write.node for write in graph.writes)
    roots.update((*graph.kept, *(node for _, node, _ in graph.bound)))
    return replace(graph, nodes=behind(graph, roots))


def cut_out(graph: Graph, wanted: Mapping[Node, Order | None]) -> tuple[Graph, tuple[Node, ...]]:
    """The graph that computes values in the orders ``wanted``, and the inputs of ``graph`` from which."""
    nodes = behind(graph, wanted)
    parents = tuple(node for node in nodes if node.op == "input")
    forms: dict[Node, Node] = {}
    for node in nodes:
        if node.op == "input":
            forms[node] = replace(node, attrs=(("index", parents.index(node)),))
        else:
            forms[node] = node.over(tuple([forms[operand] for operand in node.inputs]))
    outputs = tuple(
        Output(-1, forms[node], tuple(range(len(node.shape))) if order is None else order)
        for node, order in wanted.items()
    )
    alone = Graph("derived", tuple(forms[node] for node in parents), tuple(forms.values()), outputs, (), ())
    return alone, parents


def told_by(graph: Graph, parents: Sequence[Node], setting: Setting) -> tuple[int, ...]:
    """The numbers of those parents of which a counter beside them tells when they are written to."""
    return tuple(number for number, node in enumerate(graph.inputs) if node in parents and setting.fixed.get(number))


def results_of(call: Node, wanted: Mapping[Node, Order | None]) -> Sequence[Node]:
    """The results of a call that gives values in the orders wanted."""
    found = []
    for place, (node, order) in enumerate(wanted.items()):
        path, strides = (("path", (place,)),), dense_strides(node.shape, order)
        found.append(Node("result", (call,), path, node.dtype, node.shape, strides, node.line, node.device))
    return found
