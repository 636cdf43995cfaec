"""Takes views whose own gradients may be asked out of a graph: what is computed from one has it as a further input."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace

from framefuse.autodiff.rebuild import MARKS
from framefuse.ir.graph import Graph, Node
from framefuse.ir.ops import TABLE, VIEW
from framefuse.ir.rename import rebuilt

SHOWN = "shown"  # the name of their ``derived`` nodes


def apart(graph: Graph) -> tuple[Graph, tuple[Node, ...]]:
    """The graph with a further input in place of each view that is shown, and these inputs. What each of them is a view
    by is what the graph keeps last, so that it stays known in the graphs that are made of this: :func:`views_of`.
    """
    late = {value for each in graph.late for value, _ in each.results}
    marks = [node for node in graph.nodes if node.op == "derived" and node.attr("name") == SHOWN]
    marks = [node for node in marks if node.attr("parameters")[0] in late]
    if not marks:
        return graph, ()
    first = len(graph.inputs)
    leaves = {
        node: replace(node, op="input", inputs=(), attrs=(("index", first + number),), strides=None)
        for number, node in enumerate(marks)
    }
    views: dict[Node, Node] = {}

    def change(node: Node, inputs: tuple[Node, ...]) -> Sequence[Node]:
        if node in leaves:
            views[leaves[node]] = _plain(inputs[0])
            return (leaves[node],)
        same = all(new is old for new, old in zip(inputs, node.inputs, strict=True))
        return (node if same else node.over(inputs),)

    without_views = rebuilt(graph, change)
    further = tuple(leaves.values())
    return replace(
        without_views,
        inputs=(*without_views.inputs, *further),
        kept=(*without_views.kept, *(views[leaf] for leaf in further)),
        differentiable=(*graph.differentiable, *range(first, first + len(further))),
        shown=tuple(node.attr("parameters")[0] for node in marks),
    ), further


def views_of(graph: Graph, leaves: Collection[Node]) -> Mapping[Node, Node]:
    """What each of the further inputs is a view by in a graph that was made of the one with them."""
    return dict(zip(leaves, graph.kept[len(graph.kept) - len(leaves) :], strict=True))


def _plain(node: Node) -> Node:
    while node.op in MARKS:
        node = node.inputs[0]
    return node


def base(leaf: Node, views: Mapping[Node, Node]) -> int:
    """The number of the input that a further input is a view of; -1 where it is a view of something else."""
    node = leaf
    while node in views or (TABLE[node.op].kind == VIEW and len(node.inputs) == 1):
        node = views[node] if node in views else node.inputs[0]
    return int(node.attr("index")) if node.op == "input" else -1


def together(graph: Graph, leaves: Collection[Node]) -> Graph:
    """The forward graph, in which the views are made of what they are views of."""
    if not leaves:
        return graph
    views = views_of(graph, leaves)
    graph = replace(graph, kept=graph.kept[: len(graph.kept) - len(leaves)])
    forms: dict[Node, Node] = {}

    def change(node: Node, inputs: tuple[Node, ...]) -> Sequence[Node]:
        same = all(new is old for new, old in zip(inputs, node.inputs, strict=True))
        forms[node] = forms[views[node]] if node in views else node if same else node.over(inputs)
        return (forms[node],)

    inputs = tuple(node for node in graph.inputs if node not in views)
    differentiable = tuple(place for place in graph.differentiable if place < len(inputs))
    return replace(rebuilt(replace(graph, inputs=inputs), change), differentiable=differentiable)
