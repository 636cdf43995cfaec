"""Says whether values of one shape are computed from the same memory, so that a kernel may as well compute all."""

from __future__ import annotations

from collections.abc import Sequence

from framefuse.fuse.addressing.indexing import MOVES
from framefuse.ir import costs
from framefuse.ir.graph import Node
from framefuse.ir.ops import ELEMENTWISE, TABLE


def shares(nodes: Sequence[Node]) -> bool:
    """Whether all of them are computed, and each reads most of what they read together."""
    computed = [_behind(node) for node in nodes]
    if any(TABLE[node.op].kind not in ELEMENTWISE for node in computed):
        return False
    read = [_read(node) for node in computed]
    return len(frozenset().union(*read)) * len(nodes) <= costs.GPU_SHARED * sum(map(len, read))


def _behind(node: Node) -> Node:
    """What a view shows."""
    while node.op in MOVES:
        node = node.inputs[0]
    return node


def _read(node: Node) -> frozenset[Node]:
    """What a value is computed from element by element: loads, views and reductions."""
    waiting, seen, found = [node], {node}, set()
    while waiting:
        for operand in waiting.pop().inputs:
            if operand in seen:
                continue
            seen.add(operand)
            if TABLE[operand.op].kind in ELEMENTWISE:
                waiting.append(operand)
            elif _behind(operand).op not in ("full", "iota"):
                found.add(operand)
    return frozenset(found)
