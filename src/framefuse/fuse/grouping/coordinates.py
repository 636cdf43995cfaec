"""Turns the position at which a kernel needs a value into what finding it costs: a division for each digit."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from framefuse.fuse.addressing.indexing import MOVES, Index, operand_index
from framefuse.fuse.addressing.layout import estimate
from framefuse.fuse.addressing.ranges import address, divisions, row_major
from framefuse.fuse.addressing.strided import Strides
from framefuse.fuse.grouping.cells import Cell, Group
from framefuse.fuse.grouping.work import points
from framefuse.ir import costs
from framefuse.ir.graph import Node
from framefuse.ir.numbers import Atom, Expr, Symbol
from framefuse.ir.ops import ELEMENTWISE, TABLE


def divided(group: Group, cell: Cell, strides_of: Callable[[Node], Strides]) -> float:
    """Nanoseconds of the divisions that computing ``cell`` takes and reading it from memory does not: those of a
    reshape that no axes of the kernel follow, where a value needs its coordinates and memory only their sum.
    """
    taken = divisions((*cell.index, *cell.mask))
    taken -= divisions((address(cell.index, row_major(cell.node.shape)), *cell.mask))
    if taken and needs_coordinates(cell.node, strides_of):
        loops = loops_of(group, taken)
        return costs.DIVISION * len(taken) * group.size_hint(loops) if loops else 0.0
    return _divided_views(group, cell, strides_of)


def loops_of(group: Group, positions: Iterable[Expr | Atom]) -> list[Symbol]:
    """The loops of a kernel from the outermost down to the last in which one of the positions varies."""
    symbols = {symbol for position in positions for symbol in position.symbols}
    needed = [number for number, axis in enumerate(group.axes, 1) if axis in symbols]
    return [*group.axes][: needed[-1]] if needed else []


def loops_in_memory(group: Group, cell: Cell, strides_of: Callable[[Node], Strides]) -> list[Symbol]:
    """The loops of :func:`loops_of` where they follow the memory of the first root, as those of a kernel without rows
    do on a CPU.
    """
    root = next(iter(group.roots.values()))
    place = address(root.index, strides_of(root.node))
    known = {axis: place.coefficient(axis) for axis in group.domain}
    steps = {axis: estimate(step, group.hints) for axis, step in known.items() if step is not None}
    needed = {symbol for position in cell.index for symbol in position.symbols}
    if not steps.keys() >= needed:
        return loops_of(group, cell.index)
    least = min((steps[axis] for axis in needed), default=None)
    return [] if least is None else [axis for axis in group.domain if steps.get(axis, 0) >= least]


def _divided_views(group: Group, cell: Cell, strides_of: Callable[[Node], Strides]) -> float:
    """The same of a small value that is computed from views whose operands are found by divisions: what there is of
    each group of channels, for each channel, in loops whose inner one is over channels.
    """
    views = [operand for operand in cell.node.inputs if operand.op in MOVES]
    if not views or TABLE[cell.node.op].kind not in ELEMENTWISE or group.rows is not None:
        return 0.0
    if points(cell.node, group.hints) * costs.RARE > group.size_hint(group.domain):
        return 0.0
    taken = set().union(*(divisions(_base_index(group, view, cell.index)) for view in views)) - divisions(cell.index)
    root = next(iter(group.roots.values()))
    place = address(root.index, strides_of(root.node))
    steps = {axis: place.coefficient(axis) for axis in group.domain}
    known = {axis: estimate(step, group.hints) for axis, step in steps.items() if step is not None}
    least = min((known.get(symbol, 0) for atom in taken for symbol in atom.symbols if symbol in steps), default=0)
    visits = group.size_hint([axis for axis in group.domain if known.get(axis, 0) >= least])
    return costs.DIVISION * len(taken) * visits


def _base_index(group: Group, node: Node, index: Index) -> Index:
    """Where a view finds its element in what is no view, if axes stay as they are."""
    while node.op in MOVES:
        index = operand_index(node, index, group.axes, group.hints, may_split=False)
        node = node.inputs[0]
    return index


def needs_coordinates(node: Node, strides_of: Callable[[Node], Strides]) -> bool:
    """Whether the value is computed from more than what lies in row-major order as it does itself."""
    stack, seen = [node], {node}
    while stack and len(seen) < costs.SOURCES:
        node = stack.pop()
        if node.op in ("input", "result"):
            if strides_of(node) != row_major(node.shape):
                return True
        elif TABLE[node.op].kind in ELEMENTWISE:
            if any(source.shape != node.shape for source in node.inputs):
                return True
            stack += [source for source in node.inputs if source not in seen]
            seen.update(node.inputs)
        elif node.op == "reshape":
            stack += [source for source in node.inputs if source not in seen]
            seen.update(node.inputs)
        elif node.op in MOVES or node.op in ("pad", "cat", "take", "gather"):
            return True
    return False
