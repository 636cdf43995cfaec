"""Turns what a kernel needs into cells: one graph value at one index expression over the kernel's axes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from framefuse.fuse.addressing.indexing import MOVES, Index, Split, operand_index, reshaped_index
from framefuse.fuse.addressing.layout import estimate
from framefuse.fuse.addressing.one_source import is_of_one_value, one_source
from framefuse.fuse.addressing.ranges import ZERO, address, dense_axes, divide, never_negative, row_major
from framefuse.fuse.grouping.shared_reads import shares
from framefuse.ir import costs
from framefuse.ir.graph import Node
from framefuse.ir.numbers import Expr, Symbol, expr
from framefuse.ir.ops import ELEMENTWISE, TABLE

Mask = tuple[Expr, ...]  # the point exists where every expression is at least 0


# Cells and groups are the working state of one pass: a cell is there before it is known what it becomes, as others
# demand it, and is filled while its group grows, in this file. A frozen one would be made anew with all that refer to
# it.
@dataclass(slots=True, eq=False)
class Cell:
    """``node`` at ``index`` where ``mask`` holds; ``kind`` says how the kernel gets it.

    ``load`` from the memory of ``node``; ``op`` from ``kids``; ``reduce`` over the axes ``inner`` from its one kid;
    ``scan`` along them; an empty kind is not decided yet. ``tests`` are the conditions under which each kid of a pad or
    cat, or the data of a take or gather, exists. ``position`` is the symbol of the index that a take, gather or
    scatter_add reads; ``inner_index`` the index along the dimensions that a reduction removes, or along that which a
    scatter_add replaces by its position: its cell is what it adds to, its kids are the position and what it adds.
    """

    node: Node
    index: Index
    mask: Mask
    kind: str = ""
    kids: tuple[Cell, ...] = ()
    tests: tuple[Mask, ...] = ()
    inner: tuple[Symbol, ...] = ()
    inner_index: Index = ()
    position: Symbol | None = None


@dataclass(slots=True, eq=False)
class Group:
    """What becomes one item of the schedule: a kernel with its cells, or a single product or library call (``node``).

    ``axes`` are all axes with their extents, ``domain`` those of the first root. ``rows`` is None until a reduction is
    in the group; then the axes on which reductions' results depend. ``roots`` are the values that the group leaves in
    memory; one that ``adds`` has a scatter_add as its only root, and runs over what is added. The kernel is one of
    ``tiles`` on some devices, where to compute a position is cheap beside another load.
    """

    number: int
    demands: dict[Node, dict[Group, list[Cell]]]
    hints: dict[Symbol, int]
    node: Node | None = None
    axes: dict[Symbol, Expr] = field(default_factory=dict)
    domain: tuple[Symbol, ...] = ()
    rows: frozenset[Symbol] | None = None
    roots: dict[Node, Cell] = field(default_factory=dict)
    cells: dict[tuple[Node, Index, Mask], Cell] = field(default_factory=dict)
    reduces: list[Cell] = field(default_factory=list)
    scans: list[Cell] = field(default_factory=list)
    backwards: bool = False
    counter: int = 0
    adds: bool = False
    tiles: bool = False

    @property
    def device(self) -> str:
        """Where the kernel runs: all of its nodes are of one device."""
        return next(iter(self.roots)).device

    def fresh(self, extent: Expr) -> Symbol:
        """A new axis."""
        axis = Symbol(f"@a{self.counter}")
        self.counter += 1
        self.axes[axis] = extent
        return axis

    def open(self, node: Node) -> Cell:
        """The first root: one axis for each of its dimensions."""
        index = tuple(ZERO if size.constant == 1 else self.fresh(size).expr for size in node.shape)
        self.domain = tuple(self.axes)
        return self.cell(node, index, ())

    def open_sum(self, node: Node) -> Cell:
        """The only root, a scatter_add: one axis for each dimension of what it adds."""
        places = tuple(ZERO if size.constant == 1 else self.fresh(size).expr for size in node.inputs[2].shape)
        self.domain, self.adds = tuple(self.axes), True
        axis, position = node.attr("axis"), Symbol(f"@t{self.counter}")
        self.counter += 1
        cell = self.cell(node, (*places[:axis], position.expr, *places[axis + 1 :]), ())
        cell.position, cell.inner_index = position, places[axis : axis + 1]
        return cell

    def cell(self, node: Node, index: Index, mask: Mask) -> Cell:
        """The cell of ``node`` itself at this index."""
        key = (node, index, mask)
        cell = self.cells.get(key)
        if cell is None:
            cell = self.cells[key] = Cell(node, index, mask)
            self.demands.setdefault(node, {}).setdefault(self, []).append(cell)
        return cell

    def demand(self, node: Node, index: Index, mask: Mask) -> Cell:
        """The cell behind moving views of ``node``; raises :class:`Split`."""
        while node.op in MOVES:
            index = operand_index(node, index, self.axes, self.hints)
            node = node.inputs[0]
        return self.cell(node, index, mask)

    def load(self, cell: Cell) -> None:
        """Decides that the kernel reads ``cell`` from the memory of its node."""
        cell.kind = "load"

    def expand(self, cell: Cell) -> None:
        """Decides that the kernel computes ``cell``: demands its operands."""
        cell.kind = "op"
        while True:
            try:
                cell.kids = self._kids(cell)
                return
            except Split as split:
                self.split(split)

    def expand_reduce(self, cell: Cell, inner: Index, axes: tuple[Symbol, ...]) -> None:
        """Decides that the kernel reduces: ``inner`` is the operand's index along the reduced dimensions."""
        cell.kind = "reduce"
        cell.inner = axes
        self.reduces.append(cell)
        self.rows = frozenset(symbol for position in cell.index for symbol in position.symbols if symbol in self.axes)
        source = cell.node.inputs[0]
        reduced = reduced_axes(cell.node)
        cell.inner_index = inner
        while True:
            try:
                held = dict(zip(reduced, cell.inner_index, strict=True))
                kept = iter(cell.index)
                index = tuple(held[axis] if axis in held else next(kept) for axis in range(len(source.shape)))
                cell.kids = (self.demand(source, index, ()),)
                return
            except Split as split:
                self.split(split)

    def expand_scan(self, cell: Cell) -> None:
        """Decides that the kernel scans, where :meth:`may_scan` says so."""
        found = scanned_axes(self, cell)
        assert found is not None
        cell.kind, (cell.inner, self.backwards) = "scan", found
        self.scans.append(cell)
        while True:
            try:
                cell.kids = (self.demand(cell.node.inputs[0], cell.index, ()),)
                return
            except Split as split:
                self.split(split)

    def _kids(self, cell: Cell) -> tuple[Cell, ...]:
        node, index, mask = cell.node, cell.index, cell.mask
        if node.op in MOVES:
            return (self.demand(node.inputs[0], operand_index(node, index, self.axes, self.hints), mask),)
        if TABLE[node.op].kind in ELEMENTWISE:
            return tuple(self.demand(operand, index, mask) for operand in node.inputs)
        if node.op == "pad":
            shifted = tuple(p - before for p, before in zip(index, node.attr("before"), strict=True))
            tests = self._inside(shifted, node.inputs[0].shape)
            cell.tests = (tests,)
            return (self.demand(node.inputs[0], shifted, join(mask, tests)),)
        if node.op == "cat":
            if self._is_unrolled(cell):
                return self._counted_pieces(cell, *divide(cell.index[node.attr("axis")], _length(node)))
            found = one_source(node, index, self.axes, self.hints) if self.tiles else None
            return self._pieces(cell) if found is None else (self.demand(*found, mask),)
        if node.op in ("take", "gather"):
            return self._indirect(cell)
        if node.op == "scatter_add":
            return self._added(cell)
        return ()

    def _pieces(self, cell: Cell) -> tuple[Cell, ...]:
        """Each piece where its own end was not passed and the end of the piece before was."""
        equal = self._equal_pieces(cell) if self.tiles else None
        if equal is not None:
            return equal
        axis, start = cell.node.attr("axis"), ZERO
        kids, ends = [], []
        last = len(cell.node.inputs) - 1
        for number, operand in enumerate(cell.node.inputs):
            moved = cell.index[axis] - start
            begin = () if number == 0 or never_negative(moved, self.axes) else (moved,)
            left = operand.shape[axis] - 1 - moved
            end = () if number == last or never_negative(left, self.axes) else (left,)
            index = (*cell.index[:axis], moved, *cell.index[axis + 1 :])
            kids.append(self.demand(operand, index, join(cell.mask, (*begin, *end))))
            ends.append(end)
            start = start + operand.shape[axis]
        cell.tests = tuple(ends[:-1])
        return tuple(kids)

    def _equal_pieces(self, cell: Cell) -> tuple[Cell, ...] | None:
        """All pieces of one size at the place in a piece, under no mask of their own: what several of them read or
        compute is then one cell. Raises Split where that place is not an axis.
        """
        axis, inputs, size = cell.node.attr("axis"), cell.node.inputs, _length(cell.node)
        if size.constant == 0 or not shares(inputs):
            return None
        count = expr(len(inputs))
        number, place = reshaped_index(cell.index[axis : axis + 1], (count * size,), (count, size), self.axes, True)
        others = (each for at, each in enumerate(cell.index) if at != axis)
        if any(not number.symbols.isdisjoint(each.symbols) for each in (place, *others)):
            return None
        return self._counted_pieces(cell, number, place)

    def _counted_pieces(self, cell: Cell, number: Expr, place: Expr) -> tuple[Cell, ...]:
        """All pieces at one place, of which a number says which is meant."""
        axis, inputs = cell.node.attr("axis"), cell.node.inputs
        index = (*cell.index[:axis], place, *cell.index[axis + 1 :])
        ends = [() if never_negative(expr(k) - number, self.axes) else (expr(k) - number,) for k in range(len(inputs))]
        cell.tests = tuple(ends[:-1])
        return tuple(self.demand(operand, index, cell.mask) for operand in inputs)

    def _is_unrolled(self, cell: Cell) -> bool:
        """Whether the pieces are a few of one size, counted by an axis of the kernel, which has no rows: it computes
        all of them at each point of the other axes (``nest/gpu/unrolled.py``). Raises Split where that is no axis yet.
        """
        size, count = _length(cell.node), expr(len(cell.node.inputs))
        if not self.tiles or self.rows is not None or self.scans or self.adds or cell.mask or size.constant == 0:
            return False
        if not is_of_pieces(count) or (len(set(cell.node.inputs)) > 1 and is_of_one_value(cell.node)):
            return False
        position = cell.index[cell.node.attr("axis")]
        whole = next((axis for axis in position.symbols & set(self.domain) if axis.expr is position), None)
        if whole is not None and size.constant != 1 and self.axes[whole] is count * size:
            raise Split(whole, size)
        number, place = divide(position, size)
        axis = next((axis for axis in number.symbols & set(self.domain) if axis.expr is number), None)
        if axis is None or self.axes[axis] is not count:
            return False
        others = (p for at, p in enumerate(cell.index) if at != cell.node.attr("axis"))
        if any(axis in each.symbols for each in (place, *others)):
            return False
        return never_negative(place, self.axes) and never_negative(size - 1 - place, self.axes)

    def _indirect(self, cell: Cell) -> tuple[Cell, ...]:
        data, positions = cell.node.inputs
        axis = cell.node.attr("axis")
        if cell.position is None:
            cell.position = Symbol(f"@t{self.counter}")
            self.counter += 1
        t = cell.position.expr
        if cell.node.op == "take":
            last = axis + len(positions.shape)
            where = self.demand(positions, cell.index[axis:last], cell.mask)
            index = (*cell.index[:axis], t, *cell.index[last:])
        else:
            where = self.demand(positions, cell.index, cell.mask)
            index = (*cell.index[:axis], t, *cell.index[axis + 1 :])
        size = data.shape[axis]
        # A position is moved into range before it is used, which needs a range that is not empty.
        sure = cell.node.op == "take" and cell.node.attr("wrap") is None
        tests = () if size.constant or sure else (t, size - 1 - t)
        cell.tests = (tests,)
        return (where, self.demand(data, index, join(cell.mask, tests)))

    def _added(self, cell: Cell) -> tuple[Cell, ...]:
        _, positions, source = cell.node.inputs
        axis, size = cell.node.attr("axis"), cell.node.shape[cell.node.attr("axis")]
        assert cell.position is not None
        t = cell.position.expr
        cell.tests = (() if size.constant else (t, size - 1 - t),)
        index = (*cell.index[:axis], *cell.inner_index, *cell.index[axis + 1 :])
        return self.demand(positions, index, ()), self.demand(source, index, ())

    def _inside(self, index: Index, sizes: Sequence[Expr]) -> Mask:
        tests = [test for position, size in zip(index, sizes, strict=True) for test in (position, size - 1 - position)]
        return tuple(test for test in tests if not never_negative(test, self.axes))

    def split(self, split: Split) -> None:
        """Replaces an axis by two everywhere."""
        extent = self.axes[split.axis]
        whole = extent // split.inner
        outer, inner = Symbol(f"@a{self.counter}"), Symbol(f"@a{self.counter + 1}")
        self.counter += 2
        pair = {split.axis: (outer, inner)}
        self.axes = {
            axis: size
            for old, old_size in self.axes.items()
            for axis, size in (((outer, whole), (inner, split.inner)) if old is split.axis else ((old, old_size),))
        }
        self.domain = tuple(axis for old in self.domain for axis in pair.get(old, (old,)))
        if self.rows is not None:
            self.rows = frozenset(axis for old in self.rows for axis in pair.get(old, (old,)))
        values = {split.axis: outer.expr * split.inner + inner.expr}
        renewed: dict[tuple[Node, Index, Mask], Cell] = {}
        for cell in self.cells.values():
            cell.index = tuple(position.substitute(values) for position in cell.index)
            cell.mask = tuple(test.substitute(values) for test in cell.mask)
            cell.tests = tuple(tuple(test.substitute(values) for test in tests) for tests in cell.tests)
            cell.inner = tuple(axis for old in cell.inner for axis in pair.get(old, (old,)))
            cell.inner_index = tuple(position.substitute(values) for position in cell.inner_index)
            renewed[(cell.node, cell.index, cell.mask)] = cell
        self.cells = renewed

    def begin_rows(self, cell: Cell) -> None:
        """A reduction joins whose result ``cell`` reads: rows are the axes of its index."""
        self.rows = self.covered(cell)

    def covered(self, cell: Cell) -> frozenset[Symbol] | None:
        """The axes over which the index of ``cell`` takes each element of its node exactly once, else None."""
        return self.covered_by(cell.node, cell.index, cell.mask)

    def covered_by(self, node: Node, index: Index, mask: Mask) -> frozenset[Symbol] | None:
        """The same of an index of ``node`` where ``mask`` holds."""
        if mask:
            return None
        count = ZERO + 1
        for size in node.shape:
            count = count * size
        order = dense_axes(address(index, row_major(node.shape)), count, self.axes)
        return None if order is None else frozenset(order)

    def size_hint(self, axes: Sequence[Symbol] | frozenset[Symbol]) -> int:
        """The number of iteration points over ``axes`` for the recorded sizes."""
        total = 1
        for axis in axes:
            total *= estimate(self.axes[axis], self.hints)
        return total


