"""Counts the bytes that a compiled graph keeps from forward to backward, at the recorded sizes."""

from __future__ import annotations

from collections.abc import Hashable, Mapping

from framefuse.ir.derivative import Halves
from framefuse.ir.graph import Node
from framefuse.ir.numbers import Symbol
from framefuse.ir.taped_calls import Taped

DEFAULT = 64  # a size that only the run tells


def saved_bytes(halves: Halves, hints: Mapping[Symbol, int]) -> int:
    """The bytes of all tensors that are kept and are no inputs. What torch itself keeps for a library call that it
    differentiates is not known, and not among them.
    """
    entries = [entry for piece in halves.pieces for entry in (*piece.saved, *piece.roots)]
    memory = {_memory(entry.place, entry.node): entry.node for entry in entries if entry.node.op != "input"}
    return sum(_bytes(node, hints) for node in memory.values())


def _memory(place: int, node: Node) -> Hashable:
    """What distinguishes the memory of saved tensors: a tape has each result with its graph and without."""
    if node.op == "result" and isinstance(node.inputs[0].attr("target"), Taped) and node.attr("path")[0] in (0, 1):
        return node.inputs[0], node.attr("path")[1]
    return place


def _bytes(node: Node, hints: Mapping[Symbol, int]) -> int:
    count = node.dtype.size
    for size in node.shape:
        count *= size.evaluate({symbol: hints.get(symbol, DEFAULT) for symbol in size.symbols})
    return count
