"""Turns a graph into vertices for the values that may lie in two ways, and what each way costs."""

from __future__ import annotations

from dataclasses import dataclass, field

from framefuse.fuse.addressing.layout import Order, estimate, order_of_strides, shown_order
from framefuse.fuse.graph.fixed import fixed_nodes
from framefuse.fuse.layouts.digits_kept import digits_kept
from framefuse.fuse.layouts.movable_calls import Flexible, elements, flexible, rate
from framefuse.fuse.layouts.prices import Labels, Prices
from framefuse.fuse.setting import Setting
from framefuse.ir import costs
from framefuse.ir.builder import Shape
from framefuse.ir.flow import SINK, SOURCE, UNBOUNDED
from framefuse.ir.graph import Graph, Node
from framefuse.ir.ops import CALL, CREATE, ELEMENTWISE, REDUCE, TABLE, VIEW


def contiguous(rank: int) -> Order:
    """The order of a tensor whose last dimension is innermost."""
    return tuple(range(rank))


def channels_last(rank: int) -> Order:
    """The order of a tensor whose second dimension is innermost."""
    return (0, *range(2, rank), 1)


def either(rank: int) -> tuple[Order, Order]:
    """The order for label 0, and for label 1."""
    return contiguous(rank), channels_last(rank)


@dataclass(frozen=True, slots=True)
class Place:
    """Where a value may lie: in the order ``orders[label]`` for the label of ``vertex``. What lies in one order only
    has that order twice.
    """

    vertex: int
    orders: tuple[Order, Order]

    @property
    def is_fixed(self) -> bool:
        """Whether there is nothing to choose."""
        return self.orders[0] == self.orders[1]

    def order(self, labels: Labels) -> Order:
        """Where the value lies under these labels."""
        return self.orders[labels[self.vertex]]

    def among(self, orders: tuple[Order, Order]) -> int | None:
        """The vertex whose label says where the value lies among the ``orders`` of another one; None where none
        does.
        """
        if self.orders == orders:
            return self.vertex
        if not self.is_fixed or self.orders[0] not in orders:
            return None
        return SINK if self.orders[0] == orders[1] else SOURCE


