"""Turns a graph of primitives into its schedule: kernels, products and library calls in order, over planned memory."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

from framefuse.errors import CompilerBug
from framefuse.fuse.addressing.layout import Order
from framefuse.fuse.addressing.ranges import ONE, ZERO
from framefuse.fuse.addressing.strided import Strides, View
from framefuse.fuse.graph.copies import with_single_copies
from framefuse.fuse.graph.empty import without_empty
from framefuse.fuse.graph.named_sizes import with_named_sizes
from framefuse.fuse.graph.scatters import beginnings, with_own_sums
from framefuse.fuse.grouping.calls import cat_call, matmul_call, may_see_views, view_call
from framefuse.fuse.grouping.cells import Group
from framefuse.fuse.grouping.epilogues import Activated, activated
from framefuse.fuse.grouping.fused_products import FusedProduct, fused_products
from framefuse.fuse.grouping.grouping import Grouping
from framefuse.fuse.grouping.products import is_blas, run_matmul
from framefuse.fuse.memory.in_place import in_place, overwritable
from framefuse.fuse.memory.memory_plan import Buffers, Value, with_lifetimes
from framefuse.fuse.memory.overwrite import needless, overwrite
from framefuse.fuse.memory.sharing import share
from framefuse.fuse.nest import cpu, gpu
from framefuse.fuse.nest.nest import Built, Partial
from framefuse.fuse.nest.reuse import Kernels
from framefuse.ir.graph import Graph, Node
from framefuse.ir.loops.key import Key, key_of
from framefuse.ir.schedule import Item, Offer, RunCall, RunKernel, Schedule
from framefuse.ir.target import Target, Targets, on_cpu


def fuse(
    graph: Graph,
    *,
    threads: bool = True,
    exact: bool = False,
    targets: Targets = on_cpu,
    offers: bool = False,
    products: frozenset[tuple[int, bool]] = frozenset(),
) -> Schedule:
    """The schedule of ``graph``. ``threads`` False leaves out what only several threads repay; ``exact`` kernels take
    eager's mathematical functions. ``targets`` knows every device on which something is to be computed. With ``offers``
    the schedule says which products could be kernels of ours; those in ``products`` are.
    """
    graph, sizes = with_named_sizes(without_empty(graph))
    graph = with_own_sums(with_single_copies(graph))
    wanted = Wanted.of(graph)
    grouping = Grouping(wanted.graph, wanted.required, wanted.orders, threads, targets, frozenset(wanted.writes))
    grouping.run()
    writer = _Writer(graph, wanted, grouping, threads, exact, targets)
    if not exact:  # eager rounds the product before its activation
        writer.activated = {found.group: found for found in activated(grouping)}
    if offers or products:
        writer.products = {
            (grouping.position[found.node], bool(found.before)): found for found in fused_products(grouping)
        }
        writer.taken, writer.offering = products, offers and not products
    schedule = writer.schedule()
    return replace(schedule, largest=(*sizes, *schedule.largest))


@dataclass
class Wanted:
    """What must be in memory at the end: ``graph`` with a copy for each result that would share another's memory,
    ``outputs`` and ``writes`` the nodes in whose memory they are.
    """

    graph: Graph
    required: set[Node] = field(default_factory=set)
    orders: dict[Node, Order] = field(default_factory=dict)
    outputs: list[Node] = field(default_factory=list)
    writes: list[Node] = field(default_factory=list)

    @staticmethod
    def of(graph: Graph) -> Wanted:
        """Reads the results and effects of a graph."""
        wanted = Wanted(graph)
        copies: list[Node] = []

        def copied(node: Node) -> Node:
            copy = Node("expand", (node,), (), node.dtype, node.shape, None, node.line, node.device)
            copies.append(copy)
            return copy

        for output in graph.outputs:
            node = output.node
            if output.input is None:
                if node.op == "input" or node in wanted.required:
                    node = copied(node)
                wanted.required.add(node)
                if node.op != "result" and output.order is not None:
                    wanted.orders[node] = output.order
            wanted.outputs.append(node)
        overwritten = {graph.inputs[write.input] for write in graph.writes}
        for write in graph.writes:
            node = write.node
            if node in overwritten and node is not graph.inputs[write.input]:
                node = copied(node)
            if node.op != "input":
                wanted.required.add(node)
            wanted.writes.append(node)
        wanted.required |= {*graph.kept}
        wanted.graph = replace(graph, nodes=(*graph.nodes, *copies))
        return wanted


class _Writer:
    """Builds the items of the groups and the buffers that they use."""

    def __init__(
        self, graph: Graph, wanted: Wanted, grouping: Grouping, threads: bool, exact: bool, targets: Targets
    ) -> None:
        self.exact = exact
        self.targets = targets
        self.graph = graph
        self.wanted = wanted
        self.grouping = grouping
        self.threads = threads
        self.written = Kernels(grouping.strides_of)
        # Between forward and backward memory is held for gradients: an arena that stays would come on top.
        self.buffers = Buffers(graph.hints, brief=graph.trains or bool(graph.consumed))
        self.items: list[Item] = []
        self.notes: list[str] = []
        self.numbers: dict[object, int] = {}
        self.views: dict[tuple[object, ...], int] = {}
        # By the number of the library's call, and whether what makes its operands is part of it.
        self.products: dict[tuple[int, bool], FusedProduct] = {}
        self.taken: frozenset[tuple[int, bool]] = frozenset()
        self.single: dict[Group, RunKernel] = {}  # the last kernel of a group
        self.offering = False
        self.offers: list[Offer] = []
        self.calls: dict[Node, RunCall] = {}
        self.activated: dict[Group, Activated] = {}  # by the kernel that is not needed
        self.made: set[Node] = set()  # results of calls that a kernel of ours makes
        self.escaping = self._escaping()
        self.called = {result for _, result, _ in graph.bound}
        views = grouping.views.items()  # what a product or a view takes relies on the layout of its base
        self.relied = {view.base for (caller, _), view in views if caller.op == "matmul" or not view.is_whole}

    def _escaping(self) -> set[Node]:
        """Nodes whose memory a user, or a library call that may keep it, gets to see."""
        found = {node for node in (*self.wanted.outputs, *self.wanted.writes) if node.op not in ("input", "result")}
        for (caller, _), view in self.grouping.views.items():
            if caller.op == "library" and not may_see_views(caller):
                found.add(view.base)
        return beginnings(self.graph.nodes, found)

    def schedule(self) -> Schedule:
        """Writes everything."""
        for node in self.graph.inputs:
            self.number(node)
        fused = {self.products[number].group: self.products[number] for number in self.taken}
        absorbed = {found.node for found in fused.values()}
        self.made = {found.cell.node for found in fused.values()}
        dropped = {group for found in fused.values() for _, group in found.before}
        self.activated = {group: found for group, found in self.activated.items() if group not in (*fused, *dropped)}
        absorbed |= {found.product.node for found in self.activated.values()}
        for group in self.grouping.sequence():
            if group in fused:
                built = gpu.build_product(fused[group], self.grouping.strides_of, self.exact)
                self.append(*self.item(built, group.device))
            elif group.node in absorbed or group in dropped:
                continue
            elif group in self.activated:
                self.activation(self.activated[group])
            elif group.node is None:
                self.kernels(group)
            elif group.node.op == "matmul":
                self.product(group.node)
            elif group.node.op == "cat":
                self.joined(group.node)
            else:
                self.call(group.node)
        outputs = tuple(
            self.numbers[self.graph.inputs[o.input]] if o.input is not None else self.number(node)
            for o, node in zip(self.graph.outputs, self.wanted.outputs, strict=True)
        )
        writes = tuple(
            (self.numbers[self.graph.inputs[write.input]], self.number(node), write.bumps)
            for write, node in zip(self.graph.writes, self.wanted.writes, strict=True)
        )
        for number in (*outputs, *(w[1] for w in writes)):
            self.buffers.values[number].pinned = True
        before, writes = overwrite(self.graph, self.items, self.buffers, outputs, writes, self.targets)
        self.plan_in_place()
        found = self.buffers.place(frozenset(symbol for symbol, _, _ in self.graph.bound))
        largest = tuple(row for places in found.values() for row in places.largest)
        arenas = tuple((device, places.size) for device, places in found.items() if device != "cpu")
        placed = share([self.placed(item) for item in self.items])
        gone = needless(self.items, self.buffers)
        items = with_lifetimes(placed, self.buffers, before, self.graph.consumed, gone)
        memories = self.buffers.memories()
        return Schedule(
            self.graph, memories, items, outputs, found["cpu"].size, writes, tuple(self.notes), largest, arenas,
            tuple(self.offers),
        )  # fmt: skip

    # ---- buffers

    def number(self, key: Node | Partial) -> int:
        """The buffer of a node or partial result."""
        found = self.numbers.get(key)
        if found is None:
            begun = key.inputs[0] if isinstance(key, Node) and key.op == "scatter_add" else None
            found = self.buffers.add(self._value(key)) if begun is None else self.number(begun)
            self.numbers[key] = found
        return found

    def _value(self, key: Node | Partial) -> Value:
        if isinstance(key, Partial):
            return Value("arena", key.dtype, (key.size,), (ONE,), key.device)
        strides = self.grouping.strides_of(key)
        place = {"input": "input", "result": "call"}.get(key.op, "fresh" if key in self.escaping else "arena")
        place = "fresh" if key in self.made else place
        position = key.attr("index") if key.op == "input" else -1
        return Value(place, key.dtype, key.shape, strides, key.device, position)

    def operand(self, view: View, as_tensor: bool) -> int:
        """The buffer of an operand; a product takes a view without offset as its base with other strides."""
        base = self.number(view.base)
        if view.is_whole or (not as_tensor and view.offset.constant == 0):
            return base
        strides = view.of_a_tensor
        key = (base, view.node.shape, strides, view.offset)
        if key not in self.views:
            node = view.node
            value = Value("view", node.dtype, node.shape, strides, node.device, -1, base, view.offset)
            self.views[key] = self.buffers.add(value)
        return self.views[key]

    def owned(self, view: View) -> int:
        """The buffer of an operand that a call may keep: a view is a tensor that holds its base's memory."""
        if view.is_whole:
            return self.number(view.base)
        base = self.number(view.base)
        strides = view.of_a_tensor
        key = ("owned", base, view.node.shape, strides, view.offset)
        if key not in self.views:
            node = view.node
            out = self.views[key] = self.buffers.add(Value("call", node.dtype, node.shape, strides, node.device))
            item = RunCall(view_call(view), (base,), (((), out),), (), (), False)
            self.append(item, (base, out), "as_strided")
        return self.views[key]

    def append(self, item: Item, touched: Sequence[int], note: str) -> None:
        for number in touched:
            self.buffers.touch(number, len(self.items))
        self.items.append(item)
        self.notes.append(note)

    # ---- items

    def plan_in_place(self) -> None:
        """Offers to written buffers the memory of read ones that end there, where that is possible for every call of
        an equal kernel: a kernel that writes in place is another kernel, to be compiled once more.
        """
        values = self.buffers.values
        calls: dict[Key, list[RunKernel]] = {}
        offers: dict[Key, set[tuple[str, str, str]]] = {}
        for place, item in enumerate(self.items):
            if not isinstance(item, RunKernel):
                continue
            named = list(zip(item.kernel.buffers, item.buffers, strict=True))
            starting = [(b.name, values[n]) for b, n in named if b.written and self.buffers.may_take(n, place)]
            read = [(b.name, values[n]) for b, n in named if not b.written and values[n].place == "arena"]
            pairs = {
                (name, other, value.place)
                for name, value in starting
                for other, source in read
                if source.last == place and value.bytes is source.bytes
            }
            key = key_of(item.kernel)
            offers[key] = offers.get(key, pairs) & pairs
            calls.setdefault(key, []).append(item)
        for key, pairs in offers.items():
            allowed = overwritable(calls[key][0].kernel) if pairs else {}
            for name, other, _ in sorted(pairs):
                if other in allowed.get(name, ()):
                    for item in calls[key]:
                        names = {b.name: n for b, n in zip(item.kernel.buffers, item.buffers, strict=True)}
                        values[names[name]].over += (names[other],)

    def placed(self, item: Item) -> Item:
        """A kernel told which of its buffers are one memory."""
        if not isinstance(item, RunKernel):
            return item
        names = {number: buffer.name for buffer, number in zip(item.kernel.buffers, item.buffers, strict=True)}
        pairs = {
            buffer.name: names[self.buffers.values[number].taken]
            for buffer, number in zip(item.kernel.buffers, item.buffers, strict=True)
            if buffer.written and self.buffers.values[number].taken in names
        }
        return replace(item, kernel=in_place(item.kernel, pairs)) if pairs else item

    def kernels(self, group: Group) -> None:
        for kernel in self.written.of(group, self.build):
            self.append(*self.item(kernel, group.device))
        item = self.items[-1]
        assert isinstance(item, RunKernel)
        self.single[group] = item
        self.offer(group, item)

    def build(self, group: Group, strides_of: Callable[[Node], Strides]) -> list[Built]:
        """The kernels of a group that equals no earlier one."""
        target = self.target(group.device)
        if target.tiles:
            return gpu.build_kernels(group, strides_of)
        return cpu.build_kernels(group, strides_of, self.threads, target)

    def offer(self, group: Group, kernel: RunKernel | None, call: RunCall | None = None) -> None:
        """Says which products could be one kernel with ``group``, whose work is done by a ``kernel`` or by the ``call``
        itself.
        """
        for name, found in self.products.items() if self.offering else ():
            if found.group is group and not any(other in self.activated for _, other in found.before):
                fused, _, _ = self.item(gpu.build_product(found, self.grouping.strides_of, self.exact), group.device)
                before = tuple(self.single[other] for _, other in found.before)
                self.offers.append(Offer(name, call or self.calls[found.node], kernel, fused, found.groups, before))

    def target(self, device: str) -> Target:
        target = self.targets(device)
        if target is None:
            raise CompilerBug(f"nothing compiles kernels for {device}")
        return target

    def item(self, built: Built, device: str) -> tuple[RunKernel, tuple[int, ...], str]:
        """The call of a kernel, the buffers that it touches, and its name."""
        touched = tuple(self.number(key) for key in built.buffers)  # type: ignore[arg-type]
        parallel = built.parallel and self.threads
        kernel = replace(built.kernel, exact=True) if self.exact else built.kernel
        item = RunKernel(kernel, touched, built.numbers, built.extent, built.work, parallel, device)
        return item, touched, built.kernel.title

    def product(self, node: Node) -> None:
        a, c = self.grouping.views[(node, 0)], self.grouping.views[(node, 1)]
        target = self.targets(node.device)
        ours = target is not None and target.products
        if not ours or not is_blas(node, a, c, self.grouping.strides_of(node)):
            self.matmul_call(node, a, c)
            return
        out = self.number(node)
        operands = (self.operand(a, as_tensor=False), self.operand(c, as_tensor=False))
        item = run_matmul(node, out, (operands[0], a), (operands[1], c), self.grouping.strides_of(node))
        self.append(item, (*operands, out), "matmul")

    def matmul_call(self, node: Node, a: View, c: View) -> None:
        operands = (self.operand(a, as_tensor=True), self.operand(c, as_tensor=True))
        out = self.number(node)
        self.buffers.values[out].place = "call"
        item = RunCall(matmul_call(node), operands, (((), out),), (), (out,), True)
        self.append(item, (*operands, out), "matmul")

    def joined(self, node: Node) -> None:
        """A cat of many pieces."""
        views = [self.grouping.views[(node, number)] for number in range(len(node.inputs))]
        operands = tuple(self.operand(view, as_tensor=True) for view in views)
        out = self.number(node)
        self.buffers.values[out].place = "call"
        self.append(RunCall(cat_call(node), operands, (((), out),), (), (out,), True), (*operands, out), "cat")

    def activation(self, found: Activated) -> None:
        """The call that does the work of a product and of the kernel behind it."""
        root, strides = found.root, self.grouping.strides_of(found.root)
        operands = tuple(self.operand(view, as_tensor=True) for view in found.operands)
        matrix = root.shape == found.flat.shape
        out = self.numbers[root if matrix else found.flat] = self.buffers.add(self._value(found.flat))
        item = RunCall(found.node, operands, (((), out),), (), (out,), True)
        self.append(item, (*operands, out), str(found.node.attr("name")))
        if not matrix and root in self.escaping:
            self.numbers[root] = self.owned(View(root, found.flat, strides, ZERO))
        elif not matrix:
            self.numbers[root] = self.operand(View(root, found.flat, strides, ZERO), as_tensor=True)
        self.offer(found.group, None, item)

    def call(self, node: Node) -> None:
        inside = may_see_views(node)
        views = [self.grouping.views[(node, number)] for number in range(len(node.inputs))]
        operands = tuple(self.operand(view, as_tensor=True) if inside else self.owned(view) for view in views)
        results = [r for r in self.grouping.results.get(node, ()) if self._is_used(r)]
        outs = tuple((tuple(r.attr("path")), self.number(r)) for r in results)
        binds = tuple((self.number(r), dim, symbol) for symbol, r, dim in self.graph.bound if r.inputs[0] is node)
        normal = tuple(self.number(r) for r in results if self._is_read(r))
        item = self.calls[node] = RunCall(node, operands, outs, binds, normal, inside)
        self.append(item, (*operands, *(number for _, number in outs)), str(node.attr("name")))

    def _is_used(self, result: Node) -> bool:
        grouping = self.grouping
        wanted = result in self.wanted.required or result in self.called
        return wanted or result in grouping.demands or result in grouping.readers

    def _is_read(self, result: Node) -> bool:
        """Whether compiled code or a view relies on the layout of a call's result."""
        return result in self.grouping.demands or result in self.relied
