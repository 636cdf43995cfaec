"""Divides a graph into pieces, each a node of autograd: what leads to the same outputs, which is walked together."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from framefuse.autodiff.arrival import pushed
from framefuse.autodiff.joint import passes_gradients
from framefuse.autodiff.rebuild import MARKS, extract, needed_for
from framefuse.ir.derivative import Holder
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


def divide(graph: Graph, holders: Sequence[Holder] | None = None) -> Division:
    """The pieces of a graph, of which eager's autograd had these nodes.

    A backward pass from some outputs walks those nodes of eager's that lead to one of them. Nodes that lead to the
    same outputs are therefore walked together, whichever these are: they are a piece, and no other node is in it. An
    output from which others are computed leads to one more than what reads it, so it ends its piece and its gradient is
    a sum that hooks and ``autograd.grad`` see.
    """
    tied = dict.fromkeys(output.node for output in graph.outputs if output.requires_grad)
    bit = {node: 1 << number for number, node in enumerate(tied)}
    bits = {place: bit[output.node] for place, output in enumerate(graph.outputs) if output.requires_grad}
    homes = _Homes(graph, bit, *_eagers(graph, bits, holders))
    first = min([0, *(output.value for output in graph.outputs)])
    further = [
        Output(first - 1 - number, node, None, requires_grad=True) for number, node in enumerate(homes.crossing())
    ]
    whole = replace(graph, outputs=(*graph.outputs, *further))
    return Division(whole, tuple(homes.parts(whole)), bits)


def homes_of(holders: Sequence[Holder], bits: Mapping[int, int]) -> list[int]:
    """The outputs that each of eager's nodes leads to."""
    homes = [0] * len(holders)
    for number in range(len(holders) - 1, -1, -1):
        for place in holders[number].made:
            homes[number] |= bits.get(place, 0)
        for before in holders[number].onto:
            homes[before] |= homes[number]
    return homes


def _eagers(
    graph: Graph, bits: Mapping[int, int], holders: Sequence[Holder] | None
) -> tuple[dict[Node, int], frozenset[int]]:
    """What each output leads to under eager, and all that eager's nodes lead to; nothing where they are not known."""
    led: dict[Node, int] = {}
    homes = [] if holders is None else homes_of(holders, bits)
    for holder, home in zip(holders or (), homes, strict=True):
        for place in holder.made:
            if place in bits:
                led[graph.outputs[place].node] = led.get(graph.outputs[place].node, 0) | home
    if any(graph.outputs[place].node not in led for place in bits):
        return {}, frozenset()
    return led, frozenset(homes)


