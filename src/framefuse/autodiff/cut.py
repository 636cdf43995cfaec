"""Turns the joint graph of forward and backward into the list of forward values to save; the rest is computed again."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

from framefuse.autodiff.dropped import NO_REGIONS, Regions
from framefuse.autodiff.frozen import is_frozen
from framefuse.autodiff.joint import NOTHING
from framefuse.ir.flow import SINK, SOURCE, UNBOUNDED, sink_side
from framefuse.ir.graph import Node
from framefuse.ir.numbers import Expr, Symbol
from framefuse.ir.ops import CALL, CREATE, REDUCE, SCAN, SCATTER, TABLE, VIEW

# Nanoseconds. The rates are those of memory beyond the caches, where the values of training live.
MOVE = 0.05  # to read or write a byte
HOLD = 0.25  # what it is worth not to hold a byte from forward to backward
LOOP = 0.5  # of an operation's cost: what it adds to a loop that loads and stores anyway
HANDLE = 300.0  # to allocate a tensor, hand it over and take it back
PASS_ON = 150.0  # to hand over a tensor that is there anyway
COPY = 2000.0  # of a kernel and memory of its own for a copy
LAUNCH = 100.0  # of one more kernel

# A value that backward reads at places further apart is not computed again: it would be held from the one to the
# other, or computed along with all that it is made of for each.
FAR_CALLS, FAR_NODES = 8, 300
DEFAULT = 64  # a size that only the run tells

PER_UNIT = 16  # capacities are whole numbers: sixteenths of a nanosecond


def choose_saved(
    forward: Sequence[Node],
    backward: Sequence[Node],
    gradients: Iterable[Node],
    *,
    free: Collection[Node] = (),
    forbidden: Collection[Node] = (),
    frozen: Mapping[Node, Node] = NOTHING,
    once: Collection[Node] = (),
    seen: Collection[Node] = (),
    regions: Regions = NO_REGIONS,
    hints: Mapping[Symbol, int],
) -> tuple[Node, ...]:
    """The values that forward hands to backward, in program order; backward computes ``gradients`` from them, the
    tangents and the numbers alone.

    ``backward`` are the nodes that the reverse sweep made, in program order; its nodes of op ``input`` are the
    tangents. Some of them rest on no tangent: a mask, say. They may be among the saved ones, and then belong to
    forward. ``free`` are graph inputs and outputs that can be saved as themselves, ``forbidden`` those that cannot: one
    of these in the result stands for a copy of its own. ``frozen`` are further nodes, with those that they are
    in forward; those in ``once`` are not computed again. ``seen`` are those of ``free`` that others may write: what
    rests on them is computed in backward, as eager does, from what they hold by then. ``regions`` says what the
    program's own checkpoints drop, whatever that costs. ``hints`` are the recorded sizes.

    The choice has the least sum of what saving and computing again cost, on a model that knows which operations join
    the loops of their readers. Keeping few values and computing the others again: Chen et al., Training Deep Nets with
    Sublinear Memory Cost, 2016. As the least cut of a network: the partitioner of functorch. Operations that are not
    computed again: library calls, products, whatever is random, sums whose terms come in any order, and values that are
    read far apart.
    """
    joint = _Joint(forward, backward, gradients)
    copied = {node for node in once if is_frozen(node)}
    prices = _Prices([node for node in forward if node not in frozen], frozenset(free), {*forbidden, *copied}, hints)
    prices.in_memory.update(node for node, origin in frozen.items() if origin in prices.in_memory)
    dropped, borders = regions.parts(forward, joint.primal[len(forward) :])
    moving = _moving(joint.primal, seen, borders) | _slopes(joint.primal, forward, forbidden)
    return _cut(joint, prices, {*once, *borders}, moving, dropped)


@dataclass(slots=True)
class Use:
    """Where in backward a value is read, by nodes and by calls that ran before, and whether a call reads its memory."""

    first: int
    last: int
    first_call: int
    last_call: int
    in_memory: bool = False

    def widen(self, other: Use) -> Use:
        """Takes in another reader's places; gives itself."""
        self.first, self.last = min(self.first, other.first), max(self.last, other.last)
        self.first_call = min(self.first_call, other.first_call)
        self.last_call = max(self.last_call, other.last_call)
        return self

    @property
    def far(self) -> bool:
        """Whether the readers are too far apart to share what was computed again."""
        return self.last_call - self.first_call > FAR_CALLS or self.last - self.first > FAR_NODES