@dataclass
class Assignment:
    """The vertices of one graph: ``places`` are those of values, ``calls`` those of library calls that may be made in
    either layout, ``turning`` the operands that such a call turns itself. ``beneath`` is the value with a place from
    which one of another shape is computed, element by element; ``memory`` are the results of calls from which one is
    computed so, and itself: a kernel that needs it may read them.
    """

    graph: Graph
    setting: Setting
    prices: Prices = field(default_factory=Prices)
    places: dict[Node, Place] = field(default_factory=dict)
    calls: dict[Node, int] = field(default_factory=dict)
    turning: dict[Node, tuple[Node, ...]] = field(default_factory=dict)
    beneath: dict[Node, Node] = field(default_factory=dict)
    memory: dict[Node, tuple[Node, ...]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.choices: dict[Shape, bool] = {}
        self.kept = fixed_nodes(self.graph, self.setting)  # what is turned once for many calls
        self.digits = digits_kept(self.graph, self.setting)
        self.counts: dict[Shape, int] = {}  # of elements
        # What is computed from a reduction, in a kernel that walks along rows, with the elements of the shortest row.
        self.rows: dict[Node, int] = {}
        self.reduced = _reduced(self.graph)
        self.results: dict[Node, list[Node]] = {}
        self.users: dict[Node, int] = {}
        for node in self.graph.nodes:
            if node.op == "result":
                self.results.setdefault(node.inputs[0], []).append(node)
            for operand in node.inputs:
                self.users[operand] = self.users.get(operand, 0) + 1
        for output in self.graph.outputs:
            self.users[output.node] = self.users.get(output.node, 0) + 1
        for node in self.graph.nodes:
            kind = TABLE[node.op].kind
            if kind == REDUCE:
                self.rows[node] = elements(node.inputs[0], self.graph.hints) // max(1, elements(node, self.graph.hints))
            elif kind in (*ELEMENTWISE, VIEW) and not self.rows.keys().isdisjoint(node.inputs):
                self.rows[node] = min(self.rows[each] for each in node.inputs if each in self.rows)
            self._place(node)
            self._remember(node)
        for output in self.graph.outputs:
            order = shown_order(output, self.graph.hints)
            if order is not None:
                self._leaves(output.node, order)

    # ---- prices

    def move(self, node: Node, rates: tuple[float, float]) -> float:
        """Time for each byte of a value, by the rate of a CPU and of a GPU; in training its gradient goes the same way
        back.
        """
        count = self.counts.get(node.shape)
        if count is None:
            count = self.counts[node.shape] = elements(node, self.graph.hints)
        price = count * node.dtype.size * rate(rates, self.setting.targets(node.device))
        return 2 * price if self.setting.trains else price

    def turn(self, node: Node, reader: Node) -> float:
        """What it costs a kernel to read a value in one order, and to write what its ``reader`` is in the other one:
        another kernel where it walks along rows, but for long ones on a GPU, which are reduced before that; where it
        reduces them, too, each element is read by itself.
        """
        if reader in self.rows and not self._is_long(reader):
            return self.copy(node)
        if reader in self.reduced:
            return self.move(node, costs.TURNED_REDUCED)
        return self.move(node, costs.TURNED if len(node.shape) == 4 else costs.TURNED_VOLUME)

    def _is_long(self, node: Node) -> bool:
        """Whether the rows of which a value is reduced, or computed, are long on a GPU: their reductions are kernels of
        their own, which take neighbours together whichever way these lie.
        """
        target = self.setting.targets(node.device)
        return target is not None and target.tiles and self.rows[node] > costs.COLUMN

    def copy(self, node: Node) -> float:
        """A copy in the other order."""
        target = self.setting.targets(node.device)
        return (target.launch if target is not None else 0.0) + self.move(node, costs.COPIED)

    def has_choice(self, node: Node) -> bool:
        """Whether the two orders differ: there are channels, and several points of each."""
        if len(node.shape) not in (4, 5):
            return False
        differs = self.choices.get(node.shape)
        if differs is None:
            sizes = [estimate(size, self.graph.hints) for size in node.shape]
            differs = self.choices[node.shape] = sizes[1] > 1 and any(size > 1 for size in sizes[2:])
        return differs

    # ---- nodes

    def _place(self, node: Node) -> None:
        if node.op == "library":
            self._call(node)
        elif node.op == "result" and node.inputs[0] in self.calls and self.has_choice(node):
            self.places[node] = Place(self.calls[node.inputs[0]], either(len(node.shape)))
        elif node in self.kept and node.op != "input":
            return
        elif node.op in ("input", "result"):
            if node.strides is not None and self.has_choice(node):
                self._fixed(node, order_of_strides(node, self.graph.hints))
        elif node.op == "matmul":
            self._product(node)
        elif TABLE[node.op].kind == REDUCE:
            self._reduction(node)
        elif node.op == "permute":
            self._permuted(node)
        elif node.op == "reshape":
            self._reshaped(node)
        elif TABLE[node.op].kind != CREATE:
            self._computed(node)

    def _remember(self, node: Node) -> None:
        own = (node,) if node in self.places else ()
        if TABLE[node.op].kind in (*ELEMENTWISE, VIEW):
            below = (each for operand in node.inputs for each in self.memory.get(operand, ()))
            called = (each for each in below if TABLE[each.op].kind == CALL)
            self.memory[node] = tuple(dict.fromkeys((*called, *own)))
        elif own:
            self.memory[node] = own

    def _fixed(self, node: Node, order: Order | None) -> None:
        if order is not None:
            self.places[node] = Place(SOURCE, (order, order))

    def _call(self, call: Node) -> None:
        target, hints = self.setting.targets(call.device), self.graph.hints
        results, stays = self.results.get(call, ()), self.digits.get(call)
        movable = flexible(call, results, target, hints, self.setting.trains, self.kept, stays)
        if movable is not None:
            self._flexible(call, movable)
            return
        for operand, order in zip(call.inputs, call.attr("orders"), strict=True):
            place = self.places.get(operand)
            if place is not None and not place.is_fixed and order in place.orders:
                reader = SINK if order == place.orders[1] else SOURCE
                self.prices.read(operand, place.vertex, reader, self.copy(operand))
            elif place is None:
                self._read_flat(operand)

    def _flexible(self, call: Node, movable: Flexible) -> None:
        vertex = self.calls[call] = self.prices.vertex()
        self.prices.charge(vertex, movable.contiguous, movable.channels_last)
        for operand in call.inputs:
            if operand in self.kept:
                continue
            if operand in movable.weights and operand.op == "input":
                self.turning[call] = (*self.turning.get(call, ()), operand)
                continue
            place = self.places.get(operand)
            own = place.among(either(len(operand.shape))) if place is not None else None
            if own is not None:
                self.prices.read(operand, own, vertex, self.copy(operand))

    def _product(self, node: Node) -> None:
        """A product lies row-major, and so do its operands."""
        for operand in node.inputs:
            self._read_flat(operand)
        if self.has_choice(node):
            self._fixed(node, contiguous(len(node.shape)))

    def _read_flat(self, node: Node) -> None:
        """A call or product reads a value in another shape: where that is no view of its memory, a copy."""
        below = self.beneath.get(node)
        if below is not None:
            place, price = self.places[below], self.copy(below)
            self.prices.charge(place.vertex, *(price * (order != contiguous(len(order))) for order in place.orders))

    def _reduction(self, node: Node) -> None:
        """A sum that reads across memory takes longer."""
        source = node.inputs[0]
        reduced = {axis % len(source.shape) for axis in node.attr("axes")}
        last = {-1} if len(source.shape) - 1 in reduced else set()
        for read in self.memory.get(source, ()):
            place, same = self.places[read], len(read.shape) == len(source.shape)
            rank = len(read.shape)
            ends = reduced if same else {rank + axis for axis in last}  # of other rows only the end is known
            columns = same and rank - 1 in reduced and 1 not in reduced and (0 in reduced or self._is_long(node))
            groups = costs.REDUCED_GROUPS if read.dtype.size > 2 else costs.REDUCED_SHORT_GROUPS
            rates = costs.REDUCED_COLUMNS if columns else costs.REDUCED_ACROSS if same else groups
            price = self.move(read, rates)
            if not place.is_fixed:
                self.prices.charge(place.vertex, *(price * (order[-1] not in ends) for order in place.orders))

    def _permuted(self, node: Node) -> None:
        place = self.places.get(node.inputs[0])
        if place is not None:
            where = {axis: position for position, axis in enumerate(node.attr("axes"))}
            first, second = (tuple(where[axis] for axis in order) for order in place.orders)
            self.places[node] = Place(place.vertex, (first, second))
        elif node.inputs[0] in self.beneath:
            self.beneath[node] = self.beneath[node.inputs[0]]

    def _reshaped(self, node: Node) -> None:
        source = node.inputs[0]
        place, below = self.places.get(source), self.beneath.get(source)
        if place is not None and not place.is_fixed:
            below = source
        if self.has_choice(node):
            if source.op == "matmul" or (place is not None and place.is_fixed):
                self._fixed(node, contiguous(len(node.shape)))
                return
            placed = self.places[node] = Place(self.prices.vertex(), either(len(node.shape)))
            own = self.places[below].among(placed.orders) if below is not None else None
            if below is not None and own is not None:
                self.prices.join(own, placed.vertex, self.turn(below, node))
        elif below is not None:
            self.beneath[node] = below

    def _computed(self, node: Node) -> None:
        """A value that kernels compute lies as is best; reading across what it is computed from costs."""
        if not self.has_choice(node):
            below = [self.beneath[operand] for operand in node.inputs if operand in self.beneath]
            if below:
                self.beneath[node] = below[0]
            return
        placed = [operand for operand in dict.fromkeys(node.inputs) if operand in self.places]
        if not placed and TABLE[node.op].kind == VIEW:
            return  # what is spread out for a kernel lies nowhere
        free = [operand for operand in placed if not self.places[operand].is_fixed]
        if len(placed) == 1 and free and self._is_inside(free[0]):
            self.places[node] = self.places[free[0]]
            return
        orders = self.places[free[0]].orders if free else either(len(node.shape))
        place = self.places[node] = Place(self.prices.vertex(), orders)
        if node.op == "cat" and len(node.inputs) > costs.CPU_CAT_PIECES:
            price, last = self.move(node, costs.JOINED), node.attr("axis") % len(node.shape)
            self.prices.charge(place.vertex, *(price * (order[-1] == last) for order in orders))
        for operand in placed:
            own = self.places[operand].among(orders)
            if own is not None:
                self.prices.join(own, place.vertex, self.turn(operand, node))

    def _is_inside(self, node: Node) -> bool:
        """Whether a kernel computes the value for one reader: it need not be in memory."""
        return self.users[node] == 1 and TABLE[node.op].kind not in (CALL, CREATE, VIEW)

    def _leaves(self, node: Node, order: Order) -> None:
        """What the program gets lies as eager's."""
        place = self.places.get(node)
        if place is None or place.is_fixed or order not in place.orders:
            return
        label = SINK if order == place.orders[1] else SOURCE
        if node.op == "result":
            self.prices.read(node, place.vertex, label, self.copy(node))
        elif TABLE[node.op].kind == VIEW:
            self.prices.join(place.vertex, label, self.turn(node, node))
        else:
            self.prices.charge(place.vertex, *(UNBOUNDED * (order != each) for each in place.orders))


def _reduced(graph: Graph) -> set[Node]:
    """What a kernel reduces as it computes it: what reductions read, and what that is computed from element by element.
    What calls read, and what the program gets, is in memory: another kernel may turn it on its way there.
    """
    stored = {output.node for output in graph.outputs}
    for node in graph.nodes:
        if TABLE[node.op].kind == CALL:
            stored.update(node.inputs)
    found: set[Node] = set()
    for node in reversed(graph.nodes):
        kind = TABLE[node.op].kind
        if kind == REDUCE or (node in found and kind in (*ELEMENTWISE, VIEW)):
            found.update(operand for operand in node.inputs if operand not in stored)
    return found