def is_of_pieces(extent: Expr) -> bool:
    """Whether an axis has as few points as pieces that one kernel computes for each point of its others."""
    return extent.constant is not None and 1 < extent.constant <= costs.GPU_UNROLLED


def _length(cat: Node) -> Expr:
    """The length of each piece; zero where they differ."""
    size, *others = (operand.shape[cat.attr("axis")] for operand in cat.inputs)
    return size if all(other is size for other in others) else ZERO


def scanned_axes(group: Group, cell: Cell) -> tuple[tuple[Symbol, ...], bool] | None:
    """The axes along which the kernel would scan, in the order of positions, and whether from their ends on; None where
    its loops are not those.
    """
    node, axis, turned = cell.node, cell.node.attr("axis"), list(cell.index)
    turned[axis] = node.shape[axis] - 1 - cell.index[axis]
    for index, backwards in ((cell.index, False), (tuple(turned), True)):
        if group.covered_by(node, index, cell.mask) == frozenset(group.domain):
            axes = dense_axes(index[axis], node.shape[axis], group.axes)
            if axes is not None:
                return tuple(reversed(axes)), backwards
    return None


def reduced_axes(node: Node) -> tuple[int, ...]:
    """The dimensions that a reduction removes, ascending."""
    rank = len(node.inputs[0].shape)
    return tuple(sorted({axis % rank for axis in node.attr("axes")})) if rank else ()


def join(mask: Mask, tests: Mask) -> Mask:
    """Both conditions."""
    return (*mask, *(test for test in tests if test not in mask)) if tests else mask
