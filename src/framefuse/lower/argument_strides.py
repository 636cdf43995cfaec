"""Gives the strides of an argument as expressions over its sizes, as far as its memory has no gaps."""

from __future__ import annotations

from framefuse.ir import costs
from framefuse.ir.builder import Shape
from framefuse.ir.facts import TensorSpec
from framefuse.ir.numbers import expr
from framefuse.ir.strides import dense_strides, joined
from framefuse.ir.trace import TensorMeta
from framefuse.lower.context import Lowering

WHY = "how an argument lies in memory"


def argument_strides(lo: Lowering, spec: TensorSpec, meta: TensorMeta, shape: Shape) -> Shape:
    """The strides of an argument. What has gaps has run-time strides; those without a gap between are required to be
    so at later calls, too, and so is a short step from one element to the next.
    """
    if spec.order is not None:
        return dense_strides(shape, spec.order)
    assert spec.strides is not None, "a spec without an order has strides"
    strides = list(map(expr, spec.strides))
    steps = [axis for axis, size in enumerate(meta.sizes) if size > 1 and meta.strides[axis]]
    least = min((step for step in meta.strides if step), default=1)  # also of an axis of one element: a part of a row
    for axis in steps:
        step = meta.strides[axis]
        if step == least and 1 < step <= costs.ARGUMENT_NEAR:
            lo.require("==", strides[axis], expr(step), WHY)
            strides[axis] = expr(step)
    for wide, narrow in joined(meta.sizes, meta.strides):
        step_over = shape[narrow] * strides[narrow]
        lo.require("==", strides[wide], step_over, WHY)
        strides[wide] = step_over
    return tuple(strides)
