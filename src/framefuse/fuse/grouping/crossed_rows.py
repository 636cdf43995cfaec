"""Says which reductions leave a kernel that would walk across the memory of what it reads to write along its own."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from framefuse.fuse.addressing.indexing import MOVES, Index, operand_index
from framefuse.fuse.addressing.ranges import address
from framefuse.fuse.addressing.strided import Strides
from framefuse.fuse.grouping.cells import Cell, Group, reduced_axes
from framefuse.fuse.grouping.reductions import shared_index
from framefuse.fuse.grouping.work import points
from framefuse.ir import costs
from framefuse.ir.graph import Node
from framefuse.ir.numbers import Expr, Symbol
from framefuse.ir.ops import ELEMENTWISE, TABLE

StridesOf = Callable[[Node], Strides]


def walks_across(group: Group, cell: Cell, strides_of: StridesOf) -> bool:
    """Whether a kernel of a CPU that has the reduction ``cell`` in it, and reads its operand again for what it writes
    along memory, would gather that: apart, the reduction walks as its operand lies, and the kernel turns tiles.
    """
    source = cell.node.inputs[0]
    found = shared_index(group, cell)
    if found is None or group.size_hint(group.domain) < costs.CPU_CROSSED_ELEMENTS:
        return False
    inner, axes = found
    left, kept = iter(cell.index), iter(inner)
    reduced = reduced_axes(cell.node)
    index = tuple(next(kept) if axis in reduced else next(left) for axis in range(len(source.shape)))
    written = [address(root.index, strides_of(root.node)) for root in group.roots.values()]
    written = [where for where in written if where.symbols & set(axes)]
    reads = list(_reads(group, source, index, strides_of)) if written else []
    return any(_crosses(group, set(axes), read, where) for read in reads for where in written)


def _crosses(group: Group, inner: set[Symbol], read: Expr, written: Expr) -> bool:
    """Whether neighbours in one memory lie apart in the other, both ways, and no rows of a kernel are turned."""
    along, lane = (_along(group, where) for where in (read, written))
    if along is None or lane is None or _is_near(read, lane) or _is_near(written, along):
        return False
    sides = [group.size_hint((axis,)) for axis in (along, lane)]
    if min(sides) < costs.CPU_CROSSED_SIDE:
        return False
    turned = inner == {lane} and costs.CPU_SHORT_CAT <= sides[1] <= costs.CPU_TURNED_LONG
    return not turned


def _along(group: Group, where: Expr) -> Symbol | None:
    """The axis whose neighbours are neighbours at an address."""
    for axis in where.symbols & group.axes.keys():
        slope = where.coefficient(axis)
        if slope is not None and slope.constant == 1 and group.size_hint((axis,)) > 1:
            return axis
    return None


def _is_near(where: Expr, axis: Symbol) -> bool:
    slope = where.coefficient(axis)
    return slope is None or slope.constant in (0, 1)


def _reads(group: Group, source: Node, index: Index, strides_of: StridesOf) -> Iterator[Expr]:
    """The addresses at which as many elements are read as the operand of a reduction has, where arithmetic and views
    alone make it.
    """
    waiting, seen = [(source, index)], {source}
    while waiting and len(seen) < costs.SOURCES:
        node, where = waiting.pop()
        if node.op in ("input", "result"):
            yield address(where, strides_of(node))
        elif node.op in MOVES and points(node.inputs[0], group.hints) >= points(node, group.hints):
            below = operand_index(node, where, group.axes, group.hints, may_split=False)
            waiting.append((node.inputs[0], below))
            seen.add(node.inputs[0])
        elif TABLE[node.op].kind in ELEMENTWISE:
            fresh = [each for each in node.inputs if each not in seen and each.shape == node.shape]
            waiting += [(each, where) for each in fresh]
            seen.update(fresh)
