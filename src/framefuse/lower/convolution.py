"""Gives the result shapes of convolutions, which the library makes; a GPU copies windows itself."""

from __future__ import annotations

import math
from collections.abc import Callable

from framefuse.ir.builder import ONE, Shape
from framefuse.ir.graph import Node
from framefuse.ir.numbers import Expr, expr
from framefuse.ir.target import type_of
from framefuse.ir.values import Value
from framefuse.lower.context import Lowering
from framefuse.lower.pooling import each, positive
from framefuse.lower.rules import Lowered, Shapes, register, rule


def _convolution(rank: int) -> Callable[..., Shapes]:
    def lowered(
        lo: Lowering, input: Node, weight: Node, bias: Value = None, stride: Value = 1, padding: Value = 0,
        dilation: Value = 1,
        groups: Value = 1,
    ) -> Shapes:  # fmt: skip
        lead = input.shape[: len(input.shape) - rank - 1]
        steps, holes = each(stride, rank), each(dilation, rank)
        spans = tuple((size - 1) * hole + 1 for size, hole in zip(weight.shape[2:], holes, strict=True))
        sizes = input.shape[len(input.shape) - rank :]
        if padding == "same":
            result = sizes
        else:
            pads = (0,) * rank if padding == "valid" else each(padding, rank)
            result = tuple(
                (size + 2 * pad - span) // step + 1
                for size, pad, span, step in zip(sizes, pads, spans, steps, strict=True)
            )
        return Shapes(((*lead, weight.shape[0], *positive(lo, result)),))

    return lowered


def _transposed(rank: int) -> Callable[..., Shapes]:
    def lowered(
        lo: Lowering, input: Node, weight: Node, bias: Value = None, stride: Value = 1, padding: Value = 0,
        output_padding: Value = 0, groups: Value = 1, dilation: Value = 1,
    ) -> Shapes:  # fmt: skip
        lead, sizes = input.shape[: len(input.shape) - rank - 1], input.shape[len(input.shape) - rank :]
        numbers = (each(value, rank) for value in (stride, padding, output_padding, dilation))
        result = tuple(
            (size - 1) * step - 2 * pad + hole * (span - 1) + extra + 1
            for size, span, step, pad, extra, hole in zip(sizes, weight.shape[2:], *numbers, strict=True)
        )
        return Shapes(((*lead, weight.shape[1] * groups, *positive(lo, result)),))

    return lowered


for _rank in (1, 2, 3):
    register((f"conv{_rank}d",), "convolution", _convolution(_rank))
    register((f"conv_transpose{_rank}d",), "convolution", _transposed(_rank))


def _places(
    lo: Lowering, sizes: Shape, kernel: Value, dilation: Value, padding: Value, stride: Value
) -> tuple[Expr, ...]:
    """In how many places a window lies along each side of a picture."""
    columns = zip(sizes, *(each(value, 2) for value in (kernel, dilation, padding, stride)), strict=True)
    places = tuple((size + 2 * pad - hole * (span - 1) - 1) // step + 1 for size, span, hole, pad, step in columns)
    return positive(lo, places)


# Points of a window along each side up to which a kernel copies windows, and on which devices it does. A cat of more
# pieces is the library's, and so are steps along rows: 5 x 5 points of 16 x 32 x 160 x 160 by steps of 2 take it
# 0.32 ms on an H100, a kernel 0.39.
SIDE = 16
COPIED = {"cpu": False}


@rule("F.unfold")
def unfold(
    lo: Lowering, input: Node, kernel_size: Value, dilation: Value = 1, padding: Value = 0, stride: Value = 1
) -> Lowered:
    lead, (channels, *sizes) = input.shape[:-3], input.shape[-3:]
    places = _places(lo, tuple(sizes), kernel_size, dilation, padding, stride)
    kernel = each(kernel_size, 2)
    shape = (*lead, channels * math.prod(kernel), lo.count(places))
    (high, wide), (hole, gap), around, steps = kernel, each(dilation, 2), each(padding, 2), each(stride, 2)
    here = COPIED.get(type_of(input.device), True) and max(kernel) <= SIDE and steps[1] == 1
    if lo.differentiable or not here:
        return Shapes((shape,))
    borders = (*(0 for _ in range(len(input.shape) - 2)), *around)
    padded = lo.pad(input, borders, borders, 0)
    plain, rows = (0,) * (len(lead) + 1), []
    for row in range(high):
        columns = []
        for column in range(wide):
            starts = (*plain, row * hole, column * gap)
            part = lo.slice(padded, starts, (*(1 for _ in plain), *steps), (*lead, channels, *places))
            columns.append(lo.reshape(part, (*lead, channels, ONE, ONE, *places)))
        rows.append(lo.cat(columns, len(lead) + 2))
    return lo.reshape(lo.cat(rows, len(lead) + 1), shape)


@rule("F.fold")
def fold(
    lo: Lowering, input: Node, output_size: Value, kernel_size: Value, dilation: Value = 1, padding: Value = 0,
    stride: Value = 1
) -> Shapes:
    sizes = lo.shape_of(output_size if isinstance(output_size, (tuple, list)) else (output_size,) * 2)
    count = math.prod(each(kernel_size, 2))
    *lead, width, places = input.shape
    lo.require("==", width % count, expr(0), "the channels of a fold")
    blocks = lo.count(_places(lo, sizes, kernel_size, dilation, padding, stride))
    lo.require("==", places, blocks, "the places of a fold")
    return Shapes(((*lead, width // count, *sizes),))
