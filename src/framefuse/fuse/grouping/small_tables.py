"""Says which values are few short rows, the same for many others, that are read from memory rather than computed."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from framefuse.fuse.addressing.layout import estimate
from framefuse.fuse.grouping.work import points
from framefuse.ir import costs
from framefuse.ir.graph import Node
from framefuse.ir.numbers import Symbol
from framefuse.ir.ops import ELEMENTWISE, TABLE


def is_table(node: Node, visits: Iterable[int], hints: Mapping[Symbol, int]) -> bool:
    """Whether positions alone decide short rows, as those of ``torch.eye(3)``, that kernels repeat for many others:
    each evaluates a point so many times (``visits``).
    """
    if TABLE[node.op].kind not in ELEMENTWISE or not node.shape:
        return False
    size, last = points(node, hints), estimate(node.shape[-1], hints)
    if not 1 < last < min(size, costs.CPU_TABLE_ROW) or size > costs.CPU_TABLE:
        return False
    return all(count >= costs.RARE * size for count in visits)