class _Homes:
    """Which piece each node is of: ``home`` gives the outputs that a piece leads to, as the bits of an int.

    Some nodes are in no piece: each that reads one makes its own. These are views of inputs, and what is computed once
    where eager computed equal values twice: no node of eager's leads to as much. For the same reason an output may not
    be what others are computed from, though it is equal to that: it leads to as much as eager's (``led``).
    """

    def __init__(
        self, graph: Graph, bits: Mapping[Node, int], led: Mapping[Node, int], known: frozenset[int]
    ) -> None:
        self.graph = graph
        self.place = {node: number for number, node in enumerate(graph.nodes)}
        self.carried = _carried(graph)
        self.bits = bits
        self.led = led
        self.known = known
        self.inputs = set(graph.inputs)
        self.home: dict[Node, int] = {}
        down = self._down()
        for node in graph.nodes:
            if node in self.inputs:
                if node in bits:  # an output that is a copy of it
                    self.home[node] = bits[node]
            elif down.get(node) and node in self.carried:
                home = self._home(node, down[node])
                if home:
                    self.home[node] = home

    def _down(self) -> dict[Node, int]:
        """The outputs that each node leads to; a copy of an input is read by nobody. What reads an output as it was
        shown stands behind it under eager alone.
        """
        down = {node: self.led.get(node, bit) for node, bit in self.bits.items() if node not in self.inputs}
        for node in reversed(self.graph.nodes):
            outputs = down.get(node)
            if outputs and node in self.carried and node not in self.inputs:
                for operand in self._onto(node):
                    down[operand] = down.get(operand, 0) | outputs
        return down

    def _onto(self, node: Node) -> list[Node]:
        """The operands that the node's gradient goes to."""
        operands = node.inputs[1:] if node.op == "derived" else node.inputs
        return [operand for operand in operands if operand in self.carried]

    def _home(self, node: Node, down: int) -> int:
        """The piece of a node; 0 for none. What a view is of decides, as its gradient is put into that one's, but for
        views of outputs, which are behind them.
        """
        if node.op == "result":
            return self.home[node.inputs[0]]
        if node in self.bits:
            down = self.led.get(node, down)
        elif self.known and down not in self.known and node.op != "library":
            return 0
        if (TABLE[node.op].kind != VIEW or node.op in MARKS) and node.op != "cast":
            return down
        homes = {self.home.get(operand, 0) if operand not in self.bits else -1 for operand in self._onto(node)}
        if homes == {0}:
            return down if node in self.bits else 0
        only = homes.pop()
        return down if homes or only <= 0 or node.op == "cast" else only

    def crossing(self) -> list[Node]:
        """What a piece takes of another and is no output, in program order."""
        taken: set[Node] = set()
        through: dict[int, set[Node]] = {}
        for node, home in self.home.items():
            waiting = [] if node in self.inputs else self._onto(node)
            seen = through.setdefault(home, set())
            while waiting:
                operand = waiting.pop()
                if operand in self.inputs or self.home.get(operand) == home:
                    continue
                if self._gives(operand, home):
                    taken.add(operand)
                elif operand not in seen:
                    seen.add(operand)
                    waiting += self._onto(operand)
        return sorted(taken - self.bits.keys(), key=self.place.__getitem__)

    def _gives(self, node: Node, home: int) -> bool:
        """Whether a node is of another piece, from which that with this home takes it."""
        return node in self.home and self.home[node] & home == home

    def parts(self, whole: Graph) -> Iterable[Part]:
        """The pieces, in order."""
        places: dict[int, list[int]] = {}
        for place, output in enumerate(whole.outputs):
            if output.requires_grad:
                places.setdefault(self.home[output.node], []).append(place)
        before: dict[Node, int] = {}
        for home in self._in_order(places):
            yield self._part(whole, home, places[home], before)
            before.update((whole.outputs[place].node, place) for place in places[home])
            for node in self.inputs & before.keys():
                del before[node]

    def _in_order(self, homes: Collection[int]) -> Iterator[int]:
        """What leads to more outputs comes first, so that what a piece takes is there; else what the program began
        first: the engine walks last what was made first.
        """
        begun: dict[int, int] = {}
        for node, home in self.home.items():
            if node not in self.inputs:
                begun.setdefault(home, self.place[node])
        larger = {home: {other for other in homes if other & home == home != other} for home in homes}
        waiting = sorted(homes, key=lambda home: (begun.get(home, -1), -home.bit_count()))
        done: set[int] = set()
        while waiting:
            home = next(home for home in waiting if larger[home] <= done)
            waiting.remove(home)
            done.add(home)
            yield home

    def _part(self, whole: Graph, home: int, outputs: Sequence[int], before: Mapping[Node, int]) -> Part:
        """The piece of these outputs, which takes what it reads of those ``before`` as further inputs."""
        graph = self.graph
        wanted = [whole.outputs[place].node for place in outputs]
        flowing = self._flowing(wanted, {*graph.inputs, *(node for node in before if self._gives(node, home))})
        before = {node: place for node, place in before.items() if node not in flowing or self._gives(node, home)}
        needed = needed_for(wanted, {*graph.inputs, *before})
        read = sorted((node for node in before if node in needed), key=self.place.__getitem__)
        first = len(graph.inputs)
        leaves = {node: node for node in graph.inputs}
        for number, node in enumerate(read, first):
            leaves[node] = replace(node, op="input", inputs=(), attrs=(("index", number),), strides=None)
        beside = [node for node in graph.nodes if node.op == "result" and node.inputs[0] in needed]  # read by gradients
        copies = extract(graph.nodes, [*wanted, *beside], leaves, marks=True)
        inputs = tuple(leaves.values())
        taken = [number for number, node in enumerate(read, first) if node in flowing]
        differentiable = pushed(self._leaves(flowing, {*graph.inputs, *before}), taken)
        part = replace(
            graph,
            inputs=inputs,
            nodes=tuple(dict.fromkeys((*inputs, *copies.values()))),
            outputs=tuple(replace(whole.outputs[place], node=copies[whole.outputs[place].node]) for place in outputs),
            writes=(),
            bound=tuple((symbol, copies[node], dimension) for symbol, node, dimension in graph.bound if node in copies),
            differentiable=tuple(differentiable),
            late=(),
            kept=(),
            lasting=frozenset(copies[node] for node in graph.lasting if node in copies),
            results=frozenset(copies[node] for node in graph.results if node in copies),
            regions={copies[node]: region for node, region in graph.regions.items() if node in copies},
        )
        origin = {new: old for old, new in (*leaves.items(), *copies.items())}
        return Part(home, part, tuple(outputs), tuple(before[node] for node in read), origin)

    def _leaves(self, flowing: Collection[Node], ends: Collection[Node]) -> list[int]:
        """The inputs that gradients flow to, in the order in which eager has computed theirs: that which was read
        first comes last.
        """
        read: dict[Node, tuple[int, int]] = {}
        for node in flowing:
            for number, operand in enumerate(() if node in ends else self._onto(node)):
                if operand in self.inputs:
                    here = (self.place[node], -number)
                    read[operand] = min(read.get(operand, here), here)
        inputs = [place for place in self.graph.differentiable if self.graph.inputs[place] in flowing]
        return sorted(inputs, key=lambda place: read.get(self.graph.inputs[place], (-1, 0)), reverse=True)

    def _flowing(self, wanted: Iterable[Node], ends: set[Node]) -> set[Node]:
        """What the gradients of ``wanted`` go through, up to ``ends``."""
        reached: set[Node] = set()
        waiting = list(wanted)
        while waiting:
            node = waiting.pop()
            if node not in reached:
                reached.add(node)
                if node not in ends:
                    waiting += self._onto(node)
        return reached


def _carried(graph: Graph) -> set[Node]:
    """The nodes that eager's autograd leads from to an input that requires grad."""
    carried = {graph.inputs[place] for place in graph.differentiable}
    for node in graph.nodes:
        if passes_gradients(node) and not carried.isdisjoint(node.inputs):
            carried.add(node)
    return carried
