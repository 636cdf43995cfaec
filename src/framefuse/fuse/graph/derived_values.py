"""Turns what a graph computes from parameters and buffers alone into one call, whose results a plan keeps."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from framefuse.fuse.addressing.layout import Order
from framefuse.fuse.graph.fixed import count_of, cut_out, first_fixed, fixed_nodes, pruned, results_of, told_by
from framefuse.fuse.setting import Setting
from framefuse.ir.derivations import Derived
from framefuse.ir.graph import Arg, Graph, Node, call_attrs
from framefuse.ir.ops import TABLE, VIEW
from framefuse.ir.rename import rebuilt


def with_derived(graph: Graph, setting: Setting) -> Graph:
    """The graph in which one call for each device gives the values that are computed from parameters and buffers and
    read by what is not: what such a value is a view of, and nothing that is larger than all it is computed from.
    """
    fixed = _kept(graph, fixed_nodes(graph, setting))
    wanted = _read_outside(graph, fixed)
    if not wanted:
        return graph
    ordered = first_fixed(graph, fixed)
    given: dict[Node, Node] = {}
    calls: list[Node] = []
    for device in dict.fromkeys(node.device for node in wanted):
        mine = {node: order for node, order in wanted.items() if node.device == device}
        alone, parents = cut_out(ordered, mine)
        call = _call(Derived(alone, told_by(ordered, parents, setting)), parents, next(iter(mine)))
        results = results_of(call, mine)
        calls += [call, *results]
        given.update(zip(mine, results, strict=True))
    return _with(ordered, given, calls)


def _call(target: Derived, parents: tuple[Node, ...], like: Node) -> Node:
    """The call that gives what is derived from the parents."""
    args = (tuple(Arg(place) for place in range(len(parents))),)
    attrs = call_attrs(target, args, (None,) * len(parents), name="derived")
    return Node("library", parents, attrs, like.dtype, (), None, like.line, like.device)


def _kept(graph: Graph, fixed: frozenset[Node]) -> frozenset[Node]:
    """Those of the fixed values that may be kept: the program gets none of them, which it could change."""
    shown = {output.node for output in graph.outputs} | {write.node for write in graph.writes} | {*graph.kept}
    outside: set[Node] = set()  # what is read by what is not kept
    largest: dict[Node, int] = {}  # of the parents
    for node in graph.nodes:
        own = count_of(node) if node.op == "input" else 0
        below = (largest[operand] for operand in node.inputs) if node in fixed else ()
        largest[node] = max((own, *below))
    kept: set[Node] = set()
    for node in reversed(graph.nodes):
        spread = node in outside and node in fixed and count_of(node) > largest[node]
        if node in fixed and not spread and node not in shown:
            kept.add(node)
        else:
            outside.update(node.inputs)
    return frozenset(kept)


def _read_outside(graph: Graph, kept: frozenset[Node]) -> dict[Node, Order | None]:
    """The computed values that what is not kept reads, each with the order in which calls read it."""
    wanted: dict[Node, Order | None] = {}
    for node in graph.nodes:
        if node in kept:
            continue
        orders = node.attr("orders") if node.op == "library" else (None,) * len(node.inputs)
        for operand, order in zip(node.inputs, orders, strict=True):
            if operand not in kept:
                continue
            computed = operand
            while computed in kept and TABLE[computed.op].kind == VIEW and not _is_copy(node, computed):
                computed, order = computed.inputs[0], None
            if computed in kept and computed.op != "input" and wanted.get(computed) is None:
                wanted[computed] = order
    return wanted


def _is_copy(reader: Node, node: Node) -> bool:
    """Whether a view of the same shape is there because a call reads its operand in another order."""
    return reader.op == "library" and node.op == "expand" and node.inputs[0].shape == node.shape


def _with(graph: Graph, given: dict[Node, Node], calls: Sequence[Node]) -> Graph:
    """The graph with the calls behind its inputs, their results in the place of what they give, and nothing else of
    what these were computed from.
    """
    changed = rebuilt(graph, lambda node, inputs: (given[node] if node in given else _over(node, inputs),))
    own = {*calls}
    later = (node for node in pruned(changed).nodes if node.op != "input" and node not in own)
    return replace(changed, nodes=(*changed.inputs, *calls, *later))


def _over(node: Node, inputs: tuple[Node, ...]) -> Node:
    return node if inputs == node.inputs else node.over(inputs)
