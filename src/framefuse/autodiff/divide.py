"""Divides a graph into pieces, each a node of autograd: an output from which others are computed ends one."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from framefuse.autodiff.joint import passes_gradients
from framefuse.autodiff.rebuild import extract, needed_for
from framefuse.ir.graph import Graph, Node


@dataclass(frozen=True, slots=True)
class Part:
    """A piece before anything is decided: ``outputs`` are the places of its outputs in the whole graph, ``feeds`` the
    places of those outputs of earlier pieces that are its last inputs, and ``origin`` gives the whole graph's node
    for each of its own.
    """

    graph: Graph
    outputs: tuple[int, ...]
    feeds: tuple[int, ...]
    origin: Mapping[Node, Node]


def divide(graph: Graph) -> tuple[Part, ...]:
    """The pieces in order; one, the whole graph, where no output leads to another."""
    levels = _levels(graph)
    places = [place for place, output in enumerate(graph.outputs) if output.requires_grad]
    last = max(levels[graph.outputs[place].node] for place in places)
    parts = []
    for level in range(last + 1):
        here = tuple(place for place in places if levels[graph.outputs[place].node] == level)
        if here:
            before = [place for place in places if levels[graph.outputs[place].node] < level]
            parts.append(_part(graph, here, before))
    return tuple(parts)


def _levels(graph: Graph) -> dict[Node, int]:
    """For each node that carries a gradient, how many outputs lie behind each other on the way to it, at most."""
    ends = {output.node for output in graph.outputs if output.requires_grad}
    levels = {graph.inputs[place]: 0 for place in graph.differentiable}
    for node in graph.nodes:
        if node not in levels and passes_gradients(node):
            found = [levels[operand] + (operand in ends) for operand in node.inputs if operand in levels]
            if found:
                levels[node] = max(found)
    return levels


def _part(graph: Graph, outputs: tuple[int, ...], before: Sequence[int]) -> Part:
    """The piece of these outputs, which takes what it reads of the outputs ``before`` as further inputs."""
    wanted = [graph.outputs[place].node for place in outputs]
    ends = {graph.outputs[place].node: place for place in before if graph.outputs[place].node not in graph.inputs}
    needed = needed_for(wanted, {*graph.inputs, *ends})
    read = [node for node in ends if node in needed]
    first = len(graph.inputs)
    leaves = {node: node for node in graph.inputs}
    for number, node in enumerate(read, first):
        leaves[node] = replace(node, op="input", inputs=(), attrs=(("index", number),), strides=None)
    beside = [node for node in graph.nodes if node.op == "result" and node.inputs[0] in needed]  # read by gradients
    made = extract(graph.nodes, [*wanted, *beside], leaves, marks=True)
    inputs = tuple(leaves.values())
    reached = [place for place in graph.differentiable if graph.inputs[place] in needed]
    part = replace(
        graph,
        inputs=inputs,
        nodes=tuple(dict.fromkeys((*inputs, *made.values()))),
        outputs=tuple(replace(graph.outputs[place], node=made[graph.outputs[place].node]) for place in outputs),
        writes=(),
        bound=tuple((symbol, made[node], dimension) for symbol, node, dimension in graph.bound if node in made),
        differentiable=(*reached, *range(first, len(inputs))),
        late=(),
        kept=(),
    )
    origin = {new: old for old, new in (*leaves.items(), *made.items())}
    return Part(part, outputs, tuple(ends[node] for node in read), origin)
