"""Gives cats that grow one memory on a GPU: each of their pieces is written once, where the longest of them has it."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from framefuse.fuse.addressing.indexing import MOVES
from framefuse.fuse.addressing.ranges import ZERO
from framefuse.fuse.setting import Setting
from framefuse.ir import costs
from framefuse.ir.graph import Graph, Node
from framefuse.ir.numbers import Expr
from framefuse.ir.ops import ELEMENTWISE, REDUCE, TABLE
from framefuse.ir.rename import rebuilt


def with_grown_cats(graph: Graph, setting: Setting) -> Graph:
    """The graph in which a cat of the pieces of an earlier one and of further ones behind them, or in front of them, is
    the longer part of the memory of the longest: the features of a DenseNet, which each layer joins anew. A piece is
    written there, if a kernel computes it, and else copied.
    """
    cats = [node for node in graph.nodes if node.op == "cat" and len(node.inputs) > 1 and _tiles(node, setting)]
    if len(cats) < costs.GROWN_CATS:
        return graph
    seen, read = _seen_elsewhere(graph), _read(graph)
    chains = _chains([cat for cat in cats if cat in read and cat not in seen])
    chains = [chain for chain in chains if len(chain.cats) >= costs.GROWN_CATS]
    if not chains:
        return graph
    place = {cat: (chain, number) for chain in chains for number, cat in enumerate(chain.cats)}
    grown: dict[Node, Node] = {}
    placed: set[Node] = set()

    def change(node: Node, inputs: tuple[Node, ...]) -> Sequence[Node]:
        if node not in place:
            return (node if inputs == node.inputs else node.over(inputs),)
        chain, number = place[node]
        there = chain.cats[number - 1].inputs if number else ()
        count = len(node.inputs) - len(there)
        new = slice(0, count) if chain.front else slice(len(there), None)
        pieces, copies = [], []
        for piece, own in zip(node.inputs[new], inputs[new], strict=True):
            if TABLE[piece.op].kind not in ELEMENTWISE or piece in seen or piece in placed:
                own = Node("expand", (own,), (), own.dtype, own.shape, None, node.line, node.device)
                copies.append(own)
            placed.add(piece)
            pieces.append(own)
        before = grown[chain.cats[number - 1]].inputs if number else ()
        both = (*pieces, *before) if chain.front else (*before, *pieces)
        grown[node] = Node("grown", both, node.attrs, node.dtype, node.shape, None, node.line, node.device)
        return *copies, grown[node]

    return rebuilt(graph, change)


@dataclass(slots=True)
class _Chain:
    """Cats each of which has the pieces of the one before, with further ones behind them or in ``front`` of them."""

    cats: list[Node]
    front: bool = False


def _chains(cats: Sequence[Node]) -> list[_Chain]:
    """The chains of these cats, in order; a cat is continued once."""
    last: dict[tuple[int, tuple[Node, ...]], _Chain] = {}
    chains: list[_Chain] = []
    for cat in cats:
        axis, pieces = cat.attr("axis"), cat.inputs
        if any(piece.dtype is not cat.dtype for piece in pieces):
            continue
        for front, count in itertools.product((False, True), range(len(pieces) - 1, 1, -1)):
            known = axis, pieces[len(pieces) - count :] if front else pieces[:count]
            if known in last and (len(last[known].cats) == 1 or last[known].front == front):
                chain = last.pop(known)
                chain.front = front
                break
        else:
            chains.append(chain := _Chain([]))
        chain.cats.append(cat)
        last.setdefault((axis, pieces), chain)
    return chains


def _tiles(node: Node, setting: Setting) -> bool:
    target = setting.targets(node.device)
    return target is not None and target.tiles


def _wanted(graph: Graph) -> set[Node]:
    return {*(output.node for output in graph.outputs), *(write.node for write in graph.writes), *graph.kept}


def _seen_elsewhere(graph: Graph) -> set[Node]:
    """The values that the program gets, or that others than kernels read, or whose sizes a call gives."""
    late, seen = {symbol for symbol, _, _ in graph.bound}, _wanted(graph)
    for node in reversed(graph.nodes):
        if node.op in MOVES:
            seen.update(node.inputs if node in seen else ())
        elif TABLE[node.op].kind not in (*ELEMENTWISE, REDUCE) and node.op not in ("pad", "cat"):
            seen.update(node.inputs)
        elif node.op == "cat" and node in seen:
            seen.update(node.inputs)  # the library may join them
        if any(size.symbols & late for size in node.shape):
            seen.add(node)
    return seen


def _read(graph: Graph) -> set[Node]:
    """The values that something needs which the program gets."""
    read = _wanted(graph)
    for node in reversed(graph.nodes):
        if node in read:
            read.update(node.inputs)
    return read


@dataclass(frozen=True, slots=True)
class Place:
    """Where a value lies that has a part of the memory of ``whole``: from ``start`` on along ``axis``."""

    whole: Node
    axis: int
    start: Expr


def places(graph: Graph) -> Mapping[Node, Place]:
    """The place of each grown cat and of each of its pieces."""
    found: dict[Node, Place] = {}
    for node in reversed(graph.nodes):  # the longest first
        if node.op != "grown":
            continue
        axis, first = node.attr("axis"), node.inputs[0]
        if first in found:
            found[node] = Place(found[first].whole, axis, found[first].start)
            continue
        found[node] = Place(node, axis, ZERO)
        start = ZERO
        for piece in node.inputs:
            found[piece] = Place(node, axis, start)
            start = start + piece.shape[axis]
    return found
