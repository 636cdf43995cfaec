"""Lowers functions that cut a tensor into pieces along a dimension."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import pairwise

from framefuse.ir.builder import ONE
from framefuse.ir.graph import Node
from framefuse.ir.numbers import Expr, expr
from framefuse.ir.values import Value
from framefuse.lower.context import Lowering
from framefuse.lower.rules import Unsupported, rule


def in_bounds(lo: Lowering, start: Value, size: Expr) -> Expr:
    """An index made non-negative; the relations keep it inside."""
    place = expr(start)
    if lo.size(place) < 0:
        if place.constant is None:
            lo.require("<", place, expr(0), "a negative index")
        place = place + size
    lo.require("<=", expr(0), place, "an index")
    return place


@rule("narrow", "narrow_copy")
def narrow(lo: Lowering, input: Node, dim: Value, start: Value, length: Value) -> Node:
    if not isinstance(start, (int, Expr)) or not isinstance(length, (int, Expr)):
        raise Unsupported("a tensor as start")
    axis = lo.axis(dim, len(input.shape))
    place = in_bounds(lo, start, input.shape[axis])
    lo.require("<=", place + length, input.shape[axis], "narrow")
    return lo.narrow(input, axis, place, expr(length))


@rule("select", "select_copy")
def select(lo: Lowering, input: Node, dim: Value, index: Value) -> Node:
    if not isinstance(index, (int, Expr)):
        raise Unsupported("a tensor as index")
    axis = lo.axis(dim, len(input.shape))
    place = in_bounds(lo, index, input.shape[axis])
    lo.require("<", place, input.shape[axis], "an index")
    return lo.reshape(lo.narrow(input, axis, place, ONE), input.shape[:axis] + input.shape[axis + 1 :])


@rule("split", "Tensor.split", "split_with_sizes", "unsafe_split")
def split(lo: Lowering, tensor: Node, split_size_or_sections: Value, dim: Value = 0) -> tuple[Node, ...]:
    axis = lo.axis(dim, len(tensor.shape))
    size = tensor.shape[axis]
    if isinstance(split_size_or_sections, (tuple, list)):
        return _cut(lo, tensor, axis, lo.shape_of(split_size_or_sections), size)
    piece = expr(split_size_or_sections)
    count = -(-lo.size(size) // lo.size(piece)) if lo.size(piece) else 1
    return _pieces(lo, tensor, axis, piece, max(count, 1))


@rule("chunk", "unsafe_chunk")
def chunk(lo: Lowering, input: Node, chunks: Value, dim: Value = 0) -> tuple[Node, ...]:
    chunks = lo.fixed(chunks, "a count of pieces")
    axis = lo.axis(dim, len(input.shape))
    size = input.shape[axis]
    if lo.size(size) == 0:
        raise Unsupported("nothing to cut")
    piece = size // chunks
    if lo.size(size) % chunks == 0:
        lo.require("==", piece * chunks, size, "chunks of one size")
    else:
        piece = (size + (chunks - 1)) // chunks
    return _pieces(lo, input, axis, piece, -(-lo.size(size) // lo.size(piece)))


def _pieces(lo: Lowering, node: Node, axis: int, piece: Expr, count: int) -> tuple[Node, ...]:
    """``count`` pieces, all of one size but the last, which has what is left."""
    size = node.shape[axis]
    last = size - piece * (count - 1)
    if size.constant is None or piece.constant is None:
        lo.require("<=", last, piece, "the number of pieces")
        if not (last.constant or last is piece):
            lo.require("<", expr(0), last, "the number of pieces")
    return _cut(lo, node, axis, (*([piece] * (count - 1)), last), size)


def _cut(lo: Lowering, node: Node, axis: int, lengths: Sequence[Expr], size: Expr) -> tuple[Node, ...]:
    parts, start = [], expr(0)
    for length in lengths:
        parts.append(lo.narrow(node, axis, start, length))
        start = start + length
    lo.require("==", start, size, "pieces that cover the dimension")
    return tuple(parts)


@rule("unbind", "__iter__")
def unbind(lo: Lowering, input: Node, dim: Value = 0) -> tuple[Node, ...]:
    axis = lo.axis(dim, len(input.shape))
    size = input.shape[axis]
    count = lo.size(size)
    lo.require("==", size, expr(count), "the number of rows taken apart")
    rest = input.shape[:axis] + input.shape[axis + 1 :]
    return tuple(lo.reshape(lo.narrow(input, axis, place, ONE), rest) for place in range(count))


@rule("tensor_split")
def tensor_split(
    lo: Lowering, input: Node, indices_or_sections: Value = None, dim: Value = 0, *, indices: Value = None,
    sections: Value = None,
) -> tuple[Node, ...]:  # fmt: skip
    given = next(each for each in (indices_or_sections, indices, sections) if each is not None)
    axis = lo.axis(dim, len(input.shape))
    size = input.shape[axis]
    if isinstance(given, (tuple, list)):
        return _at(lo, input, axis, given, size)
    if isinstance(given, Node):
        raise Unsupported("a tensor of places")
    count = lo.fixed(given, "a count of pieces")
    longer = lo.size(size) % count
    lo.require("==", size % count, expr(longer), "the pieces that have one more")
    piece = (size - longer) // count
    return _cut(lo, input, axis, [piece + 1] * longer + [piece] * (count - longer), size)


def _at(lo: Lowering, node: Node, axis: int, places: Sequence[Value], size: Expr) -> tuple[Node, ...]:
    """The pieces between places that come one after the other."""
    bounds = [expr(0), *map(expr, places), size]
    for before, behind in pairwise(bounds):
        if lo.size(before) > lo.size(behind):
            raise Unsupported("places from the end, or behind it")
        if before.constant is None or behind.constant is None:
            lo.require("<=", before, behind, "places one after the other")
    return _cut(lo, node, axis, [behind - before for before, behind in pairwise(bounds)], size)


def _apart(dim: int) -> Callable[..., tuple[Node, ...]]:
    def lowered(lo: Lowering, input: Node, *given: Value, **named: Value) -> tuple[Node, ...]:
        places = next(iter(named.values())) if named else given[0] if len(given) == 1 else given
        axis = min(dim, len(input.shape) - 1)
        if isinstance(places, int):  # eager raises where they are not of one size
            lo.require("==", input.shape[axis] % places, expr(0), "pieces of one size")
        return tensor_split(lo, input, places, axis)

    return lowered


for _dim, _name in enumerate(("vsplit", "hsplit", "dsplit")):
    rule(_name)(_apart(_dim))
