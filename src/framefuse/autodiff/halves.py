"""Cuts a graph that trains into the forward graph, which saves values, and the graphs of its backward passes."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from types import MappingProxyType

from framefuse.autodiff.cut import choose_saved
from framefuse.autodiff.differentiable_forms import with_differentiable_forms
from framefuse.autodiff.divide import Division, Part, divide
from framefuse.autodiff.dropped import Regions
from framefuse.autodiff.exact_extremes import with_exact_extremes
from framefuse.autodiff.frozen import frozen, is_frozen
from framefuse.autodiff.holding import Group, Holding, holds, united
from framefuse.autodiff.joint import Joint, names_of, read_later
from framefuse.autodiff.joint_passes import JointPass, Moved, joint_of, with_joint_pass
from framefuse.autodiff.library import copied
from framefuse.autodiff.order import late
from framefuse.autodiff.rebuild import MARKS, extract, mapped, named, needed_for
from framefuse.autodiff.remembered import has_history, values_of, with_histories
from framefuse.autodiff.rules.batch_norm import KEPT_NORM
from framefuse.autodiff.rules.composites import ASIDE, ZEROS
from framefuse.autodiff.rules.linear_calls import reads_border
from framefuse.autodiff.shown import apart, base, together, views_of
from framefuse.autodiff.spread import as_views
from framefuse.autodiff.tapes import STATE, draws
from framefuse.errors import CompilerBug
from framefuse.ir.builder import Shape
from framefuse.ir.derivative import Backward, Case, Given, Halves, Holder, Piece, Saved
from framefuse.ir.graph import Graph, Node, Output
from framefuse.ir.ops import POINTWISE, TABLE
from framefuse.ir.pairs import split_of
from framefuse.ir.strides import dense_order
from framefuse.ir.taped_calls import Taped, is_taped

NO_PLACES: Mapping[int, int] = MappingProxyType({})


def halves(
    graph: Graph,
    inputs: Collection[int],
    holders: Sequence[Holder] | None,
    change: JointPass | None = None,
    carried: Mapping[int, int] = NO_PLACES,
) -> Halves:
    """The two halves of a graph, some of whose outputs require grad.

    ``inputs`` are the numbers of the inputs that nobody writes before the call has ended. They and outputs are saved as
    they are only in a piece of which eager saved them too, as ``holders`` tell, so that writing to them is an error
    under eager as well. ``carried`` gives the inputs that outputs are written to, by the places of both. ``change`` are
    users' passes over the graph of each piece with its gradients.
    """
    seen, given = len(graph.outputs), frozenset(inputs)
    graph, leaves = apart(with_exact_extremes(graph))
    division = divide(with_differentiable_forms(graph), holders)
    views = views_of(division.graph, leaves)
    bases = {leaf.attr("index"): base(leaf, views) for leaf in leaves}
    maker = _Maker(division, given.union(bases), seen, holders, bases, change, carried)
    pieces = tuple(maker.piece(number) for number in range(len(maker.division.parts)))
    return Halves(together(maker.forward(), leaves), pieces)


def reads(piece: Piece, wanted: Sequence[bool]) -> frozenset[int]:
    """Which of its saved values a piece reads for these gradients, whichever tangents come."""
    joint = _joint(piece.primal, piece.given, [True] * len(piece.outputs), wanted, piece.now)
    ends = {entry.node for entry in piece.saved} | {tangent for tangent in joint.tangents if tangent is not None}
    needed = needed_for([gradient for gradient in joint.results if gradient is not None], ends)
    return frozenset(number for number, entry in enumerate(piece.saved) if entry.node in needed)


def _joint(
    primal: Graph, given: Given | None, came: Sequence[bool], wanted: Sequence[bool], now: Mapping[Node, Node]
) -> Joint:
    return Joint.of(primal, came, wanted, now=now) if given is None else joint_of(primal, given, came, wanted, now)


class _Maker:
    """Makes the pieces of one graph, and collects what its forward has to give for them."""

    def __init__(
        self,
        division: Division,
        inputs: frozenset[int],
        seen: int,
        holders: Sequence[Holder] | None,
        bases: Mapping[int, int],
        change: JointPass | None,
        carried: Mapping[int, int],
    ) -> None:
        self.division = division
        self.change = change
        self.moved = Moved()
        self.graph = graph = division.graph
        self.inputs = inputs
        self.bases = bases  # of inputs that are views: the input whose memory they show
        self.seen = seen  # outputs; the further ones nobody can write
        self.holding = None if holders is None else Holding(division, holders, bases)
        self.behind = _behind(graph, carried)
        self.nodes = dict.fromkeys(graph.nodes)
        self.copies: dict[Node, Node] = {}
        self.hidden: dict[Node, int] = {}  # nodes of the graph, by place among the forward graph's outputs
        self.relations = dict.fromkeys(graph.relations)

    def piece(self, number: int) -> Piece:
        """Decides what a piece saves."""
        part, changed = self._changed(self.division.parts[number])
        groups = [] if self.holding is None else [*self.holding.groups[number].values()]
        kept = united(groups)
        primal = part.graph
        everything = [True] * len(part.outputs), [True] * len(primal.differentiable)
        given = {node: self._given(part, node, place) for place, node in enumerate(primal.inputs)}
        shown = {
            output.node: Saved(output.node, "output", place, memory=True)
            for place, output in zip(part.outputs, primal.outputs, strict=True)
        }
        seen = {**_contents(shown), **given, **shown}
        behind = self._behind(part, kept)
        free = {node for node, entry in seen.items() if self._may_be_saved(entry, kept)} - behind.keys()
        seen, free = {**seen, **behind}, free | behind.keys()
        others = {node for node in free if seen[node].kind == "input" or seen[node].place < self.seen}
        shared = _reals_of(primal, seen)  # of complex numbers, which kernels read as these
        others |= {node for node, whole in shared.items() if whole in others}
        cold = frozen(primal, others, *Regions.in_graph(primal).parts(primal.nodes))
        primal = cold.graph
        part = replace(part, origin={**part.origin, **{node: part.origin[was] for node, was in cold.origin.items()}})
        joint = _joint(primal, changed, *everything, cold.now)
        self.relations.update(dict.fromkeys(joint.relations))
        chosen = choose_saved(
            primal.nodes,
            joint.made,
            [gradient for gradient in joint.results if gradient is not None],
            free=free,
            forbidden=seen.keys() - free,
            frozen=cold.origin,
            # What eager saved of the results follows a write to them.
            once=cold.once | {node for node in others & seen.keys() if seen[node].kind == "output" or node in behind},
            seen=others,
            regions=Regions.in_graph(primal, cold.origin),
            hints=primal.hints,
        )
        known = {node: behind.get(node) or self._kept(seen[node], kept) for node in free}
        alike = changed is None and not any(map(_differs_again, primal.nodes))
        again = joint if alike else Joint.of(primal, *everything, True)
        roots = self._roots(primal, again)
        own = [node for node in chosen if node not in known]
        theirs = {node: entry for node, entry in given.items() if not self._is_written(entry)}
        own += [node for node in roots if node not in theirs and node not in known and node not in own]
        changing = {node for node, whole in shared.items() if whole not in free}
        changing |= {node for node, was in cold.origin.items() if is_frozen(node) and was in shared}
        hidden = self._hide(part, joint, own, changing)
        known.update((node, Saved(node, "own", place)) for node, place in zip(own, hidden, strict=True))
        saved = sorted((known[node] for node in chosen), key=lambda entry: entry.kind == "own")
        through = [entry for entry in saved if entry.kind != "own"]
        watched = (*self._watched([*given.values(), *shown.values()], groups, through), *through)
        inputs = tuple(given[primal.inputs[place]] for place in primal.differentiable)
        needed = needed_for(own, set(primal.nodes))
        further = [node for node in joint.made if node in needed]
        moved = {old: new for old, new in joint.moved.items() if new in needed or old in cold.now}
        before: dict[Node, list[Node]] = {}
        for old, new in moved.items():
            before.setdefault(new, []).append(old)
        further = [each for node in further for each in (*before.get(node, ()), node)]
        everywhere = (*primal.inputs, *primal.nodes, *joint.made)
        names = names_of([*{(node.shape, node.strides) for node in everywhere}])  # a few shapes, of all nodes
        names |= names_of([attr for node in everywhere for _, attr in node.attrs])
        for relation in joint.relations:
            names |= relation.left.symbols | relation.right.symbols
        hints = {symbol: hint for symbol, hint in primal.hints.items() if symbol in names}
        return Piece(
            replace(primal, nodes=(*primal.nodes, *further), relations=joint.relations, hints=hints),
            inputs,
            part.outputs,
            holds(self.holding, groups, inputs, watched, bool(saved)),
            watched,
            tuple(saved),
            tuple(theirs.get(node) or self._root(known[node], given.get(node)) for node in roots),
            tuple(sorted(names, key=str)),
            moved,
            read_later(part.graph),
            changed,
        )

    def _changed(self, part: Part) -> tuple[Part, Given | None]:
        """The part behind users' passes, with the gradients that they gave; the forward graph gives its results."""
        if self.change is None:
            return part, None
        whole = self.division.graph
        own = {part.origin[node] for node in part.graph.nodes}
        outside = {operand for node in whole.nodes if node not in own for operand in node.inputs}
        outside.update(_ends(whole))
        read = [node for node in part.graph.nodes if node.op != "input" and part.origin[node] in outside]
        changed = with_joint_pass(part.graph, read, self.change)
        if changed is None:
            return part, None
        nodes = changed.graph.nodes
        copies = extract(nodes, [node for node in nodes if node not in part.origin], part.origin, marks=True)
        origin = {**part.origin, **copies}
        self.nodes.update(dict.fromkeys(copies.values()))
        keepers = own.union(copies.values())
        moved = {part.origin[old]: (origin[new], keepers) for old, new in changed.values.items() if old is not new}
        self.moved.values.update(moved)
        return replace(part, graph=changed.graph, origin=origin), changed.given

    def _given(self, part: Part, node: Node, place: int) -> Saved:
        """What a piece's input is in the forward plan."""
        first = len(self.graph.inputs)
        return Saved(node, "input", place) if place < first else Saved(node, "output", part.feeds[place - first])

    def _is_written(self, entry: Saved) -> bool:
        """Whether the call itself writes to this input of its own."""
        return entry.kind == "input" and entry.place not in self.inputs

    def _behind(self, part: Part, kept: Group) -> dict[Node, Saved]:
        """What a piece computes that the call writes to inputs which eager's nodes keep as they are then."""
        found: dict[Node, Saved] = {}
        for node in part.graph.nodes if self.behind else ():
            place = self.behind.get(part.origin[node], -1)
            if place in kept.saved:
                found[node] = Saved(node, "input", place, memory=place not in kept.selves, settles=True)
        return found

    def _root(self, entry: Saved, given: Saved | None) -> Saved:
        """A root that is no input, or the contents of one before it is written, whose history second gradients need."""
        if given is None or entry.kind != "own" or given.place not in self.graph.differentiable:
            return entry
        return replace(entry, history=given.place)

    def _may_be_saved(self, entry: Saved, kept: Group) -> bool:
        """Whether to save a tensor that others see, or nobody, as itself."""
        if entry.kind == "input":
            place = self.bases.get(entry.place, entry.place)
            return place in self.inputs and (self.holding is None or place in kept.saved or place in kept.again)
        return entry.place >= self.seen or entry.place in kept.shown

    def _kept(self, entry: Saved, kept: Group) -> Saved:
        """The entry as eager keeps it: a view is of the memory that the input had."""
        if entry.kind != "input" or self.holding is None or entry.place in kept.selves:
            return entry
        if entry.place in kept.again and entry.place not in kept.saved:
            return replace(entry, again=True)
        return replace(entry, memory=True)

    def _watched(
        self, seen: Iterable[Saved], groups: Sequence[Group], through: Sequence[Saved]
    ) -> Iterator[Saved]:
        """What eager saved of a piece and its gradients do not read."""
        read = {(entry.kind, entry.place) for entry in through}
        written = {place for group in groups for place in group.saved if place not in self.inputs}
        read_behind = {entry.place for entry in through if entry.settles}
        saved = {("input", place) for group in groups for place in group.saved - written}
        saved |= {("output", place) for group in groups for place in group.shown}
        saved -= read
        for place in sorted(written - read_behind):  # its history may lead to the node that keeps it
            yield Saved(self.graph.inputs[place], "input", place, memory=True, settles=True)
        for entry in seen:
            if (entry.kind, entry.place) in saved:
                saved.remove((entry.kind, entry.place))
                yield entry
        for kind, place in sorted(saved):  # one without a gradient, or of which the piece computes its own
            if kind == "output":
                yield Saved(self.graph.outputs[place].node, kind, place)

    def _hide(self, part: Part, joint: Joint, own: Sequence[Node], changing: Collection[Node]) -> list[int]:
        """Has the forward graph give these values of a piece, copies of those that others may write; the places of its
        outputs.
        """
        copies = extract(joint.builder.nodes, own, part.origin, marks=True)
        self.nodes.update(dict.fromkeys(copies.values()))
        for node in own:
            if node in changing or (node.dtype.kind == "complex" and copies[node].op != "result"):  # no kernel's work
                copies[node] = self.copies.setdefault(copies[node], copied(copies[node]))
                self.nodes.update(dict.fromkeys((*copies[node].inputs, copies[node])))
            self.hidden.setdefault(copies[node], len(self.graph.outputs) + len(self.hidden))
        return [self.hidden[copies[node]] for node in own]

    def _roots(self, primal: Graph, joint: Joint) -> list[Node]:
        """What the gradients are computed from when nothing but inputs and random results is given."""
        rests = {tangent for tangent in joint.tangents if tangent is not None}
        ends = {*primal.inputs, *rests}
        for node in joint.builder.nodes:
            if not rests.isdisjoint(node.inputs):  # as a collective of backward, which forward cannot give
                rests.add(node)
            elif _runs_once(node):
                ends.add(node)
        needed = needed_for([gradient for gradient in joint.results if gradient is not None], ends)
        needed.update(state for call, state in states_of(joint.builder.nodes).items() if call in needed)
        return [node for node in joint.builder.nodes if node in needed and node in ends and node not in joint.tangents]

    def forward(self) -> Graph:
        """The graph that runs when the function is called."""
        graph = replace(self.graph, nodes=tuple(self.nodes), relations=tuple(self.relations))
        hidden = [*self.hidden]
        if self.moved.values:
            ends = {node: self.moved.now(node) for node in _ends(graph)}
            images = self.moved.images(graph.nodes, [*graph.inputs, *ends.values(), *hidden])
            hidden = [images[node] for node in hidden]
            graph = mapped(graph, {**images, **{old: images[new] for old, new in ends.items()}}, ())
            graph = replace(graph, nodes=tuple(dict.fromkeys(images.values())))
        copies = extract(graph.nodes, [*named(graph), *hidden], {})
        first = min([0, *(output.value for output in graph.outputs)])
        further = [Output(first - 1 - place, copies[node], None) for place, node in enumerate(hidden)]
        return mapped(graph, copies, further)


