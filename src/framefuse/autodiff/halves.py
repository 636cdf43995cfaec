"""Cuts a graph that trains into the forward graph, which saves values, and the graphs of its backward passes."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import replace

from framefuse.autodiff.cut import choose_saved
from framefuse.autodiff.joint import Joint, names_of
from framefuse.autodiff.rebuild import MARKS, extract, mapped, needed_for
from framefuse.ir.builder import Shape
from framefuse.ir.derivative import Backward, Case, Halves, Saved
from framefuse.ir.graph import Graph, Node, Output
from framefuse.ir.strides import dense_order


def halves(primal: Graph, inputs: Collection[int], outputs: Collection[int]) -> Halves:
    """The two halves of a graph, some of whose outputs require grad.

    ``inputs`` are the numbers of the inputs that may be saved as themselves, ``outputs`` the places of such outputs:
    those that eager saved too, so that writing to them is an error under eager as well.
    """
    places = tuple(place for place, output in enumerate(primal.outputs) if output.requires_grad)
    joint = Joint.of(primal, [True] * len(places), [True] * len(primal.differentiable))
    own = {primal.inputs[place]: place for place in inputs}
    shown: dict[Node, int] = {}
    for place, output in enumerate(primal.outputs):
        if place in outputs and output.input is None:
            shown.setdefault(output.node, place)
    others = {node for node in primal.inputs if node not in own}
    others |= {output.node for output in primal.outputs if output.node not in shown and output.node not in own}
    chosen = choose_saved(
        primal.nodes,
        joint.made,
        [gradient for gradient in joint.results if gradient is not None],
        free=[*own, *shown],
        forbidden=others,
        hints=primal.hints,
    )
    saved = [Saved(node, "input", own[node]) for node in chosen if node in own]
    saved += [Saved(node, "output", shown[node]) for node in chosen if node in shown]
    hidden = [node for node in chosen if node not in own and node not in shown]
    saved += [Saved(node, "own", len(primal.outputs) + place) for place, node in enumerate(hidden)]
    roots = _roots(primal, joint, saved, hidden)
    known = set(primal.nodes)
    needed = needed_for(hidden, known)
    further = [node for node in joint.made if node in needed]
    whole = replace(
        primal,
        nodes=(*primal.nodes, *further),
        relations=tuple(dict.fromkeys((*primal.relations, *joint.relations))),
    )
    names = names_of([(node.shape, node.strides) for node in primal.inputs])
    for node in (*primal.nodes, *joint.made):
        names |= names_of(node)
    return Halves(
        whole,
        _forward(whole, hidden),
        primal.differentiable,
        places,
        tuple(saved),
        roots,
        tuple(sorted(names, key=str)),
    )


def _forward(primal: Graph, hidden: Sequence[Node]) -> Graph:
    plain = [node for node in primal.nodes if node.op not in MARKS]
    made = extract(primal.nodes, [*plain, *hidden, *(output.node for output in primal.outputs)], {})
    first = min([0, *(output.value for output in primal.outputs)])
    further = [Output(first - 1 - place, made[node], None) for place, node in enumerate(hidden)]
    return mapped(primal, made, further)


def _roots(primal: Graph, joint: Joint, saved: Sequence[Saved], hidden: list[Node]) -> tuple[Saved, ...]:
    """What the gradients are computed from when nothing but inputs and random results is given; adds to ``hidden``."""
    ends = {*primal.inputs, *(tangent for tangent in joint.tangents if tangent is not None)}
    ends.update(node for node in joint.builder.nodes if _runs_once(node))
    needed = needed_for([gradient for gradient in joint.results if gradient is not None], ends)
    known = {entry.node: entry for entry in saved if entry.kind != "input"}
    places = {node: place for place, node in enumerate(primal.inputs)}
    roots: list[Saved] = []
    for node in joint.builder.nodes:
        if node not in needed or node not in ends or node in joint.tangents:
            continue
        if node in places:
            roots.append(Saved(node, "input", places[node]))
            continue
        if node not in known:
            known[node] = Saved(node, "own", len(primal.outputs) + len(hidden))
            hidden.append(node)
        roots.append(known[node])
    return tuple(roots)


def _runs_once(node: Node) -> bool:
    """Whether the node is the result of a call that must not be made again: a random one."""
    return node.op == "result" and bool(node.inputs[0].attr("random"))


def backward_graph(whole: Halves, case: Case, strides: Sequence[Shape]) -> Backward:
    """The graph that computes the wanted gradients from the saved values, which lie with these ``strides``, and the
    tangents that came.
    """
    return _Gradients(whole, case, [entry.node for entry in whole.saved], strides).graph("backward", False)


def differentiable_graph(whole: Halves, case: Case, strides: Sequence[Shape]) -> Backward:
    """The graph that computes the wanted gradients from the roots, which lie with these ``strides``, and the tangents
    that came; it can be differentiated again.
    """
    return _Gradients(whole, case, [entry.node for entry in whole.roots], strides).graph("gradients", True)


class _Gradients:
    """Cuts the graph of one case out of the joint one."""

    def __init__(self, whole: Halves, case: Case, given: Sequence[Node], strides: Sequence[Shape]) -> None:
        self.whole = whole
        self.joint = Joint.of(whole.primal, [lies is not None for lies in case.tangents], case.wanted)
        self.results = [gradient for gradient in self.joint.results if gradient is not None]
        tangents = [tangent for tangent in self.joint.tangents if tangent is not None]
        needed = needed_for(self.results, {*given, *tangents})
        self.leaves: dict[Node, Node] = {}
        self.saved = [number for number, node in enumerate(given) if self._leaf(node, strides[number], needed)]
        self.tangents = [
            number
            for number, (node, lies) in enumerate(zip(self.joint.tangents, case.tangents, strict=True))
            if node is not None and lies is not None and self._leaf(node, lies, needed)
        ]

    def _leaf(self, node: Node, strides: Shape, needed: Collection[Node]) -> bool:
        """Makes an input of a value that is given, if it is read."""
        if node not in needed or node in self.leaves:
            return False
        attrs = (("index", len(self.leaves)),)
        self.leaves[node] = replace(node, op="input", inputs=(), attrs=attrs, strides=strides)
        return True

    def graph(self, kind: str, marks: bool) -> Backward:
        """The graph, with the rows that speak of gradients alone if ``marks``."""
        made = extract(self.joint.builder.nodes, self.results, self.leaves, marks)
        primal, inputs = self.whole.primal, tuple(self.leaves.values())
        outputs: dict[Node, Output] = {}
        places: list[int | None] = []
        for gradient, place in zip(self.joint.results, self.whole.inputs, strict=True):
            if gradient is None:
                places.append(None)
                continue
            node = made[gradient]
            if node not in outputs:
                same = inputs.index(node) if gradient in self.joint.tangents else None
                outputs[node] = Output(len(inputs) + len(outputs), node, _order(primal, primal.inputs[place]), same)
            places.append(list(outputs).index(node))
        graph = Graph(
            name=f"{primal.name}_{kind}",
            inputs=inputs,
            nodes=tuple(dict.fromkeys((*inputs, *made.values()))),
            outputs=tuple(outputs.values()),
            writes=(),
            relations=self.joint.relations,
            hints=primal.hints,
        )
        return Backward(graph, tuple(self.saved), tuple(self.tangents), tuple(places))


def _order(primal: Graph, node: Node) -> tuple[int, ...]:
    """How the input lies in memory, outermost dimension first: its gradient lies so too."""
    assert node.strides is not None, "inputs have strides"
    sizes = [size.evaluate(primal.hints) for size in node.shape]
    strides = [stride.evaluate(primal.hints) for stride in node.strides]
    return dense_order(sizes, strides) or tuple(range(len(sizes)))
