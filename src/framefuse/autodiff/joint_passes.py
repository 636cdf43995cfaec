"""Puts a user's results and gradients, which a pass over the joint graph gave, in the place of a piece's own."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace

from framefuse.autodiff.joint import Joint
from framefuse.autodiff.rebuild import extract
from framefuse.errors import UserError
from framefuse.ir.builder import Builder, builder_over
from framefuse.ir.derivative import Given
from framefuse.ir.graph import Graph, Node, Output
from framefuse.ir.rewrite import reached

JointPass = Callable[[Graph], Graph]


@dataclass(frozen=True, slots=True)
class Changed:
    """A piece behind users' passes: its ``graph`` and ``given`` gradients, and what came in the place of results and of
    other ``values`` that are read outside of it.
    """

    graph: Graph
    given: Given
    values: Mapping[Node, Node]


def with_joint_pass(primal: Graph, read: Collection[Node], change: JointPass) -> Changed | None:
    """The piece's graph and its gradients behind ``change``, which gets and gives a graph of both: its inputs are those
    of ``primal`` and the gradients that come; its outputs the results, the nodes that are ``read`` outside, and the
    gradients of the differentiable inputs. None where nothing changed.
    """
    asked = [output for output in primal.outputs if output.requires_grad]
    joint = Joint.of(primal, [True] * len(asked), [True] * len(primal.differentiable))
    named = dict.fromkeys((*(output.node for output in primal.outputs), *read))
    graph, inside = _whole(primal, [*named], joint)
    changed = change(graph)
    if changed is graph:
        return None
    outside = {new: old for old, new in inside.items()}
    copies = extract(changed.nodes, [output.node for output in changed.outputs], outside, marks=True)
    ends = [copies[output.node] for output in changed.outputs]
    values = dict(zip(named, ends, strict=False))
    live = reached(values.values())
    live.update(node for node in copies.values() if node.op == "result" and node.inputs[0] in live)
    known = dict.fromkeys((*primal.nodes, *(node for node in copies.values() if node in live)))
    if any(node.op == "library" and node.attr("random") for node in known.keys() - {*primal.nodes}):
        raise UserError("a pass of the stage 'joint' changes what draws random numbers. Leave it, or use 'lowered'")
    gradients = iter(ends[len(named) :])
    given = Given(
        tuple(tangent for tangent in joint.tangents if tangent is not None),
        tuple(None if gradient is None else next(gradients) for gradient in joint.results),
        tuple(node for node in dict.fromkeys(copies.values()) if node not in known and node not in inside),
    )
    outputs = tuple(replace(output, node=values[output.node]) for output in primal.outputs)
    relations = tuple(dict.fromkeys((*primal.relations, *changed.relations)))
    whole = replace(primal, nodes=tuple(known), outputs=outputs, relations=relations)
    return Changed(whole, given, values)


def _whole(primal: Graph, named: Sequence[Node], joint: Joint) -> tuple[Graph, dict[Node, Node]]:
    """A piece with its gradients as one graph that gives the ``named`` nodes, and its inputs for gradients by those of
    the joint.
    """
    first = len(primal.inputs)
    tangents = [tangent for tangent in joint.tangents if tangent is not None]
    inside = {
        tangent: replace(tangent, attrs=(("index", first + place),)) for place, tangent in enumerate(tangents)
    }
    gradients = [gradient for gradient in joint.results if gradient is not None]
    copies = extract(joint.builder.nodes, [*primal.nodes, *gradients], inside, marks=True)
    graph = replace(
        primal,
        name=f"{primal.name}_joint",
        inputs=(*primal.inputs, *inside.values()),
        nodes=tuple(dict.fromkeys((*primal.inputs, *inside.values(), *copies.values()))),
        outputs=tuple(Output(place, copies[node], None) for place, node in enumerate((*named, *gradients))),
        relations=joint.relations,
        differentiable=(),
    )
    return graph, inside


class Moved:
    """Has all that reads values of pieces read what came in their place."""

    def __init__(self) -> None:
        self.values: dict[Node, tuple[Node, Collection[Node]]] = {}  # with the nodes that read the old one on purpose

    def now(self, node: Node, reader: Node | None = None) -> Node:
        """What ``reader`` reads in the place of a node; None stands for what names nodes from outside."""
        new, own = self.values.get(node, (node, ()))
        return node if reader in own else new

    def images(self, nodes: Sequence[Node], ends: Sequence[Node]) -> dict[Node, Node]:
        """What each node that the ``ends`` need has become, in an order in which they can be computed."""
        images: dict[Node, Node] = {}
        begun: set[Node] = set()
        live: set[Node] = set()
        waiting = [*ends]
        while waiting:
            node = waiting.pop()
            if node not in live:
                live.add(node)
                waiting += [self.now(part, node) for part in node.inputs]
        waiting = [node for node in reversed(nodes) if node in live]
        while waiting:
            node = waiting[-1]
            parts = [self.now(part, node) for part in node.inputs]
            missing = [part for part in parts if part not in images]
            if missing and node in begun:
                raise UserError("a pass of the stage 'joint' gave a value that needs itself. Mend the pass")
            begun.add(node)
            waiting += reversed(missing)
            if not missing:
                waiting.pop()
                inputs = tuple(images[part] for part in parts)
                same = all(new is old for new, old in zip(inputs, node.inputs, strict=True))
                images.setdefault(node, node if same else node.over(inputs))
        return images


def joint_of(
    primal: Graph, given: Given, came: Sequence[bool], wanted: Sequence[bool], now: Mapping[Node, Node]
) -> Joint:
    """As :meth:`Joint.of`, with the gradients that a pass gave; what does not come is zero in them."""
    builder = builder_over(primal)
    known = len(builder.nodes)
    images = _without(builder, given, [tangent for tangent, here in zip(given.tangents, came, strict=True) if not here])
    builder.nodes += given.tangents
    builder.nodes += [images.get(node, node) for node in given.made if node not in images or images[node].inputs]
    return Joint(
        builder,
        tuple(tangent if here else None for tangent, here in zip(given.tangents, came, strict=True)),
        tuple(
            images.get(node, node) if here and node is not None else None
            for node, here in zip(given.results, wanted, strict=True)
        ),
        builder.nodes[known:],
    ).over(now)


def _without(builder: Builder, given: Given, missing: Sequence[Node]) -> dict[Node, Node]:
    """What becomes of the gradients' nodes, which are linear in what comes, where some of that is zero."""
    rests, zero = {*given.tangents}, {*missing}
    images: dict[Node, Node] = {}

    def image(node: Node) -> Node:
        return builder.full(0.0, node.dtype, node.shape, node.device) if node in zero else images.get(node, node)

    for node in given.made if missing else ():
        linear = [part for part in node.inputs if part in rests]
        if not linear:
            continue
        rests.add(node)
        if zero.issuperset(linear):
            zero.add(node)
        elif node.op == "add" and not zero.isdisjoint(linear):
            (images[node],) = [image(part) for part in node.inputs if part not in zero]
        else:
            inputs = tuple(map(image, node.inputs))
            if any(new is not old for new, old in zip(inputs, node.inputs, strict=True)):
                images[node] = node.over(inputs)
    images.update((node, image(node)) for node in given.results if node in zero)
    return images
