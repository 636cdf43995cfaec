"""Gradients of views: the gradient of what moves elements moves them back, and adds what met."""

from __future__ import annotations

from collections.abc import Sequence

from framefuse.autodiff.library import call
from framefuse.autodiff.registry import Gradient, Onto, vjp
from framefuse.ir.backward_calls import windows_added
from framefuse.ir.builder import ONE, ZERO, Builder, Shape, compute_dtype
from framefuse.ir.dtypes import INT64
from framefuse.ir.graph import Node
from framefuse.ir.numbers import Expr, expr


def summed(builder: Builder, g: Node, axes: Sequence[int]) -> Node:
    """The sum over ``axes``, accumulated in the dtype of arithmetic and rounded once."""
    if not axes:
        return g
    return builder.cast(builder.reduce("sum", builder.cast(g, compute_dtype(g.dtype)), axes), g.dtype)


def stretched(builder: Builder, source: Shape, shape: Shape) -> list[int]:
    """The axes of ``shape`` along which an operand of shape ``source`` was repeated."""
    extra = len(shape) - len(source)
    axes = list(range(extra))
    for axis, size in enumerate(source, extra):
        if size is not shape[axis] and builder.size(size) == 1 and (
            size.constant == 1 or builder.size(shape[axis]) != 1
        ):
            axes.append(axis)
    return axes


@vjp("expand")
def expand(builder: Builder, node: Node, g: Node, need: Sequence[bool]) -> Sequence[Gradient]:
    source = node.inputs[0]
    return [builder.reshape(summed(builder, g, stretched(builder, source.shape, node.shape)), source.shape)]


@vjp("reshape")
def reshape(builder: Builder, node: Node, g: Node, need: Sequence[bool]) -> Sequence[Gradient]:
    return [builder.reshape(g, node.inputs[0].shape)]


@vjp("permute")
def permute(builder: Builder, node: Node, g: Node, need: Sequence[bool]) -> Sequence[Gradient]:
    axes = node.attr("axes")
    return [builder.permute(g, [axes.index(axis) for axis in range(len(axes))])]


@vjp("diagonal")
def diagonal(builder: Builder, node: Node, g: Node, need: Sequence[bool]) -> Sequence[Gradient]:
    """Zeros beside the diagonal of the matrices that it was cut of, so that no second pass puts zeros around these."""
    source, starts = node.inputs[0], (ZERO,) * len(node.inputs[0].shape)
    if source.op == "slice" and all(step == 1 for step in source.attr("steps")):
        source, starts = source.inputs[0], source.attr("starts")
    shape = source.shape
    after = [size - start - mine for size, start, mine in zip(shape, starts, g.shape, strict=False)]
    column = builder.pad(g, starts[:-1], after, 0.0)
    hit = builder.pointwise("eq", *_places(builder, shape, starts[-1] - starts[-2], g.device))
    spread = builder.expand(builder.reshape(column, (*shape[:-1], ONE)), shape)
    return [Onto(source, builder.pointwise("where", hit, spread, builder.full(0, g.dtype, shape, g.device)))]


@vjp("windows")
def windows(builder: Builder, node: Node, g: Node, need: Sequence[bool]) -> Sequence[Gradient]:
    """Windows lie in one another: each element's sum over those that it lies in, by torch where some are skipped."""
    source, axis, size = node.inputs[0], node.attr("axis"), node.shape[-1].constant
    assert size is not None
    if node.attr("step") > 1:
        return [call(builder, windows_added, (g, source.shape, axis, size, node.attr("step")), like=source)]
    around = [expr(size - 1) if place == axis else ZERO for place in range(len(g.shape))]
    wide = builder.pad(builder.cast(g, compute_dtype(g.dtype)), around, around, 0.0)
    above = builder.windows(wide, axis, source.shape[axis], size, 1)  # the last window that has it comes first
    turned = [*([ZERO] * len(g.shape)), expr(size - 1)], [*([1] * len(g.shape)), -1]
    met = builder.diagonal(builder.slice(above, *turned, above.shape))
    return [builder.cast(builder.reduce("sum", met, (len(g.shape) - 1,)), g.dtype)]


def _places(builder: Builder, shape: Shape, offset: Expr, device: str) -> tuple[Node, Node]:
    """Of each element of matrices: the column in which the diagonal meets its row, and its own column."""
    rows, columns = shape[-2:]
    down = builder.reshape(builder.iota(offset, 1, INT64, rows, device), (rows, ONE))
    return builder.expand(down, shape), builder.expand(builder.iota(0, 1, INT64, columns, device), shape)


@vjp("slice")
def slice_(builder: Builder, node: Node, g: Node, need: Sequence[bool]) -> Sequence[Gradient]:
    starts, steps, source = list(node.attr("starts")), list(node.attr("steps")), node.inputs[0]
    back = [axis for axis, step in enumerate(steps) if step < 0]
    if back:
        last = [size - 1 if axis in back else ZERO for axis, size in enumerate(g.shape)]
        g = builder.slice(g, last, [-1 if axis in back else 1 for axis in range(len(steps))], g.shape)
        for axis in back:
            starts[axis], steps[axis] = starts[axis] + (g.shape[axis] - 1) * steps[axis], -steps[axis]
    for axis, step in enumerate(steps):
        if step > 1:
            g = _spread(builder, g, axis, step, source.shape[axis] - starts[axis])
    after = [size - start - mine for size, start, mine in zip(source.shape, starts, g.shape, strict=True)]
    return [builder.pad(g, starts, after, 0.0)]


def _spread(builder: Builder, g: Node, axis: int, step: int, room: Expr) -> Node:
    """``step - 1`` zeros behind each element of ``axis``, cut off at ``room`` elements."""
    shape = g.shape
    apart = builder.reshape(g, (*shape[: axis + 1], ONE, *shape[axis + 1 :]))
    before = [ZERO] * (len(shape) + 1)
    after = [expr(step - 1) if place == axis + 1 else ZERO for place in range(len(before))]
    padded = builder.pad(apart, before, after, 0.0)
    long = shape[axis] * step
    flat = builder.reshape(padded, (*shape[:axis], long, *shape[axis + 1 :]))
    if builder.size(long) <= builder.size(room):
        builder.require("<=", long, room, "the gradient of a slice")
        return flat
    builder.require("<=", room, long, "the gradient of a slice")
    return builder.narrow(flat, axis, 0, room)


@vjp("pad")
def pad(builder: Builder, node: Node, g: Node, need: Sequence[bool]) -> Sequence[Gradient]:
    inner = node.inputs[0].shape
    return [builder.slice(g, node.attr("before"), [1] * len(inner), inner)]


@vjp("cat")
def cat(builder: Builder, node: Node, g: Node, need: Sequence[bool]) -> Sequence[Gradient]:
    axis, start = node.attr("axis"), ZERO
    parts: list[Gradient] = []
    for operand, wanted in zip(node.inputs, need, strict=True):
        parts.append(builder.narrow(g, axis, start, operand.shape[axis]) if wanted else None)
        start = start + operand.shape[axis]
    return parts
