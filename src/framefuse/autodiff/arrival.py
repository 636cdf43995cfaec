"""Orders the inputs of a piece, so that leaves get their gradients in the order in which eager gives them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeVar

Item = TypeVar("Item")


def pushed(leaves: Sequence[Item], others: Sequence[Item]) -> list[Item]:
    """The order in which a node names its inputs, so that torch's engine gives the ``leaves`` theirs in this order.

    All that a node leads to is ready at once. The engine keeps what is ready in a heap, by the time when it was made;
    leaves stand above ``others``, and among themselves they are equal, so that the form of the heap decides: that of
    ``std::priority_queue``, whose rest closes up from the right.
    """
    heap = [*range(len(leaves) + len(others))]
    order = [*leaves, *others]
    for leaf in leaves:
        order[heap[0]] = leaf
        _pop(heap, len(leaves))
    return order


def _pop(heap: list[int], leaves: int) -> None:
    """Takes the top off a heap, in which numbers from ``leaves`` on stand below the others."""
    last, hole = heap.pop(), 0
    while 2 * hole + 1 < len(heap):
        child = min(2 * hole + 2, len(heap) - 1)
        if heap[child] >= leaves > heap[2 * hole + 1]:
            child = 2 * hole + 1
        heap[hole], hole = heap[child], child
    while hole and last < leaves <= heap[(hole - 1) // 2]:
        heap[hole], hole = heap[(hole - 1) // 2], (hole - 1) // 2
    if heap:
        heap[hole] = last
