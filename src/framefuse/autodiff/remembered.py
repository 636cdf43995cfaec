"""Gives saved values their histories where gradients are differentiated again: what memory holds, with the gradient of
what it was computed by.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

import torch
from torch.autograd.function import FunctionCtx

from framefuse.ir.graph import Arg, Attributes, Graph, Node
from framefuse.ir.rename import rebuilt
from framefuse.ir.strides import dense_strides
from framefuse.ir.values import Value

# Eager differentiates its gradients through what its nodes saved: each unpacks a tensor that holds what is in memory by
# then and has the history of what was saved. A mark of this name has its elements from its first operand, which came
# from memory, and the gradient of its second, which computes the value as forward did.
REMEMBERED = "remembered"
MARK: Attributes = (("name", REMEMBERED), ("parameters", ()))


def as_remembered(memory: Node, value: Node) -> Node:
    """What stands for a saved value, where ``memory`` is the tensor that was saved."""
    return replace(value, op="derived", inputs=(memory, value), attrs=MARK, strides=None)


def has_history(node: Node) -> bool:
    """Whether a saved value is one whose own gradient may be asked."""
    return node.dtype.is_float or node.dtype.kind == "complex"


def with_histories(graph: Graph, now: Mapping[Node, Node]) -> tuple[Graph, dict[Node, Node]]:
    """The graph with marks for nodes whose values come from others ``now``, and what is in the nodes' place then."""
    places: dict[Node, Node] = {}
    behind: dict[Node, list[Node]] = {}
    seen: set[Node] = set()
    for node in graph.nodes:
        seen.add(node)
        came = now.get(node)
        if came is not None and not has_history(node):
            places[node] = came
        elif came is not None:
            value = node.over(tuple(places.get(part, part) for part in node.inputs))
            places[node] = as_remembered(came, value)
            behind.setdefault(node if came in seen else came, []).extend((value, places[node]))
    nodes = tuple(each for node in graph.nodes for each in (node, *behind.get(node, ())))
    return replace(graph, nodes=nodes), places


def values_of(node: Node) -> tuple[Node, ...]:
    """Of a mark the value whose gradient it has."""
    return node.inputs[1:] if node.op == "derived" and node.attr("name") == REMEMBERED else ()


def read_for(nodes: Iterable[Node]) -> dict[Node, Node]:
    """What gradients read in the place of nodes: the marks in which their values are remembered."""
    return {value: node for node in nodes for value in values_of(node)}


def on_torch(graph: Graph) -> tuple[Graph, Mapping[Node, Node]]:
    """The graph for a run on torch's own tape, where a mark is a call; and what its nodes have become."""
    images: dict[Node, Node] = {}

    def change(node: Node, inputs: tuple[Node, ...]) -> Sequence[Node]:
        if node.op == "derived" and node.attr("name") in (REMEMBERED, "kept") and inputs[0] is not inputs[-1]:
            call = replace(node, op="library", inputs=inputs, attrs=CALL, strides=None)
            strides = dense_strides(node.shape, range(len(node.shape)))
            images[node] = replace(node, op="result", inputs=(call,), attrs=(("path", ()),), strides=strides)
            return (call, images[node])
        same = all(new is old for new, old in zip(inputs, node.inputs, strict=True))
        images[node] = node if same else node.over(inputs)
        return (images[node],)

    return rebuilt(graph, change), images


class _Remembered(torch.autograd.Function):
    """The first tensor, with the history of the second."""

    generate_vmap_rule = True

    @staticmethod
    def forward(memory: torch.Tensor, value: torch.Tensor) -> torch.Tensor:
        return memory.detach().clone()

    @staticmethod
    def setup_context(ctx: FunctionCtx, inputs: Value, output: Value) -> None:
        pass

    @staticmethod
    def backward(ctx: FunctionCtx, gradient: torch.Tensor) -> tuple[None, torch.Tensor]:
        return None, gradient


def remembered(memory: torch.Tensor, value: torch.Tensor) -> torch.Tensor:
    """The first tensor, with the history of the second."""
    result: torch.Tensor = _Remembered.apply(memory, value)
    return result


CALL: Attributes = (
    ("target", remembered), ("name", REMEMBERED), ("args", (Arg(0), Arg(1))), ("kwargs", {}), ("random", False),
    ("orders", (None, None)), ("views", ()),
)  # fmt: skip
