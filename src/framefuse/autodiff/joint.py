"""Grows a graph by the nodes of its gradients, and cuts parts out of what has grown."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from types import MappingProxyType

from framefuse.autodiff.formulas import ANEW
from framefuse.autodiff.remembered import read_for
from framefuse.autodiff.reverse import differentiable, gradients
from framefuse.ir.builder import Builder, builder_over
from framefuse.ir.comparisons import Relation
from framefuse.ir.graph import Graph, Node
from framefuse.ir.nested import leaves
from framefuse.ir.numbers import Expr, Real, Symbol
from framefuse.ir.values import Value

KEPT = "kept"  # the name of ``derived`` nodes that are other contents under an unchanged history
NOTHING: Mapping[Node, Node] = MappingProxyType({})


@dataclass(slots=True)
class Joint:
    """A graph with its gradients on one builder.

    ``tangents[i]`` is the input node that stands for the gradient of differentiable output ``i`` (None: none came),
    ``results[j]`` the gradient of the ``j``-th input that requires grad, None where it is not wanted or nothing flows
    to it.
    """

    builder: Builder
    tangents: tuple[Node | None, ...]
    results: tuple[Node | None, ...]
    made: list[Node] = field(default_factory=list)  # by the reverse sweep, in program order
    moved: Mapping[Node, Node] = field(default_factory=dict)  # nodes with those that came in their place

    @staticmethod
    def of(
        graph: Graph,
        given: Sequence[bool],
        wanted: Sequence[bool],
        again: bool = False,
        now: Mapping[Node, Node] = NOTHING,
    ) -> Joint:
        """Runs the reverse sweep for the outputs whose gradient is given and the inputs that want one; ``again`` says
        that the gradients will be differentiated. They are computed from the nodes ``now`` in place of others.
        """
        histories = read_for(graph.nodes)
        now = {**histories, **now}
        # Eager's formulas take what their node saved and compute the rest of it anew: no result of another operation
        # serves for that, which is as it was when the operand may have been written.
        builder = builder_over(graph, histories.keys() | (now.keys() & graph.results))
        builder.differentiable = again
        known = len(builder.nodes)
        outputs = [output.node for output in graph.outputs if output.requires_grad]
        nodes = [
            builder.opaque("input", (), (("index", place),), node.dtype, node.shape, None, node.device)
            for place, node in enumerate(outputs)
        ]
        tangents: tuple[Node | None, ...] = tuple(
            node if here else None for node, here in zip(nodes, given, strict=True)
        )
        seeds = [(node, tangent) for node, tangent in zip(outputs, tangents, strict=True) if tangent is not None]
        inputs = [graph.inputs[place] for place in graph.differentiable]
        asked = [node for node, here in zip(inputs, wanted, strict=True) if here]
        by_node = gradients(builder, seeds, asked, again)
        results = tuple(by_node[node] if here else None for node, here in zip(inputs, wanted, strict=True))
        return Joint(builder, tangents, results, builder.nodes[known:]).over(now)

    def over(self, now: Mapping[Node, Node]) -> Joint:
        """The same gradients, computed from the nodes ``now`` in place of others."""
        if not now:
            return self
        moved = dict(now)
        for node in self.made:
            if node.op == "derived" and node.attr("name") == ANEW and node.inputs[0] in now:
                result = node.inputs[0]
                moved[node] = result.over(tuple(now.get(operand, operand) for operand in result.inputs))
                continue
            inputs = tuple(moved.get(operand, operand) for operand in node.inputs)
            if inputs != node.inputs and node not in moved:
                moved[node] = node.over(inputs)
        own = [moved.get(node, node) for node in self.made]
        self.builder.nodes[len(self.builder.nodes) - len(own) :] = own
        results = tuple(node and moved.get(node, node) for node in self.results)
        return replace(self, results=results, made=own, moved=moved)

    @property
    def relations(self) -> tuple[Relation, ...]:
        """What the reverse sweep assumed about sizes."""
        return tuple(self.builder.relations)


def carrying(graph: Graph, inputs: Sequence[int]) -> Graph:
    """The graph with those inputs that require grad, and the outputs that eager would say require it."""
    carried = {graph.inputs[place] for place in inputs}
    for node in graph.nodes:
        if passes_gradients(node) and not carried.isdisjoint(node.inputs):
            carried.add(node)
    outputs = tuple(
        replace(output, requires_grad=output.input is None and output.node in carried) for output in graph.outputs
    )
    return replace(graph, differentiable=tuple(inputs), outputs=outputs)


def passes_gradients(node: Node) -> bool:
    """Whether eager's autograd leads from the node to its operands."""
    return node.op != "detach" and (node.op == "library" or differentiable(node.dtype))


def read_later(graph: Graph) -> frozenset[int]:
    """The inputs to whose gradients every way leads by what was written to them behind autograd's back: by their
    contents as they are at the end of the call.
    """
    earlier: set[int] = set()
    later: set[int] = set()
    waiting = [output.node for output in graph.outputs if output.requires_grad]
    seen = set(waiting)
    while waiting:
        node = waiting.pop()
        if node.op == "input" or not passes_gradients(node):
            continue
        marked = node.op == "derived"
        for operand in node.inputs[1:] if marked else node.inputs:
            if operand.op == "input":
                (later if marked and node.attr("name") == KEPT else earlier).add(int(operand.attr("index")))
            elif operand not in seen:
                seen.add(operand)
                waiting.append(operand)
    return frozenset(later - earlier)


def names_of(value: Value) -> set[Symbol | str]:
    """The symbols and names of floats in a node's shape, strides and attributes, or in any nested value."""
    if isinstance(value, Node):
        return names_of((value.shape, value.strides, [attr for _, attr in value.attrs]))
    names: set[Symbol | str] = set()
    for leaf in leaves(value):
        if isinstance(leaf, Expr):
            names |= leaf.symbols
        elif isinstance(leaf, Real):
            names |= leaf.names
    return names
