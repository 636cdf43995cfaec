"""Says which reductions are those of a softmax across memory, whose two a GPU's kernel does in one sweep of turns."""

from __future__ import annotations

from collections.abc import Callable

from framefuse.fuse.addressing.ranges import address
from framefuse.fuse.addressing.strided import Strides
from framefuse.fuse.grouping.cells import Cell, Group, reduced_axes
from framefuse.fuse.grouping.memory_runs import run_of
from framefuse.ir import costs
from framefuse.ir.graph import Node
from framefuse.ir.ops import ELEMENTWISE, TABLE, VIEW


def is_of_softmax_columns(group: Group, cell: Cell, strides_of: Callable[[Node], Strides]) -> bool:
    """Whether ``cell`` is the sum of exponentials of distances from the largest elements, or these, of which the
    group has the sum, for so many columns side by side that each program takes some as a whole.
    """
    rows = group.covered(cell)
    if rows is None or group.size_hint(rows) < costs.GPU_SOFTMAX_COLUMNS:
        return False
    if cell.node.op == "sum":
        if largest_of_exponentials(cell.node) is None:
            return False
    elif all(largest_of_exponentials(reduce.node) is not cell.node for reduce in group.reduces):
        return False
    sizes = {axis: group.size_hint((axis,)) for axis in rows}
    where = [address(root.index, strides_of(root.node)) for root in group.roots.values()]
    return all(run_of(each, sizes, group.hints) >= costs.GPU_LANES for each in where)


def largest_of_exponentials(node: Node) -> Node | None:
    """The largest elements from which a sum of exponentials has its distances, as it is written for a softmax."""
    if node.op != "sum" or node.inputs[0].op != "exp" or node.inputs[0].inputs[0].op != "sub":
        return None
    value, shift = node.inputs[0].inputs[0].inputs
    waiting, seen = [shift], set[Node]()
    while waiting and len(seen) < costs.SOURCES:
        current = waiting.pop()
        seen.add(current)
        if current.op == "amax":
            same = current.inputs[0] is value and reduced_axes(current) == reduced_axes(node)
            return current if same else None
        if TABLE[current.op].kind in (VIEW, *ELEMENTWISE):
            waiting += [each for each in current.inputs if each not in seen]
    return None
