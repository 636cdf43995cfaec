"""Turns groups into a draft: kernels, products and library calls in order, over buffers."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

from framefuse.fuse.addressing.ranges import ONE, ZERO
from framefuse.fuse.addressing.strided import Strides, View
from framefuse.fuse.graph.scatters import beginnings
from framefuse.fuse.grouping.cells import Group
from framefuse.fuse.grouping.choices import Activated
from framefuse.fuse.grouping.groups import Groups
from framefuse.fuse.grouping.library_items import cat_call, matmul_call, may_see_views, view_call
from framefuse.fuse.grouping.products import is_blas, run_matmul
from framefuse.fuse.memory.draft import Buffers, Draft, Value
from framefuse.fuse.memory.overwrite import overwriting
from framefuse.fuse.nest import cpu, gpu
from framefuse.fuse.nest.nest import Built, Partial
from framefuse.fuse.nest.reuse import Kernels
from framefuse.fuse.setting import Setting
from framefuse.ir.graph import Node, Write
from framefuse.ir.schedule import Item, Offer, RunCall, RunKernel


def written(groups: Groups, setting: Setting) -> Draft:
    """The draft of a schedule in which every group has its items. What the last kernels may write to parts of inputs
    lies as these parts do, everything else as the groups say.
    """
    parts = _parts(groups)
    while True:
        draft = _Writer(groups, setting, parts).draft()
        if not parts:
            return draft
        done = {groups.graph.writes[number].node for number in overwriting(draft, setting).writes}
        if done.issuperset(parts):
            return draft
        parts = {node: strides for node, strides in parts.items() if node in done}


def _parts(groups: Groups) -> dict[Node, Strides]:
    """The new contents of parts of inputs that kernels leave in memory, and nothing else takes as they lie."""
    return {
        write.node: write.part.strides
        for write in groups.graph.writes
        if write.part is not None
        and write.node.op not in ("input", "result", "scatter_add")
        and write.node not in groups.readers
        and write.node in groups.home
        and groups.home[write.node].node is None
    }


class _Writer:
    """Builds the items of the groups and the buffers that they use."""

    def __init__(self, groups: Groups, setting: Setting, parts: Mapping[Node, Strides]) -> None:
        self.groups = groups
        self.parts = parts
        self.graph = groups.graph
        self.setting = setting
        self.kernels_made = Kernels(self.strides_of)
        self.buffers = Buffers()
        self.items: list[Item] = []
        self.numbers: dict[object, int] = {}
        self.views: dict[tuple[object, ...], int] = {}
        fused = [groups.products[name] for name in setting.products]
        self.fused = {product.group: product for product in fused}
        self.made = {product.cell.node for product in fused}  # results of calls that a kernel of ours makes
        self.dropped = {group for product in fused for _, group in product.before}
        taken = (*self.fused, *self.dropped)
        # By the kernel that is not needed.
        self.activated = {epilogue.group: epilogue for epilogue in groups.activated if epilogue.group not in taken}
        activated = {epilogue.product.node for epilogue in self.activated.values()}
        self.absorbed = {product.node for product in fused} | activated
        self.single: dict[Group, RunKernel] = {}  # the last kernel of a group
        self.offering = setting.offers and not setting.products
        self.offers: list[Offer] = []
        self.calls: dict[Node, RunCall] = {}
        self.escaping = self._escaping()
        self.called = {result for _, result, _ in self.graph.bound}
        views = groups.views.items()  # what a product or a view takes relies on the layout of its base
        self.relied = {view.base for (caller, _), view in views if caller.op == "matmul" or not view.is_whole}

    def _escaping(self) -> set[Node]:
        """Nodes whose memory a user, or a library call that may keep it, gets to see."""
        wanted = (*(output.node for output in self.graph.outputs), *(write.node for write in self.graph.writes))
        escaping = {node for node in wanted if node.op not in ("input", "result")}
        for (caller, _), view in self.groups.views.items():
            if caller.op == "library" and not may_see_views(caller):
                escaping.add(view.base)
        return beginnings(self.graph.nodes, escaping)

    def draft(self) -> Draft:
        """Writes everything."""
        for node in self.graph.inputs:
            self.number(node)
        for group in self.groups.order:
            self.write(group)
        outputs = tuple(
            self.number(self.graph.inputs[output.input] if output.input is not None else output.node)
            for output in self.graph.outputs
        )
        writes = tuple((self.target(write), self.number(write.node), write.bumps) for write in self.graph.writes)
        values = self.buffers.finished(frozenset((*outputs, *(number for _, number, _ in writes))))
        notes = tuple((self.numbers[node], why) for node, why in self.groups.kept.items() if node in self.numbers)
        return Draft(self.graph, tuple(self.items), values, outputs, writes, notes, tuple(self.offers))

    def write(self, group: Group) -> None:
        """The items of one group, if what it is for is not part of others."""
        if group in self.fused:
            built = gpu.build_product(self.fused[group], self.strides_of, self.setting.exact)
            self.append(*self.item(built, group.device))
        elif group.node in self.absorbed or group in self.dropped:
            return
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

    # ---- buffers

    def strides_of(self, node: Node) -> Strides:
        """The layout of a node in memory."""
        strides = self.parts.get(node)
        return self.groups.strides_of(node) if strides is None else strides

    def number(self, key: Node | Partial) -> int:
        """The buffer of a node or partial result."""
        known = self.numbers.get(key)
        if known is None:
            begun = key.inputs[0] if isinstance(key, Node) and key.op == "scatter_add" else None
            known = self.buffers.add(self._value(key)) if begun is None else self.number(begun)
            self.numbers[key] = known
        return known

    def target(self, write: Write) -> int:
        """The buffer of the input that is written, or of the part of it."""
        own, node, part = self.numbers[self.graph.inputs[write.input]], write.node, write.part
        if part is None:
            return own
        return self.buffers.add(Value("view", node.dtype, node.shape, part.strides, node.device, -1, own, part.offset))

    def _value(self, key: Node | Partial) -> Value:
        if isinstance(key, Partial):
            return Value("arena", key.dtype, (key.size,), (ONE,), key.device)
        strides = self.strides_of(key)
        part = self.groups.inside.get(key)
        if part is not None and part.whole is not key:
            base, offset = self.number(part.whole), strides[part.axis] * part.start
            return Value("view", key.dtype, key.shape, strides, key.device, -1, base, offset)
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
            self.append(item, (base, out))
        return self.views[key]

    def append(self, item: Item, touched: Sequence[int]) -> None:
        for number in touched:
            self.buffers.touch(number, len(self.items))
        self.items.append(item)

    # ---- items

    def kernels(self, group: Group) -> None:
        for kernel in self.kernels_made.of(group, self.build):
            self.append(*self.item(kernel, group.device))
        item = self.items[-1]
        assert isinstance(item, RunKernel)
        self.single[group] = item
        self.offer(group, item)

    def build(self, group: Group, strides_of: Callable[[Node], Strides]) -> list[Built]:
        """The kernels of a group that equals no earlier one."""
        target = self.setting.target(group.device)
        if target.tiles:
            return gpu.build_kernels(group, strides_of, target)
        return cpu.build_kernels(group, strides_of, self.setting.threads, target)

    def offer(self, group: Group, kernel: RunKernel | None, call: RunCall | None = None) -> None:
        """Says which products could be one kernel with ``group``, whose work is done by a ``kernel`` or by the ``call``
        itself.
        """
        for name, product in self.groups.products.items() if self.offering else ():
            if product.group is group and not any(other in self.activated for _, other in product.before):
                built = gpu.build_product(product, self.strides_of, self.setting.exact)
                fused, _ = self.item(built, group.device)
                before = tuple(self.single[other] for _, other in product.before)
                self.offers.append(Offer(name, call or self.calls[product.node], kernel, fused, product.groups, before))

    def item(self, built: Built, device: str) -> tuple[RunKernel, tuple[int, ...]]:
        """The call of a kernel, and the buffers that it touches."""
        touched = tuple(self.number(key) for key in built.buffers)  # type: ignore[arg-type]
        parallel = built.parallel and self.setting.threads
        kernel = replace(built.kernel, exact=True) if self.setting.exact else built.kernel
        item = RunKernel(kernel, touched, built.numbers, built.extent, built.work, parallel, device)
        return item, touched

    def product(self, node: Node) -> None:
        a, c = self.groups.views[(node, 0)], self.groups.views[(node, 1)]
        target = self.setting.targets(node.device)
        ours = target is not None and target.products
        if not ours or not is_blas(node, a, c, self.strides_of(node)):
            self.matmul_call(node, a, c)
            return
        out = self.number(node)
        operands = (self.operand(a, as_tensor=False), self.operand(c, as_tensor=False))
        item = run_matmul(node, out, (operands[0], a), (operands[1], c), self.strides_of(node))
        self.append(item, (*operands, out))

    def matmul_call(self, node: Node, a: View, c: View) -> None:
        operands = (self.operand(a, as_tensor=True), self.operand(c, as_tensor=True))
        out = self.number(node)
        self.buffers.by_call(out)
        item = RunCall(matmul_call(node), operands, (((), out),), (), (out,), True)
        self.append(item, (*operands, out))

    def joined(self, node: Node) -> None:
        """A cat of many pieces."""
        views = [self.groups.views[(node, number)] for number in range(len(node.inputs))]
        operands = tuple(self.operand(view, as_tensor=True) for view in views)
        out = self.number(node)
        self.buffers.by_call(out)
        self.append(RunCall(cat_call(node), operands, (((), out),), (), (out,), True), (*operands, out))

    def activation(self, activated: Activated) -> None:
        """The call that does the work of a product and of the kernel behind it."""
        root, strides = activated.root, self.strides_of(activated.root)
        operands = tuple(self.operand(view, as_tensor=True) for view in activated.operands)
        matrix = root.shape == activated.flat.shape
        out = self.numbers[root if matrix else activated.flat] = self.buffers.add(self._value(activated.flat))
        item = RunCall(activated.node, operands, (((), out),), (), (out,), True)
        self.append(item, (*operands, out))
        if not matrix and root in self.escaping:
            self.numbers[root] = self.owned(View(root, activated.flat, strides, ZERO))
        elif not matrix:
            self.numbers[root] = self.operand(View(root, activated.flat, strides, ZERO), as_tensor=True)
        self.offer(activated.group, None, item)

    def call(self, node: Node) -> None:
        inside = may_see_views(node)
        views = [self.groups.views[(node, number)] for number in range(len(node.inputs))]
        operands = tuple(self.operand(view, as_tensor=True) if inside else self.owned(view) for view in views)
        results = [r for r in self.groups.results.get(node, ()) if self._is_used(r)]
        outs = tuple((tuple(r.attr("path")), self.number(r)) for r in results)
        binds = tuple((self.number(r), dim, symbol) for symbol, r, dim in self.graph.bound if r.inputs[0] is node)
        normal = tuple(self.number(r) for r in results if self._is_read(r))
        item = self.calls[node] = RunCall(node, operands, outs, binds, normal, inside)
        self.append(item, (*operands, *(number for _, number in outs)))

    def _is_used(self, result: Node) -> bool:
        groups = self.groups
        wanted = result in groups.required or result in self.called
        return wanted or result in groups.demands or result in groups.readers

    def _is_read(self, result: Node) -> bool:
        """Whether compiled code or a view relies on the layout of a call's result, or a caller: on that of a copy which
        the call wrote.
        """
        written = getattr(result.inputs[0].attr("target"), "writes", False)
        return written or result in self.groups.demands or result in self.relied
