"""Divides a graph into pieces, each a node of autograd: what leads to the same outputs, which is walked together."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from framefuse.autodiff.joint import passes_gradients
from framefuse.autodiff.rebuild import extract, needed_for
from framefuse.ir.graph import Graph, Node, Output
from framefuse.ir.ops import TABLE, VIEW


@dataclass(frozen=True, slots=True)
class Part:
    """A piece before anything is decided: ``home`` are the outputs that it leads to, as bits, ``outputs`` the places of
    its own outputs in the whole graph, ``feeds`` the places of those outputs of earlier pieces that are its last
    inputs, and ``origin`` gives the whole graph's node for each of its own.
    """

    home: int
    graph: Graph
    outputs: tuple[int, ...]
    feeds: tuple[int, ...]
    origin: Mapping[Node, Node]


@dataclass(frozen=True, slots=True)
class Division:
    """A graph with the ``parts`` of which it is made, in order. Its last outputs are what one takes from another and
    nobody sees; ``bits`` are those of the others, by place.
    """

    graph: Graph
    parts: tuple[Part, ...]
    bits: Mapping[int, int]


def divide(graph: Graph) -> Division:
    """The pieces of a graph.

    A backward pass from some outputs walks those nodes of eager's that lead to one of them. Nodes that lead to the
    same outputs are therefore walked together, whichever these are: they are a piece, and no other node is in it. An
    output from which others are computed leads to one more than what reads it, so it ends its piece and its gradient is
    a sum that hooks and ``autograd.grad`` see.
    """
    homes = _Homes(graph)
    first = min([0, *(output.value for output in graph.outputs)])
    further = [
        Output(first - 1 - number, node, None, requires_grad=True) for number, node in enumerate(homes.crossing())
    ]
    whole = replace(graph, outputs=(*graph.outputs, *further))
    bits = {place: homes.bits[output.node] for place, output in enumerate(graph.outputs) if output.requires_grad}
    return Division(whole, tuple(homes.parts(whole)), bits)


class _Homes:
    """Which piece each node is of: ``home`` gives the outputs that a piece leads to, as the bits of an int. Views of
    inputs are in no piece: each that reads one makes its own.
    """

    def __init__(self, graph: Graph) -> None:
        self.graph = graph
        self.place = {node: number for number, node in enumerate(graph.nodes)}
        self.carried = _carried(graph)
        tied = dict.fromkeys(output.node for output in graph.outputs if output.requires_grad)
        self.bits = {node: 1 << number for number, node in enumerate(tied)}
        self.home: dict[Node, int] = {}
        down = self._down()
        inputs = set(graph.inputs)
        for node in graph.nodes:
            if node in inputs:
                if node in self.bits:  # an output that is a copy of it
                    self.home[node] = self.bits[node]
            elif down.get(node):
                home = self._home(node, down[node])
                if home:
                    self.home[node] = home

    def _down(self) -> dict[Node, int]:
        """The outputs that each node leads to; a copy of an input is read by nobody."""
        inputs = set(self.graph.inputs)
        down = {node: bit for node, bit in self.bits.items() if node not in inputs}
        for node in reversed(self.graph.nodes):
            found = down.get(node)
            if found and node in self.carried and node not in inputs:
                for operand in self._onto(node):
                    down[operand] = down.get(operand, 0) | found
        return down

    def _onto(self, node: Node) -> list[Node]:
        """The operands that the node's gradient goes to."""
        return [operand for operand in node.inputs if operand in self.carried]

    def _home(self, node: Node, down: int) -> int:
        """The piece of a node; 0 for a view of inputs. What a view is of decides, as its gradient is put into that
        one's, but for views of outputs, which are behind them.
        """
        if node not in self.carried:
            return 0
        if node.op == "result":
            return self.home[node.inputs[0]]
        if TABLE[node.op].kind != VIEW and node.op != "cast":
            return down
        operands = self._onto(node)
        homes = {self.home.get(operand, 0) if operand not in self.bits else -1 for operand in operands}
        if homes == {0}:
            return down if node in self.bits else 0
        only = homes.pop()
        return down if homes or only <= 0 or node.op == "cast" else only

    def crossing(self) -> list[Node]:
        """What a piece reads of another and is no output, in program order."""
        inputs = set(self.graph.inputs)
        found = {
            operand: None
            for node, home in self.home.items()
            if node not in inputs
            for operand in self._onto(node)
            if operand not in inputs and operand not in self.bits and self.home.get(operand, home) != home
        }
        return sorted(found, key=self.place.__getitem__)

    def parts(self, whole: Graph) -> Iterable[Part]:
        """The pieces; what leads to more outputs comes first, so that what a piece takes is there."""
        places: dict[int, list[int]] = {}
        for place, output in enumerate(whole.outputs):
            if output.requires_grad:
                places.setdefault(self.home[output.node], []).append(place)
        before: dict[Node, int] = {}
        inputs = set(self.graph.inputs)
        for home in sorted(places, key=int.bit_count, reverse=True):
            yield self._part(whole, home, places[home], before)
            before.update((whole.outputs[place].node, place) for place in places[home])
            for node in inputs & before.keys():
                del before[node]

    def _part(self, whole: Graph, home: int, outputs: Sequence[int], before: Mapping[Node, int]) -> Part:
        """The piece of these outputs, which takes what it reads of those ``before`` as further inputs."""
        graph = self.graph
        wanted = [whole.outputs[place].node for place in outputs]
        ends = {*graph.inputs, *before}
        needed = needed_for(wanted, ends)
        flowing = self._flowing(wanted, ends)
        read = sorted((node for node in before if node in needed), key=self.place.__getitem__)
        first = len(graph.inputs)
        leaves = {node: node for node in graph.inputs}
        for number, node in enumerate(read, first):
            leaves[node] = replace(node, op="input", inputs=(), attrs=(("index", number),), strides=None)
        beside = [node for node in graph.nodes if node.op == "result" and node.inputs[0] in needed]  # read by gradients
        made = extract(graph.nodes, [*wanted, *beside], leaves, marks=True)
        inputs = tuple(leaves.values())
        differentiable = [place for place in graph.differentiable if graph.inputs[place] in flowing]
        differentiable += [number for number, node in enumerate(read, first) if node in flowing]
        part = replace(
            graph,
            inputs=inputs,
            nodes=tuple(dict.fromkeys((*inputs, *made.values()))),
            outputs=tuple(replace(whole.outputs[place], node=made[whole.outputs[place].node]) for place in outputs),
            writes=(),
            bound=tuple((symbol, made[node], dimension) for symbol, node, dimension in graph.bound if node in made),
            differentiable=tuple(differentiable),
            late=(),
            kept=(),
        )
        origin = {new: old for old, new in (*leaves.items(), *made.items())}
        return Part(home, part, tuple(outputs), tuple(before[node] for node in read), origin)

    def _flowing(self, wanted: Iterable[Node], ends: set[Node]) -> set[Node]:
        """What the gradients of ``wanted`` go through, up to ``ends``."""
        found: set[Node] = set()
        waiting = list(wanted)
        while waiting:
            node = waiting.pop()
            if node not in found:
                found.add(node)
                if node not in ends:
                    waiting += self._onto(node)
        return found


def _carried(graph: Graph) -> set[Node]:
    """The nodes that eager's autograd leads from to an input that requires grad."""
    found = {graph.inputs[place] for place in graph.differentiable}
    for node in graph.nodes:
        if passes_gradients(node) and not found.isdisjoint(node.inputs):
            found.add(node)
    return found
