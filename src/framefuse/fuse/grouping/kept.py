"""Says why grouping keeps a value in memory between kernels, for who reads a report."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from framefuse.fuse.grouping.cells import Cell, Group
from framefuse.ir import costs
from framefuse.ir.graph import Node
from framefuse.ir.ops import TABLE

RESULT = "it is a result, or kept for the backward pass"
READ = "a product or a call of the library reads it from memory"
PLACED = "it is a piece of a cat that others continue, which all have one memory"
JOINED = f"it is joined from more than {costs.CAT_PIECES} pieces, which are copied into place"
ADDED = "elements are added at positions, which takes memory"
SCANNED = "its running values have an order that the reader's loops do not"
TABLED = "its short rows are the same for many, and are read from memory as one"
DIVIDED = "to find where the reader needs each element costs more than memory"


def why_kept(node: Node, users: Mapping[Group, Sequence[Cell]]) -> str:
    """Why a value that only kernels read is not computed inside of them."""
    if any(len(group.cells) > costs.KERNEL_CELLS for group in users):
        return "the kernel that reads it is as large as kernels may be"
    if TABLE[node.op].kind == "reduce":
        if len(users) > 1:
            return f"{len(users)} kernels read what it reduces to"
        return "the loops of its reader do not go along what it reduces, or do so more than once"
    places = sum(map(len, users.values()))
    if places == 1:
        return "its reader would compute it again at each point of other loops"
    return f"it is read at {places} places, and to compute it again there costs more than memory"