def _reals_of(graph: Graph, seen: Collection[Node]) -> dict[Node, Node]:
    """The nodes that show the memory of complex numbers which others see as reals, with these."""
    shared: dict[Node, Node] = {}
    for node in graph.nodes:
        whole = split_of(node)
        while whole is not None and whole not in seen and whole.op in MARKS:
            whole = whole.inputs[0]
        if whole is not None and whole in seen:
            shared[node] = whole
    return shared


def _ends(graph: Graph) -> list[Node]:
    """The nodes that a graph names beside those that its nodes read."""
    named = [*(output.node for output in graph.outputs), *(write.node for write in graph.writes)]
    return [*named, *(node for _, node, _ in graph.bound), *graph.kept]


def _behind(graph: Graph, carried: Mapping[int, int]) -> dict[Node, int]:
    """What is written to inputs, with the input, where that is one and the value nothing else that others see."""
    written = [(write.node, write.input) for write in graph.writes if write.bumps]
    written += [(graph.outputs[place].node, own) for place, own in carried.items()]
    seen = {output.node for place, output in enumerate(graph.outputs) if place not in carried}
    found: dict[Node, int] = {}
    for node, own in written:
        for alike in (node, *_marked(node)):
            found[alike] = -1 if alike in found or alike in seen or alike.op == "input" else own
    return found


