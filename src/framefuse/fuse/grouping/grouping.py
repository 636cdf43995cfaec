"""Turns a graph into groups, one for each item of the schedule: what is computed together and what is kept."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field

from framefuse.fuse.addressing.indexing import MOVES, Split, operand_index
from framefuse.fuse.addressing.layout import Order, preferred_orders
from framefuse.fuse.addressing.product_layouts import product_view
from framefuse.fuse.addressing.ranges import ZERO
from framefuse.fuse.addressing.strided import Strides, View, strided
from framefuse.fuse.graph.grown_cats import places
from framefuse.fuse.graph.results import wanted
from framefuse.fuse.grouping import kept, plain_cats
from framefuse.fuse.grouping.call_views import CallViews
from framefuse.fuse.grouping.cells import Cell, Group, scanned_axes
from framefuse.fuse.grouping.crossed_rows import walks_across
from framefuse.fuse.grouping.groups import Groups, strides_of
from framefuse.fuse.grouping.precedence import Precedence
from framefuse.fuse.grouping.products import product_order
from framefuse.fuse.grouping.reductions import (
    few_long_rows,
    inner_index,
    lies_apart,
    may_join_reduction,
    reads_across,
)
from framefuse.fuse.grouping.repeats import Repeats
from framefuse.fuse.grouping.work import NUMBER, Weight, points, weights
from framefuse.fuse.setting import Setting
from framefuse.ir import costs
from framefuse.ir.builder import ONE
from framefuse.ir.graph import Graph, Node
from framefuse.ir.nested import symbols_in
from framefuse.ir.numbers import Symbol
from framefuse.ir.ops import ELEMENTWISE, TABLE
from framefuse.ir.values import Value


def grouped(graph: Graph, setting: Setting) -> Groups:
    """The groups of a graph whose results have memory of their own."""
    return Grouping(graph, setting).run()


@dataclass
class Grouping:
    """The decisions about one graph while they are made; nodes are decided from the last to the first, so consumers are
    always known.

    ``home`` is the group that leaves a node in memory. ``views`` are the operands of products and library calls.
    """

    graph: Graph
    setting: Setting
    groups: list[Group] = field(default_factory=list)
    home: dict[Node, Group] = field(default_factory=dict)
    views: dict[tuple[Node, int], View] = field(default_factory=dict)
    demands: dict[Node, dict[Group, list[Cell]]] = field(default_factory=dict)
    readers: dict[Node, list[Group]] = field(default_factory=dict)  # products and calls that read a node's memory
    precedence: Precedence = field(default_factory=Precedence)
    position: dict[Node, int] = field(default_factory=dict)
    why: dict[Node, str] = field(default_factory=dict)  # values are kept in memory

    def __post_init__(self) -> None:
        needed = wanted(self.graph)
        self.required, self.output_orders = needed.required, needed.orders
        # New contents of inputs, which are best made last, in the inputs' memory.
        self.written = frozenset(write.node for write in self.graph.writes)
        self.orders: dict[Node, Order] = {**preferred_orders(self.graph), **self.output_orders}
        self.inside = places(self.graph)
        self.weights: dict[Node, Weight] = weights(self.graph)
        called = (operand for node in self.graph.nodes if node.op == "library" for operand in node.inputs)
        self.repeats = Repeats(self.setting, self.weights, self.graph.hints, self.strides_of)
        self.fixed: set[Node] = {*self.output_orders, *called}  # whose layout is eager's
        self.position = {node: number for number, node in enumerate(self.graph.nodes)}
        self.callers: dict[Symbol, Node] = {symbol: result.inputs[0] for symbol, result, _ in self.graph.bound}
        self.binding: set[Node] = set(self.callers.values())
        self.calls: dict[Node, Group] = {}
        self.results: dict[Node, list[Node]] = {}
        self.last_random: Group | None = None
        # By operand and axes of reductions the kernels that keep what is computed from them.
        self.reducing: dict[tuple[Node, Value], dict[Group, None]] = {}

    def run(self) -> Groups:
        """Decides every node; only once."""
        for node in self.graph.nodes:
            if node.op == "result":
                self.results.setdefault(node.inputs[0], []).append(node)
        for node in reversed(self.in_turn()):
            self.decide(node)
        grown = (node for node in self.graph.nodes if node.op == "grown" and any(self.users(node)))
        self.home.update({node: self.home[node.inputs[-1]] for node in grown})
        return Groups(
            self.graph, self.sequence(), self.home, self.required, self.demands, self.readers, self.views,
            self.results, self.orders, self.output_orders, kept=self.why, inside=self.inside,
        )  # fmt: skip

    def in_turn(self) -> list[Node]:
        """The nodes in an order of the program's kind, but that a result which is rounded stands behind what it is
        rounded from, and one that nothing else reads behind the last value it is computed from: else it would be
        decided before what else reads that, and in a kernel of its own.
        """
        read = {operand for node in self.graph.nodes for operand in node.inputs}
        behind: dict[Node, list[Node]] = {}
        for node in self.graph.nodes:
            if node not in self.required or TABLE[node.op].kind not in ELEMENTWISE:
                continue
            if node.op == "cast":
                behind.setdefault(node.inputs[0], []).append(node)
            elif node not in read:
                behind.setdefault(max(node.inputs, key=lambda operand: self.position[operand]), []).append(node)
        moved = {node for nodes in behind.values() for node in nodes}
        order: list[Node] = []
        stack = [node for node in reversed(self.graph.nodes) if node not in moved]
        while stack:
            order.append(stack.pop())
            stack += reversed(behind.get(order[-1], ()))
        return order

    def strides_of(self, node: Node) -> Strides:
        """The layout of a node that is in memory."""
        return strides_of(node, self.orders, self.output_orders, self.inside)

    def decide(self, node: Node) -> None:
        """Where ``node`` is computed: nowhere, inside its consumers, or in a group that keeps it in memory."""
        if node.op in ("input", "result"):
            for group, cells in self.demands.get(node, {}).items():
                for cell in cells:
                    group.load(cell)
            return
        if node.op == "library":
            self.call(node)
            return
        if node.op == "grown":
            self.grown(node)
            return
        users = self.demands.get(node, {})
        required = node in self.required or node in self.readers
        if not users and not required:
            return
        if node.op == "matmul":
            self.matmul(node)
        elif node.op == "cat" and plain_cats.is_call(node, not users, self.orders.get(node), self.setting, self.graph):
            self.joined(node)
        elif node.op == "scatter_add":
            self.scatter(node)
        elif TABLE[node.op].kind == "scan":
            self.scan(node, users, required)
        elif self.repeats.divides(node, users):
            self.keep(node, users, kept.DIVIDED, apart=True)
        elif self.repeats.is_table(node, users):
            self.keep(node, users, kept.TABLED, apart=True)
        elif not required and self.repeats.is_wide_window(node, users):
            self.keep(node, users, kept.why_kept(node, users), apart=True)
        elif not required and self.may_inline(node, users):
            for group, cells in users.items():
                for cell in tuple(cells):
                    self.compute(group, cell)
        elif required:
            read = kept.PLACED if node in self.inside else kept.READ
            self.keep(node, users, kept.RESULT if node in self.required else read)
        else:
            self.keep(node, users, kept.why_kept(node, users))

    # ---- products and library calls

    def call(self, node: Node) -> None:
        results = self.results.get(node, ())
        needed = any(r in self.demands or r in self.readers or r in self.required for r in results)
        if not needed and node not in self.binding and not node.attr("random") and node not in self.required:
            return
        group = self.call_group(node)
        self.await_numbers(group, (node.attr("args"), node.attr("kwargs"), [result.shape for result in results]))
        if node.attr("random"):
            if self.last_random is not None:
                self.precedence.state(group, self.last_random)
            self.last_random = group
        for result in results:
            self.home[result] = group
            self.publish(result, group)
        lying = CallViews(self.graph, self.setting, self.strides_of, results)
        for number, operand in enumerate(node.inputs):
            self.read(group, node, number, lying.view(node, number, operand))

    def call_group(self, node: Node) -> Group:
        if node not in self.calls:
            self.calls[node] = self.open(node)
        return self.calls[node]

    def matmul(self, node: Node) -> None:
        group = self.open(node)
        self.home[node] = group
        self.publish(node, group)
        for number, operand in enumerate(node.inputs):
            view = product_view(operand, self.strides_of, self.graph.hints)
            # Another call may count on the layout that the operand has; then the product becomes a library call.
            if view is None and operand not in self.readers and operand not in self.fixed:
                self.orders[operand] = product_order(operand, self.strides_of, self.graph.hints)
            self.read(group, node, number, view)

    def joined(self, node: Node) -> None:
        """A cat of so many pieces that choosing among them at each element would cost more than copying them."""
        self.why[node] = kept.JOINED
        group = self.open(node)
        self.home[node] = group
        if node not in self.output_orders:
            self.orders.pop(node, None)
        self.publish(node, group)
        for number, operand in enumerate(node.inputs):
            self.read(group, node, number, strided(operand, self.strides_of, self.graph.hints))

    def grown(self, node: Node) -> None:
        """Who reads a grown cat finds it in memory, when each piece is in its place."""
        for group, cells in self.demands.get(node, {}).items():
            for cell in cells:
                group.load(cell)
        for piece in node.inputs:
            readers = self.readers.setdefault(piece, [])
            readers += [group for group in self.users(node) if group not in readers]

    def users(self, node: Node) -> Iterator[Group]:
        """The groups that read a node."""
        yield from self.demands.get(node, ())
        yield from self.readers.get(node, ())

    def scatter(self, node: Node) -> None:
        """A kernel that adds to the memory of the first operand, which is then that of the node."""
        self.why[node] = kept.ADDED
        group = self.open(None, node.device)
        cell = group.open_sum(node)
        group.roots[node] = cell
        self.home[node] = group
        begun = node.inputs[0]
        self.orders.pop(begun, None)
        if node in self.orders:
            self.orders[begun] = self.orders[node]
        self.compute(group, cell)
        self.read(group, node, 0, None)
        self.publish(node, group)

    def scan(self, node: Node, users: dict[Group, list[Cell]], required: bool) -> None:
        """In the kernel of its one reader, whose loops have each element once and in order, or in one of its own."""
        for group, cells in users.items():
            alone = len(cells) == 1 and group.node is None and not (group.adds or group.reduces)
            if alone and group.rows is None and len(users) == 1 and self.may_scan(group, cells[0]):
                if required and not self.may_host(group, node, users):
                    continue
                self.compute(group, cells[0])
                if required:
                    group.roots[node], self.home[node] = cells[0], group
                    self.publish(node, group)
                return
        self.why[node] = kept.SCANNED
        group = self.open(None, node.device)
        cell = group.open(node)
        group.roots[node], self.home[node] = cell, group
        self.compute(group, cell)
        self.publish(node, group)

    def may_scan(self, group: Group, cell: Cell) -> bool:
        """Whether the loops of a kernel have the elements of a scan in order, and those of its other scans."""
        found = scanned_axes(group, cell)
        return found is not None and all(found == (other.inner, group.backwards) for other in group.scans)

    def read(self, group: Group, node: Node, number: int, view: View | None) -> None:
        """Notes that ``group`` needs an operand in memory: as a view of its base, or (None) by itself."""
        if view is None:
            operand = node.inputs[number]
            view = View(operand, operand, self.strides_of(operand), ZERO)
        self.views[(node, number)] = view
        users = self.readers.setdefault(view.base, [])
        if group not in users:
            users.append(group)

    # ---- kernels

    def may_inline(self, node: Node, users: dict[Group, list[Cell]]) -> bool:
        """Whether ``node`` is computed wherever it is used, and not kept in memory."""
        if any(len(group.cells) > costs.KERNEL_CELLS for group in users):
            return False
        if TABLE[node.op].kind == "reduce":
            return len(users) == 1 and all(self.may_reduce(g, cells) for g, cells in users.items())
        return self.repeats.pays(node, users)

    def may_reduce(self, group: Group, cells: Sequence[Cell]) -> bool:
        if group.node is not None or group.adds or group.scans or len(cells) != 1:
            return False
        target = self.setting.targets(cells[0].node.device)
        few = [costs.CPU_FEW_ROWS] if self.setting.threads else []
        if target is not None and target.tiles:
            node, hints = cells[0].node, self.graph.hints
            few = [costs.GPU_FEW_ROWS]
            read, whole = points(node.inputs[0], hints), group.size_hint(group.domain)
            if group.rows is None and whole >= max(costs.GPU_SMALL[1] * read, costs.GPU_SMALL[2]):
                return False  # rows for the sake of little would turn, or cut, what is large
            whole = max(read, whole)
            if whole >= costs.GPU_LONG_ROW * points(node, hints):
                few.append(few_long_rows(group, node))
        tiles = target is not None and target.tiles
        if not may_join_reduction(group, cells[0], self.orders, few, tiles, self.strides_of):
            return False
        return tiles or not walks_across(group, cells[0], self.strides_of)

    def compute(self, group: Group, cell: Cell) -> None:
        """Makes the group compute the cell, after the calls that set numbers of it."""
        if self.callers:
            loops = TABLE[cell.node.op].kind in ("reduce", "scatter")  # over more than the node's own sizes
            sizes = [operand.shape for operand in cell.node.inputs] if loops else ()
            self.await_numbers(group, (cell.node.shape, sizes, [value for _, value in cell.node.attrs]))
        if TABLE[cell.node.op].kind == "reduce":
            inner, axes = inner_index(group, cell)
            group.expand_reduce(cell, inner, axes)
        elif TABLE[cell.node.op].kind == "scan":
            group.expand_scan(cell)
        else:
            group.expand(cell)

    def await_numbers(self, group: Group, values: object) -> None:
        """Lets the group run after the calls that set numbers in these values."""
        for named in symbols_in(values) if self.callers else ():
            for symbol in self.graph.values.get(named, named.expr).symbols:  # calls name the trace's own symbols
                caller = self.call_group(self.callers[symbol]) if symbol in self.callers else group
                if caller is not group:  # which sets the sizes of its own results
                    self.precedence.state(caller, group)

    def keep(self, node: Node, users: dict[Group, list[Cell]], why: str, apart: bool = False) -> None:
        """Gives ``node`` memory: in a consumer's kernel unless ``apart``, in one with the same loops, or in its own."""
        self.why[node] = why
        cell = (None if apart else self.join_consumer(node, users)) or self.join_sibling(node, users)
        if cell is None:
            group = self.open(None, node.device)
            cell = group.open(node)
        else:
            group = next(g for g in self.demands[node] if cell in self.demands[node][g])
        group.roots[node] = cell
        self.home[node] = group
        for read in self.reduced_for(node):
            self.reducing.setdefault(read, {})[group] = None
        self.compute(group, cell)
        self.publish(node, group)

    def join_consumer(self, node: Node, users: dict[Group, list[Cell]]) -> Cell | None:
        for group in sorted(users, key=lambda g: -g.number):
            cells = users[group]
            if len(cells) != 1 or not self.may_host(group, node, users):
                continue
            if self.fits(group, cells[0]):
                return cells[0]
            if group.rows is None and self.ends_a_reduction(group, cells[0]):
                group.begin_rows(cells[0])
                return cells[0]
        return None

    def ends_a_reduction(self, group: Group, cell: Cell) -> bool:
        """Whether a kernel without rows would have one row for each element of the cell's node, as what is computed
        element by element from a reduction that the kernel can do: then it may leave the node in memory on the way.
        """
        covered = group.covered(cell)
        if covered is None or not covered < frozenset(group.domain):
            return False
        reduction = next(self.reductions_behind(group, cell), None)
        return reduction is not None and self.may_reduce(group, [reduction])

    def reductions_behind(self, group: Group, cell: Cell) -> Iterator[Cell]:
        """The reductions from which the cell is computed element by element, where they are not in memory."""
        stack, seen = [(cell.node, cell.index)], {cell.node}
        while stack and len(seen) < costs.SOURCES:
            node, index = stack.pop()
            kind = TABLE[node.op].kind
            if kind == "reduce":
                yield Cell(node, index, ())
                continue
            try:
                if node.op in MOVES:
                    index = operand_index(node, index, group.axes, group.hints)
                elif kind not in ELEMENTWISE:
                    continue
            except Split:
                continue
            stack += [(source, index) for source in node.inputs if source not in seen and not self.is_memory(source)]
            seen.update(node.inputs)

    def is_memory(self, node: Node) -> bool:
        """Whether a value comes from memory whatever is decided."""
        return node in self.required or node in self.readers or node.op in ("input", "result")

    def join_sibling(self, node: Node, users: dict[Group, list[Cell]]) -> Cell | None:
        """A kernel that has a root of the same shape, and already reads an operand of ``node``, or has a reduction of
        the operand of one that ``node`` is computed from.
        """
        met: list[dict[Group, list[Cell]] | dict[Group, None]]
        met = [self.demands.get(source, {}) for source in self.sources(node)]
        met += [self.reducing.get(read, {}) for read in self.reduced_for(node)]
        for readers in met:
            near = itertools.islice(reversed(readers), costs.SIBLINGS)
            for group in sorted(near, key=lambda g: -g.number):
                if group in users or not self.may_host(group, node, users):
                    continue
                sibling = next((c for root, c in group.roots.items() if root.shape == node.shape), None)
                if sibling is None:
                    sibling = self.read_alike(node, group) or self.squeezed_alike(node, group)
                    sibling = sibling or self.reduced_alike(node, group)
                if sibling is None:
                    continue
                alike = (TABLE[node.op].kind == "reduce") == (TABLE[sibling.node.op].kind == "reduce")
                if not alike and not any(reduce.inner for reduce in group.reduces):
                    continue
                trial = Cell(node, sibling.index, ())
                if self.fits(group, trial) and all(
                    self.may_reduce(group, [reduce]) for reduce in self.reductions_behind(group, trial)
                ):
                    return group.cell(node, sibling.index, ())
        return None

    def read_alike(self, node: Node, group: Group) -> Cell | None:
        """Where a kernel without a root of the node's shape computes or reads an operand of that shape, once."""
        for operand in node.inputs:
            cells = self.demands.get(operand, {}).get(group, ())
            if operand.shape == node.shape and len(cells) == 1:
                return next(iter(cells))
        return None

    def squeezed_alike(self, node: Node, group: Group) -> Cell | None:
        """Where a kernel of a GPU stores a value that has the node's elements and dimensions of size one besides (the
        deviation of a norm, which the kernel of its sums may keep), as a value of the node's shape.
        """
        target = self.setting.targets(node.device)
        if target is None or not target.tiles:
            return None
        wide = [axis for axis, size in enumerate(node.shape) if size is not ONE]
        for root, cell in group.roots.items():
            kept = [axis for axis, size in enumerate(root.shape) if size is not ONE]
            if wide and [root.shape[axis] for axis in kept] == [node.shape[axis] for axis in wide]:
                index = dict(zip(wide, (cell.index[axis] for axis in kept), strict=True))
                return Cell(root, tuple(index.get(axis, ZERO) for axis in range(len(node.shape))), ())
        return None

    def reduced_alike(self, node: Node, group: Group) -> Cell | None:
        """Where a kernel reduces the operand of a reduction over the same axes: what it stores may be as large as all
        channels of each group that it sums up.
        """
        if TABLE[node.op].kind != "reduce":
            return None
        for reduce in group.reduces:
            if reduce.node.inputs == node.inputs and reduce.node.attr("axes") == node.attr("axes"):
                return reduce if len(reduce.index) == len(node.shape) else None
        return None

    def reductions_of(self, node: Node) -> list[Node]:
        """The reductions from which a value is computed element by element."""
        return [source for source in self.sources(node) if TABLE[source.op].kind == "reduce"]

    def reduced_for(self, node: Node) -> Iterator[tuple[Node, Value]]:
        """What is reduced where a value is computed from reductions, and the operands of that, with the axes."""
        for reduce in self.reductions_of(node):
            reduced = reduce.inputs[0]
            for source in (reduced, *(reduced.inputs if TABLE[reduced.op].kind in ELEMENTWISE else ())):
                yield source, reduce.attr("axes")

    def sources(self, node: Node) -> Iterable[Node]:
        """Values from which ``node`` is computed by moves and pointwise operations, and that are as large as it."""
        stack = list(node.inputs)
        seen = set(stack)
        size = max((points(operand, self.graph.hints) for operand in node.inputs), default=0)
        while stack and len(seen) < costs.SOURCES:
            operand = stack.pop()
            large = 2 * points(operand, self.graph.hints) >= size and self.weights[operand] is not NUMBER
            if operand.op not in MOVES and large:
                yield operand
            if operand.op in MOVES or TABLE[operand.op].kind in ELEMENTWISE:
                fresh = [source for source in operand.inputs if source not in seen]
                fresh = [source for source in fresh if self.weights[source] is not NUMBER]
                seen.update(fresh)
                stack.extend(fresh)

    def may_host(self, group: Group, node: Node, users: dict[Group, list[Cell]]) -> bool:
        """Whether ``group`` may leave one more value in memory: no other reader of it may run before the group."""
        if group.node is not None or group.adds or group in self.readers.get(node, ()):
            return False
        if len(group.roots) >= costs.KERNEL_ROOTS or len(group.cells) > costs.KERNEL_CELLS:
            return False
        bit = 1 << group.number
        others = [*users, *self.readers.get(node, ())]
        if self.callers and any(size.symbols & self.callers.keys() for size in node.shape):
            return False
        return not any(self.precedence.reach[other] & bit for other in others if other is not group)

    def fits(self, group: Group, cell: Cell) -> bool:
        """Whether the kernel's loops visit each element of the cell's node once."""
        covered = group.covered(cell)
        if covered is None:
            return False
        if TABLE[cell.node.op].kind == "reduce":
            return self.may_reduce(group, [cell])
        if group.rows is None:
            return covered == frozenset(group.domain)
        if covered == group.rows:
            return True
        inner = covered - group.rows
        passes = [frozenset(group.domain) - group.rows, *(frozenset(r.inner) for r in group.reduces)]
        return covered > group.rows and inner in passes and self.streams(group, cell, inner)

    def streams(self, group: Group, cell: Cell, inner: frozenset[Symbol]) -> bool:
        """Whether a row kernel reads and writes the cell along its memory, not across it: one of tiles turns it, and
        has neighbouring rows side by side where all that it reads lies so.
        """
        target, order = self.setting.targets(cell.node.device), self.orders.get(cell.node)
        last = (order or range(len(cell.index)))[-1]
        tiles = target is not None and target.tiles
        if not cell.index[last].symbols & inner:
            if group.size_hint(inner) <= costs.ACROSS:
                return True
            rows = group.rows or frozenset()

            def lies_in_rows(axis: int) -> bool:
                symbols = cell.index[axis].symbols
                return bool(symbols) and symbols <= rows

            return tiles and lies_in_rows(last) and not reads_across(cell.node, self.orders, lies_in_rows)
        if tiles and lies_apart(group, cell, inner, self.strides_of):
            return False
        return not (tiles and reads_across(cell.node, self.orders, lambda axis: bool(cell.index[axis].symbols & inner)))

    # ---- order

    def open(self, node: Node | None, device: str | None = None) -> Group:
        target = self.setting.targets(device) if device is not None else None
        tiles = target is not None and target.tiles
        group = Group(len(self.groups), self.demands, self.graph.hints, node, tiles=tiles)
        self.groups.append(group)
        self.precedence.add(group)
        return group

    def publish(self, node: Node, group: Group) -> None:
        """Notes that every other reader of ``node`` loads it, after ``group`` ran."""
        for user, cells in self.demands.get(node, {}).items():
            if user is not group:
                self.precedence.state(group, user)
                for cell in cells:
                    user.load(cell)
        for user in self.readers.get(node, ()):
            self.precedence.state(group, user)

    def sequence(self) -> tuple[Group, ...]:
        """The groups in an order that keeps close to the program's, but that kernels which may work in the memory of
        inputs come behind what may fail.
        """
        early = 0
        for group in self.groups:
            if group.node is not None or not self.written.issuperset(group.roots):
                early |= 1 << group.number
        places = {group: (self.may_wait(group, early), self._place(group)) for group in self.groups}
        return self.precedence.order(places)

    def may_wait(self, group: Group, early: int) -> bool:
        """Whether a kernel leaves nothing but new contents of inputs, for none of the ``early`` groups, and keeps
        nothing larger than them alive.
        """
        if early >> group.number & 1 or self.precedence.reach[group] & early:
            return False
        size = max(points(root, self.graph.hints) for root in group.roots)
        loads = (cell.node for cell in group.cells.values() if cell.kind == "load" and cell.node.op != "input")
        return all(points(node, self.graph.hints) <= size for node in loads)

    def _place(self, group: Group) -> int:
        nodes = [group.node] if group.node is not None else group.roots
        return max(self.position[node] for node in nodes)
