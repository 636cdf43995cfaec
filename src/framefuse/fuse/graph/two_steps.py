"""Turns reductions over several axes into two, one behind the other."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from framefuse.ir.graph import Graph, Node
from framefuse.ir.rename import rebuilt


def in_two_steps(graph: Graph, first: Mapping[Node, tuple[int, ...]]) -> Graph:
    """The graph in which each reduction of ``first`` reduces these of its axes, and then what is left of them."""
    if not first:
        return graph

    def change(node: Node, inputs: tuple[Node, ...]) -> Sequence[Node]:
        if node not in first:
            return (node if inputs == node.inputs else node.over(inputs),)
        (source,), axes = inputs, first[node]
        kept = [axis for axis in range(len(source.shape)) if axis not in axes]
        shape = tuple(source.shape[axis] for axis in kept)
        part = replace(node, inputs=inputs, attrs=(("axes", axes),), shape=shape)
        rest = tuple(place for place, axis in enumerate(kept) if axis in node.attr("axes"))
        return part, replace(node, inputs=(part,), attrs=(("axes", rest),))

    return rebuilt(graph, change)