def _marked(node: Node) -> Iterator[Node]:
    """What has the same elements as a node that only says another thing of its gradient, but for the last."""
    while node.op in MARKS and node.inputs[0].op in MARKS:
        node = node.inputs[0]
        yield node


def _contents(shown: Mapping[Node, Saved]) -> dict[Node, Saved]:
    """What gradients read of outputs that say of their own gradient that it is computed from what they hold."""
    found: dict[Node, Saved] = {}
    for node, entry in shown.items():
        for alike in _marked(node):
            if alike.op == "detach":
                found[alike] = replace(entry, node=alike)
    return found


def _differs_again(node: Node) -> bool:
    """Whether gradients that are differentiated again need more of a node: what is read off a tape is computed then."""
    if node.op == "derived":
        name = node.attr("name")
        return name in (*ASIDE, *ZEROS) or (name == "power" and node.attr("parameters")[1] == 0)
    if TABLE[node.op].kind == POINTWISE and "zero" in (TABLE[node.op].derivative or ()):
        return True
    if node.op != "library":
        return False
    return isinstance(node.attr("target"), Taped) or reads_border(node) or node.attr("name") == KEPT_NORM


def _runs_once(node: Node) -> bool:
    """Whether the node is what a call gave that is not made again: a random one, unless gradients flow through it."""
    if node.op != "result" or not node.inputs[0].attr("random"):
        return False
    return not draws(node.inputs[0]) or node.attrs == STATE  # it is made again, from the same state