class _Joint:
    """The joint graph, divided: ``primal`` are the nodes that rest on no tangent, in program order; ``read`` tells of
    those that nodes resting on one read, or that are gradients; ``uses`` also of what is computed again for them.
    """

    def __init__(self, forward: Sequence[Node], backward: Sequence[Node], gradients: Iterable[Node]) -> None:
        results = set(gradients)
        alive = set(results)
        for node in reversed(backward):
            if node in alive:
                alive.update(_operands(node))
        self.read: dict[Node, Use] = {}
        rests: set[Node] = set()
        self.primal = list(forward)
        place = calls = 0
        for node in backward:
            if node not in alive:
                continue
            if node.op != "input" and rests.isdisjoint(_operands(node)):
                self.primal.append(node)
                continue
            rests.add(node)
            place += 1
            is_call = TABLE[node.op].kind == CALL
            calls += is_call
            for operand in _operands(node):
                if operand not in rests:
                    self._note(operand, Use(place, place, calls, calls, is_call))
        for node in results - rests:
            self._note(node, Use(place, place, calls, calls, True))
        self.uses = {node: replace(use) for node, use in self.read.items()}
        for node in reversed(self.primal):
            if node in self.uses and TABLE[node.op].kind == VIEW:
                self.pass_on(node, self.uses[node])

    def _note(self, node: Node, use: Use) -> None:
        known = self.read.setdefault(node, use)
        known.widen(use)
        known.in_memory |= use.in_memory

    def pass_on(self, node: Node, use: Use) -> None:
        """The operands are read where ``node``, to be computed again, is."""
        through = use.in_memory and TABLE[node.op].kind == VIEW
        for operand in _operands(node):
            known = self.uses.get(operand)
            if known is None:
                known = self.uses[operand] = Use(use.first, use.last, use.first_call, use.last_call)
            else:
                known.widen(use)
            known.in_memory |= through


