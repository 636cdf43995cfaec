"""Makes graphs out of parts of others: what some nodes need, up to given leaves, with marks for gradients or not."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from types import MappingProxyType

from framefuse.autodiff.remembered import as_remembered
from framefuse.autodiff.tapes import replayed
from framefuse.ir.graph import Graph, Node, Output

MARKS = ("detach", "derived")  # rows that speak of gradients alone: their value is that of their first operand


NO_STATES: Mapping[Node, Node] = MappingProxyType({})


def needed_for(wanted: Iterable[Node], ends: Collection[Node], marks: bool = True) -> set[Node]:
    """``wanted`` and all that they are made of, up to ``ends``; what only marks name is left out unless ``marks``."""
    needed: set[Node] = set()
    waiting = list(wanted)
    while waiting:
        node = waiting.pop()
        if node not in needed:
            needed.add(node)
            if node not in ends:
                waiting += node.inputs if marks or node.op not in MARKS else node.inputs[:1]
    return needed


def extract(
    nodes: Sequence[Node],
    wanted: Iterable[Node],
    leaves: Mapping[Node, Node],
    marks: bool = False,
    states: Mapping[Node, Node] = NO_STATES,
    saved: Mapping[Node, Node] = NO_STATES,
) -> dict[Node, Node]:
    """``wanted`` and all that they are made of from ``leaves``, as new nodes; the rows that speak of gradients alone
    stay if ``marks``.

    ``nodes`` are in program order. The result maps each old node to its new one, in program order; ``leaves`` say
    what stands for the nodes at which the walk ends. ``states`` are the taped calls that are made again, each with the
    leaf that is the generator's state before it. What is ``saved`` is read from the leaf that goes with it.
    """
    needed = needed_for(wanted, leaves, marks)
    copies: dict[Node, Node] = {}
    for node in nodes:
        if node not in needed:
            continue
        if node in leaves:
            copies[node] = leaves[node]
        elif node.op in MARKS and not marks:
            copies[node] = copies[node.inputs[0]]
        else:
            inputs = tuple([copies[operand] for operand in node.inputs])
            same = all(new is old for new, old in zip(inputs, node.inputs, strict=True))
            if node in states:
                copies[node] = replayed(node, inputs, leaves[states[node]])
            else:
                copies[node] = node if same else node.over(inputs)
        if node in saved:
            copies[node] = as_remembered(saved[node], copies[node])
    return copies


def without_marks(graph: Graph) -> Graph:
    """The graph without the rows that speak of gradients alone."""
    if all(node.op not in MARKS for node in graph.nodes):
        return graph
    return mapped(graph, extract(graph.nodes, named(graph), {}), ())


def named(graph: Graph) -> list[Node]:
    """The nodes of a graph but for marks that nothing outside names."""
    ends = [*(output.node for output in graph.outputs), *(write.node for write in graph.writes)]
    return [*(node for node in graph.nodes if node.op not in MARKS), *ends]


def mapped(graph: Graph, images: Mapping[Node, Node], further: Sequence[Output]) -> Graph:
    """The graph with other nodes in place of its own, and further outputs."""
    outputs = tuple(replace(output, node=images[output.node]) for output in graph.outputs)
    return replace(
        graph,
        inputs=tuple(images[node] for node in graph.inputs),
        nodes=tuple(dict.fromkeys(images.values())),
        outputs=(*outputs, *further),
        writes=tuple(replace(write, node=images[write.node]) for write in graph.writes),
        bound=tuple((symbol, images[node], dimension) for symbol, node, dimension in graph.bound),
        kept=tuple(images[node] for node in graph.kept),
        lasting=frozenset(images[node] for node in graph.lasting if node in images),
        results=frozenset(images[node] for node in graph.results if node in images),
        regions={images[node]: region for node, region in graph.regions.items() if node in images},
    )