def states_of(nodes: Sequence[Node]) -> dict[Node, Node]:
    """For each taped random call the result that is the generator's state before it."""
    return {node.inputs[0]: node for node in nodes if node.op == "result" and node.attrs == STATE}


def backward_graph(piece: Piece, case: Case, strides: Sequence[Shape]) -> Backward:
    """The graph that computes the wanted gradients from the saved values, which lie with these ``strides``, and the
    tangents that came.
    """
    return _Gradients(piece, case, piece.saved, strides, False).graph("backward")


def differentiable_graph(piece: Piece, case: Case, strides: Sequence[Shape | None]) -> Backward:
    """The graph that computes the wanted gradients from the saved values and the roots, which lie with these
    ``strides`` (None: that is there no more), and the tangents that came; it can be differentiated again.
    """
    return _Gradients(piece, case, (*piece.saved, *piece.roots), strides, True).graph("gradients")


class _Gradients:
    """Cuts the graph of one case out of the joint one."""

    def __init__(
        self, piece: Piece, case: Case, given: Sequence[Saved], strides: Sequence[Shape | None], again: bool
    ) -> None:
        self.primal = piece.primal
        self.again = again
        came = [lies is not None for lies in case.tangents]
        if again:
            primal, places = with_histories(piece.primal, piece.now)
            self.joint = Joint.of(primal, came, case.wanted, again, places)
        else:
            self.joint = _joint(piece.primal, piece.given, came, case.wanted, piece.now)
        self.results = [gradient for gradient in self.joint.results if gradient is not None]
        tangents = [tangent for tangent in self.joint.tangents if tangent is not None]
        kinds = [self._kind(piece, number, given, again) for number in range(len(given))]
        known = [number for number, lies in enumerate(strides) if lies is not None and kinds[number] is not None]
        ends = {given[number].node for number in known if not kinds[number]}
        needed = needed_for(self.results, {*ends, *tangents})
        kept = states_of(self.joint.builder.nodes) if again else {}
        self.states = {call: state for call, state in kept.items() if call in needed}
        needed.update(self.states.values())
        self.inputs: list[Node] = []
        self.leaves: dict[Node, Node] = {}
        self.remembered: dict[Node, Node] = {}  # saved values that have histories of their own
        self.saved = [
            number
            for number in known
            for leaves in (self.remembered if kinds[number] else self.leaves,)
            if self._leaf(given[number].node, strides[number] or (), needed, leaves)
        ]
        self.tangents = [
            number
            for number, (node, lies) in enumerate(zip(self.joint.tangents, case.tangents, strict=True))
            if node is not None and lies is not None and self._leaf(node, lies, needed, self.leaves)
        ]

    def _kind(self, piece: Piece, number: int, given: Sequence[Saved], again: bool) -> bool | None:
        """Whether a value that is given has the history of what it was computed by; None where it is not read: where a
        root is the same value, with its own history, or part of a tape, whose call is made again.
        """
        entry = given[number]
        if not again or number >= len(piece.saved):
            return False
        roots = ((root.kind, root.place) for root in piece.roots if root.node is entry.node)
        if is_taped(entry.node) or (not entry.memory and (entry.kind, entry.place) in roots):
            return None
        mine = has_history(entry.node) and not is_frozen(entry.node)
        return mine and all(entry.node is not value for value in piece.now.values())

    def _leaf(self, node: Node, strides: Shape, needed: Collection[Node], leaves: dict[Node, Node]) -> bool:
        """Makes an input of a value that is given, if it is read."""
        if node not in needed or node in leaves:
            return False
        attrs = (("index", len(self.inputs)),)
        leaves[node] = replace(node, op="input", inputs=(), attrs=attrs, strides=strides)
        self.inputs.append(leaves[node])
        return True

    def graph(self, kind: str) -> Backward:
        """The graph, with the rows that speak of gradients alone if it will be differentiated again."""
        copies = extract(self.joint.builder.nodes, self.results, self.leaves, self.again, self.states, self.remembered)
        primal, inputs = self.primal, tuple(self.inputs)
        came = [self.leaves[node] for node in self.joint.tangents if node in self.leaves]
        views = {} if self.again else as_views(copies, self.results, came, primal.hints)
        shown = [part for view in views.values() for part in (*view.inputs, view)]
        strangers = {node for node in copies.values() if node.op == "input"}.difference(inputs)
        if strangers:  # it would be taken for whatever input has its number here
            raise CompilerBug(f"the gradients of {primal.name} rest on {strangers}, which forward did not keep")
        outputs: dict[Node, Output] = {}
        places: list[int | None] = []
        guarded, given = frozenset(primal.relations), frozenset(self.joint.tangents)
        for gradient, place in zip(self.joint.results, primal.differentiable, strict=True):
            if gradient is None:
                places.append(None)
                continue
            node = views.get(gradient, copies[gradient])
            if node not in outputs:
                same = inputs.index(node) if gradient in given else None
                outputs[node] = Output(len(inputs) + len(outputs), node, _order(primal, primal.inputs[place]), same)
            places.append(outputs[node].value - len(inputs))
        made = (part for node in copies.values() for part in (*values_of(node), node))
        nodes = tuple(late(tuple(dict.fromkeys((*inputs, *made, *shown))), came))
        symbols = frozenset().union(*(size.symbols for node in nodes for size in node.shape))
        graph = Graph(
            name=f"{primal.name}_{kind}",
            inputs=inputs,
            nodes=nodes,
            outputs=tuple(outputs.values()),
            writes=(),
            relations=tuple(relation for relation in self.joint.relations if relation not in guarded),
            hints=primal.hints,
            consumed=() if self.again else tuple(range(len(self.saved))),
            held=tuple(r for r in primal.relations if r.left.symbols | r.right.symbols <= symbols),
        )
        return Backward(graph, tuple(self.saved), tuple(self.tangents), tuple(places))


def _order(primal: Graph, node: Node) -> tuple[int, ...] | None:
    """How the input lies in memory, outermost dimension first: its gradient lies so too."""
    if node.strides is None:
        return None
    sizes = [size.evaluate(primal.hints) for size in node.shape]
    strides = [stride.evaluate(primal.hints) for stride in node.strides]
    return dense_order(sizes, strides) or tuple(range(len(sizes)))
