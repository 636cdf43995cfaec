"""Rounds 16-bit values on the way to an extreme that is trained as eager does, so that a backward finds it again."""

from __future__ import annotations

from dataclasses import replace

from framefuse.autodiff.reverse import active
from framefuse.ir.graph import Graph, Node
from framefuse.ir.rename import rebuilt
from framefuse.ir.rewrite import reached

EXTREMES = frozenset(("amax", "amin"))
DERIVED = "extreme_of_all"  # the same of an infinite norm


def with_exact_extremes(graph: Graph) -> Graph:
    """The graph whose casts before an extreme that gradients flow through are not loose. The gradient goes to the
    elements that equal the extreme, and a kernel that computes these again, from values that lie rounded in memory,
    would find none in a row whose extreme was computed with more digits: its gradients were NaN.
    """
    wanted = {graph.inputs[place] for place in graph.differentiable}
    path = active(graph.nodes, [output.node for output in graph.outputs], wanted)
    before = reached(operand for node in path if _is_extreme(node) for operand in node.inputs)
    loose = {node for node in before if node.op == "cast" and node.attr("loose")}
    if not loose:
        return graph

    def change(node: Node, inputs: tuple[Node, ...]) -> tuple[Node, ...]:
        if node not in loose:
            return (node if inputs == node.inputs else node.over(inputs),)
        attrs = tuple((name, False if name == "loose" else value) for name, value in node.attrs)
        return (replace(node, inputs=inputs, attrs=attrs),)

    return rebuilt(graph, change)


def _is_extreme(node: Node) -> bool:
    return node.op in EXTREMES or (node.op == "derived" and node.attr("name") == DERIVED)
