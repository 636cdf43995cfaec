"""Lowers copies of the windows over pictures, and sums of what such copies hold; on a CPU the library makes them."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass

from framefuse.ir import costs
from framefuse.ir.builder import ONE, Shape
from framefuse.ir.graph import Node
from framefuse.ir.numbers import Expr, expr
from framefuse.ir.target import type_of
from framefuse.ir.values import Value
from framefuse.lower.context import Lowering
from framefuse.lower.pooling import each, positive
from framefuse.lower.rules import Lowered, Shapes, rule


def _places(
    lo: Lowering, sizes: Shape, kernel: Value, dilation: Value, padding: Value, stride: Value
) -> tuple[Expr, ...]:
    """In how many places a window lies along each side of a picture."""
    columns = zip(sizes, *(each(value, 2) for value in (kernel, dilation, padding, stride)), strict=True)
    places = tuple((size + 2 * pad - hole * (span - 1) - 1) // step + 1 for size, span, hole, pad, step in columns)
    return positive(lo, places)


COPIED = {"cpu": False}  # devices on which kernels copy windows


@rule("F.unfold")
def unfold(
    lo: Lowering, input: Node, kernel_size: Value, dilation: Value = 1, padding: Value = 0, stride: Value = 1
) -> Lowered:
    lead, (channels, *sizes) = input.shape[:-3], input.shape[-3:]
    places = _places(lo, tuple(sizes), kernel_size, dilation, padding, stride)
    kernel = each(kernel_size, 2)
    shape = (*lead, channels * math.prod(kernel), lo.count(places))
    (high, wide), (hole, gap), around, steps = kernel, each(dilation, 2), each(padding, 2), each(stride, 2)
    here = COPIED.get(type_of(input.device), True) and max(kernel) <= costs.UNFOLDED_SIDE
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
) -> Lowered:
    sizes = lo.shape_of(output_size if isinstance(output_size, (tuple, list)) else (output_size,) * 2)
    kernel, holes, around, steps = (each(value, 2) for value in (kernel_size, dilation, padding, stride))
    count = math.prod(kernel)
    *lead, width, places = input.shape
    lo.require("==", width % count, expr(0), "the channels of a fold")
    counts = _places(lo, sizes, kernel_size, dilation, padding, stride)
    lo.require("==", places, lo.count(counts), "the places of a fold")
    shape = (*lead, width // count, *sizes)
    sides = [_Side(*side) for side in zip(sizes, kernel, holes, around, steps, counts, strict=True)]
    plain = all(side.hole == 1 or side.step == 1 for side in sides)
    few = math.prod(side.meetings for side in sides) <= costs.POOLED_ELEMENTS
    here = COPIED.get(type_of(input.device), True) and input.dtype.is_float
    if lo.differentiable or not here or not plain or not few:
        return Shapes((shape,))
    return lo.cast(_overlaid(lo, lo.widen(input), shape, sides), input.dtype)


@dataclass(frozen=True, slots=True)
class _Side:
    """How windows lie along one side of a picture. A point of the padded one is ``step * place + hole * at`` of each
    window that holds it, so that it lies ``at % step`` behind a multiple of the step: the points are runs of ``step``,
    in which windows meet that begin some runs before.
    """

    size: Expr
    kernel: int
    hole: int
    around: int
    step: int
    places: Expr

    @property
    def meetings(self) -> int:
        """How many windows have a point in common at most."""
        return -(-self.kernel // self.step)

    @property
    def runs(self) -> Expr:
        """Runs that reach to the end of the picture."""
        more = self.hole * (self.kernel - 1) + self.step
        return self.places - 1 + -(-more // self.step)


def _overlaid(lo: Lowering, input: Node, shape: Shape, sides: Sequence[_Side]) -> Node:
    """The sum of what lies at each point of a picture in the windows that hold it."""
    lead, rows, columns = shape[:-2], *sides
    split = [part for side in sides for part in (expr(side.kernel), side.places)]
    windows = lo.reshape(input, (*lead, *(split[at] for at in (0, 2, 1, 3))))
    rank, none = len(lead), (0,) * len(lead)
    full = [side.meetings * side.step for side in sides]
    after = [*none, *(whole - side.kernel for whole, side in zip(full, sides, strict=True)), 0, 0]
    windows = lo.pad(windows, (*none, 0, 0, 0, 0), after, 0.0)
    total: Node | None = None
    for high, wide in itertools.product(range(rows.meetings), range(columns.meetings)):
        starts = (*none, high * rows.step, wide * columns.step, 0, 0)
        taken = (*lead, *(expr(side.step) for side in sides), *split[1::2])
        part = lo.slice(windows, starts, [1] * (rank + 4), taken)
        part = lo.permute(part, (*range(rank), rank + 2, rank, rank + 3, rank + 1))
        moved = [at * side.hole for at, side in zip((high, wide), sides, strict=True)]
        before = (*none, moved[0], 0, moved[1], 0)
        behind = [side.runs - side.places - by for side, by in zip(sides, moved, strict=True)]
        part = lo.pad(part, before, (*none, behind[0], 0, behind[1], 0), 0.0)
        total = part if total is None else lo.pointwise("add", total, part)
    assert total is not None
    whole = lo.reshape(total, (*lead, *(side.runs * side.step for side in sides)))
    return lo.slice(whole, (*none, *(side.around for side in sides)), [1] * (rank + 2), shape)