@dataclass
class _Prices:
    """What saving a value and computing it again cost, in units of capacity."""

    forward: Sequence[Node]
    free: frozenset[Node]
    forbidden: Collection[Node]
    hints: Mapping[Symbol, int]
    counts: dict[tuple[Expr, ...], int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.in_memory: set[Node] = set()  # in forward, whoever asks
        first: dict[Node, int] = {}  # how many calls ran before the first reader
        calls = 0
        for node in self.forward:
            kind = TABLE[node.op].kind
            if kind in (CALL, REDUCE, SCATTER, SCAN):
                self.in_memory.add(node)
            if kind == CALL:
                self._in_memory(node.inputs)
                calls += 1
            elif kind != VIEW:
                # What is read again after a call is kept till then: a residual sum.
                self._in_memory([operand for operand in node.inputs if first.setdefault(operand, calls) < calls])

    def _in_memory(self, operands: Sequence[Node]) -> None:
        for operand in operands:
            while TABLE[operand.op].kind == VIEW and len(_operands(operand)) == 1:
                operand = operand.inputs[0]
            self.in_memory.add(operand)

    def count(self, node: Node) -> int:
        """The number of elements at the recorded sizes."""
        elements = self.counts.get(node.shape)
        if elements is None:
            elements = 1
            for size in node.shape:
                known = size.constant
                elements *= size.evaluate(self._known(size)) if known is None else known
            self.counts[node.shape] = elements
        return elements

    def _known(self, size: Expr) -> dict[Symbol, int]:
        return {symbol: self.hints.get(symbol, DEFAULT) for symbol in size.symbols}

    def bytes(self, node: Node) -> int:
        """The size in memory."""
        return self.count(node) * node.dtype.size

    def saving(self, node: Node) -> int:
        """To hold the value and read it in backward; what only kernels hold in forward must be written as well."""
        size = self.bytes(node)
        if node in self.forbidden:
            return round(PER_UNIT * (COPY + HANDLE + size * (HOLD + 3 * MOVE)))
        if node in self.free:
            return round(PER_UNIT * (PASS_ON + size * MOVE))
        moves = 1 if node in self.in_memory else 2
        return round(PER_UNIT * (HANDLE + size * (HOLD + moves * MOVE)))

    def again(self, node: Node, in_memory: bool) -> int:
        """To compute the value from its operands in backward, ``in_memory`` where a call reads it."""
        row = TABLE[node.op]
        if node.op == "pad":
            return 0  # a mask on a load, where a padded value in memory is a copy
        count = self.count(node.inputs[0] if row.kind == REDUCE else node)
        time = count * row.cost * (LOOP if row.kind != REDUCE else 1.0) * (2 if node.dtype.size == 8 else 1)
        if row.kind == REDUCE:
            time += LAUNCH + count * node.inputs[0].dtype.size * MOVE
        elif in_memory and row.kind != VIEW:
            time += LAUNCH + count * node.dtype.size * MOVE
        return round(PER_UNIT * time)

    def passing(self, node: Node) -> int:
        """To leave the value in memory for another kernel, or to compute it there again."""
        return round(PER_UNIT * 2 * MOVE * self.bytes(node))

    def unread(self, primal: Sequence[Node]) -> set[Node]:
        """Values that are computed without a load for each element: from constants, positions and smaller values."""
        cheap: set[Node] = set()
        for node in primal:
            kind = TABLE[node.op].kind
            if kind == CREATE:
                light = node.op != "input"
            elif node.op == "expand":
                light = node.inputs[0] in cheap or self.count(node) != self.count(node.inputs[0])
            else:
                own = kind in (CALL, REDUCE, SCATTER, SCAN)
                light = not own and all(operand in cheap for operand in _operands(node))
            if light:
                cheap.add(node)
        return cheap


def _operands(node: Node) -> tuple[Node, ...]:
    """What the value is computed from; the other operands of a ``derived`` node take its gradient only."""
    return node.inputs[:1] if node.op == "derived" else node.inputs


def _moving(primal: Sequence[Node], seen: Collection[Node], borders: Collection[Node]) -> set[Node]:
    """What rests on the nodes ``seen`` other than through copies, calls and ``borders``."""
    moving: set[Node] = set()
    for node in primal:
        if node in seen or node in borders or is_frozen(node) or TABLE[node.op].kind in (CALL, CREATE, SCATTER):
            continue
        if any(operand in seen or operand in moving for operand in _operands(node)):
            moving.add(node)
    return moving


def _slopes(primal: Sequence[Node], forward: Sequence[Node], forbidden: Collection[Node]) -> set[Node]:
    """What gradients alone compute of copies, and of tensors that others see and eager did not save, but for masks: its
    own derivative rests on what eager saved, which is not known again from what it was computed of.
    """
    own, found = {*forward}, {*forbidden}
    for node in primal:
        if is_frozen(node) or (TABLE[node.op].kind not in (CALL, CREATE) and not found.isdisjoint(_operands(node))):
            found.add(node)
    return {node for node in found - own if node.dtype.kind != "bool"}


def _cut(
    joint: _Joint,
    prices: _Prices,
    once: Collection[Node] = (),
    moving: Collection[Node] = (),
    dropped: Collection[Node] = (),
) -> tuple[Node, ...]:
    """Builds the network and cuts it; those in ``once`` are not computed again, those in ``moving`` and ``dropped`` not
    saved.

    Each value has an arc whose capacity is the price of saving it. Its tail is the source where the value cannot be
    computed again; else the source leads to it for the price of computing, and each operand's head without a price.
    Its head is the sink where backward reads it. What is on the sink's side is known in backward.
    """
    unread = prices.unread(joint.primal)
    saved: set[Node] = set()
    values: list[tuple[Node, int, int]] = []  # with tail and head of its arc
    heads: dict[Node, int] = {}
    arcs: list[tuple[int, int, int]] = []
    size = 2
    for node in reversed(joint.primal):
        use = joint.uses.get(node)
        if use is None or node.op == "full":
            continue
        kind = TABLE[node.op].kind
        kept = (kind in (CALL, SCATTER, SCAN) and node not in dropped) or node.op == "input" or node in once
        shared: list[tuple[Node, Use]] = []
        if not kept and node not in dropped and kind != VIEW and node not in unread and node not in moving:
            shared = list(_shared(node, use, joint.uses))
            # A residual sum rests on that of the layer before: it takes no more memory to save each of them.
            same = any(whole.far and prices.bytes(node) <= prices.bytes(operand) for operand, whole in shared)
            kept = use.far or same
        wanted = node in joint.read
        if not wanted and node not in heads:
            continue  # only what is saved reads it
        if kept and wanted:
            saved.add(node)
            continue
        head = SINK if wanted else heads[node]
        tail = SOURCE
        if not kept:
            tail, size = size, size + 1
            price = prices.again(node, use.in_memory) + sum(prices.passing(operand) for operand, _ in shared)
            if price:
                arcs.append((SOURCE, tail, price))
            joint.pass_on(node, use)
            for operand in dict.fromkeys(_operands(node)):
                if operand.op != "full" and operand not in joint.read:
                    if operand not in heads:
                        heads[operand], size = size, size + 1
                    arcs.append((heads[operand], tail, UNBOUNDED))
        values.append((node, tail, head))
        arcs.append((tail, head, UNBOUNDED if node in moving or node in dropped else prices.saving(node)))
    known_there = sink_side(size, arcs)
    saved.update(node for node, tail, head in values if known_there[head] and not known_there[tail])
    return tuple(node for node in joint.primal if node in saved)


def _shared(node: Node, use: Use, uses: Mapping[Node, Use]) -> Iterator[tuple[Node, Use]]:
    """Operands, seen through views, that would be computed again both for ``node`` and for a kernel of their own,
    which a call lies between; with the places of all their readers.
    """
    for operand in _operands(node):
        while TABLE[operand.op].kind not in (CALL, CREATE):
            known = uses.get(operand)
            if known is not None and (known.first_call > use.last_call or known.last_call < use.first_call):
                yield operand, replace(known).widen(use)
                break
            if TABLE[operand.op].kind != VIEW or len(_operands(operand)) != 1:
                break
            operand = operand.inputs[0]
