"""Turns the position at which a kernel needs a value into what finding it costs: a division for each digit."""

from __future__ import annotations

from collections.abc import Callable

from framefuse.fuse import costs
from framefuse.fuse.addressing.indexing import MOVES
from framefuse.fuse.addressing.ranges import address, divisions, row_major
from framefuse.fuse.addressing.strided import Strides
from framefuse.fuse.grouping.cells import Cell, Group
from framefuse.ir.graph import Node
from framefuse.ir.numbers import Symbol
from framefuse.ir.ops import TABLE


def divided(group: Group, cell: Cell, strides_of: Callable[[Node], Strides]) -> float:
    """Nanoseconds of the divisions that computing ``cell`` takes and reading it from memory does not: those of a
    reshape that no axes of the kernel follow, where a value needs its coordinates and memory only their sum.
    """
    taken = divisions((*cell.index, *cell.mask))
    taken -= divisions((address(cell.index, row_major(cell.node.shape)), *cell.mask))
    if not taken or not needs_coordinates(cell.node, strides_of):
        return 0.0
    symbols = {symbol for atom in taken for symbol in atom.symbols}
    outer: list[Symbol] = []
    needed = 0
    for axis in group.axes:
        outer.append(axis)
        if axis in symbols:
            needed = len(outer)
    return costs.DIVISION * len(taken) * group.size_hint(outer[:needed]) if needed else 0.0


def needs_coordinates(node: Node, strides_of: Callable[[Node], Strides]) -> bool:
    """Whether the value is computed from more than what lies in row-major order as it does itself."""
    stack, seen = [node], {node}
    while stack and len(seen) < costs.SOURCES:
        node = stack.pop()
        if node.op in ("input", "result"):
            if strides_of(node) != row_major(node.shape):
                return True
        elif TABLE[node.op].kind == "pointwise":
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
