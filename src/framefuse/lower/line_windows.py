"""Windows along one dimension, which kernels read where they lie: as joined blocks of it, or each for itself."""

from __future__ import annotations

import math

from framefuse.ir import costs
from framefuse.ir.graph import Node
from framefuse.ir.numbers import Expr, expr
from framefuse.ir.target import type_of
from framefuse.ir.values import Value
from framefuse.lower.context import Lowering
from framefuse.lower.rules import Shapes, Unsupported, rule

VIEWED = {"cpu": False}  # devices on which windows that overlap are views for kernels, few blocks or many


@rule("Tensor.unfold")
def windows(lo: Lowering, input: Node, dimension: Value, size: Value, step: Value) -> Node | Shapes:
    if not input.shape:
        raise Unsupported("windows of a number")
    size, step = (_known(lo, number) for number in (size, step))
    axis = lo.axis(dimension, len(input.shape))
    lo.require("<=", expr(size), input.shape[axis], "a window")
    places = (input.shape[axis] - size) // step + 1
    # Windows one element apart have equal strides within and between them: the sizes decide how copies of them lie.
    if step == 1:
        left, right = (expr(size), places + 1) if lo.size(places) >= size else (places, expr(size))
        lo.require("<", left, right, "the order of windows")
        if lo.size(places) == 1:  # which has no order
            lo.require("==", places, expr(1), "the order of windows")
    # How a copy of what the library gave lies, its sizes of 1 may decide; another view of it is none.
    if input.op == "result" or not size or not step:
        return Shapes(((*input.shape[:axis], places, *input.shape[axis + 1 :], expr(size)),))
    return in_place(lo, input, axis, places, size, step)


def in_place(lo: Lowering, input: Node, axis: int, places: Expr, size: int, step: int) -> Node:
    """Windows of ``size`` elements, each of which begins ``step`` elements behind the last one, along a last axis."""
    joins, last = size // math.gcd(size, step) > 1, axis == len(input.shape) - 1
    viewed = VIEWED.get(type_of(input.device), True)
    if viewed and joins and not lo.differentiable:
        return lo.windows(input, axis, places, size, step)
    if _are_few_blocks(input, size, step) and (last or not joins or viewed):
        return _of_blocks(lo, input, axis, places, size, step)
    return lo.windows(input, axis, places, size, step)


def _are_few_blocks(input: Node, size: int, step: int) -> bool:
    """Whether a kernel reads one block of windows after the other, as pieces that are joined."""
    block = math.gcd(size, step)
    if VIEWED.get(type_of(input.device), True):  # of which gradients are asked for
        return size // block <= costs.CAT_PIECES
    long = block >= costs.WINDOW_LONG_BLOCK
    return size // block <= (costs.WINDOW_LONG_BLOCKS if long else costs.WINDOW_BLOCKS if block == step else 0)


def _of_blocks(lo: Lowering, input: Node, axis: int, places: Expr, size: int, step: int) -> Node:
    """Windows as blocks of which they have whole numbers, laid side by side."""
    block = math.gcd(size, step)
    pieces, step = size // block, step // block
    before, after, count = input.shape[:axis], input.shape[axis + 1 :], (places - 1) * step + pieces
    line = lo.narrow(input, axis, 0, count * block)
    blocks = lo.reshape(line, (*before, count, expr(block), *after))
    shape, rank = (*before, places, *blocks.shape[axis + 1 :]), len(blocks.shape)
    apart = [step if place == axis else 1 for place in range(rank)]
    begins = [[piece if place == axis else 0 for place in range(rank)] for piece in range(pieces)]
    joined = lo.cat([lo.slice(blocks, begin, apart, shape) for begin in begins], axis + 1)
    return lo.permute(joined, [place for place in range(rank) if place != axis + 1] + [axis + 1])


def _known(lo: Lowering, number: Value) -> int:
    """A number that may come with the call, which then is what it was."""
    if isinstance(number, int):
        return number
    value = lo.size(number)
    lo.require("==", number, expr(value), "a window")
    return value
