"""Tells which nodes of a graph were made in a checkpoint of the program, whose values gradients compute again."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from framefuse.ir.graph import Node
from framefuse.ir.trace import Trace


def regions(trace: Trace, by_call: Iterable[Sequence[Node]], live: Iterable[Node]) -> dict[Node, int]:
    """The number of its checkpoint for each of the nodes that are alive and were made in one; ``by_call`` are the
    nodes that the lowering of each call of the trace made. A value that two checkpoints compute is of the first.
    """
    if not any(call.region for call in trace.calls):
        return {}
    region: dict[Node, int] = {}
    for call, nodes in zip(trace.calls, by_call, strict=True):
        if call.region:
            region.update(dict.fromkeys(nodes, call.region))
    return {node: region[node] for node in live if node in region}
