"""Lowers depthwise convolutions of short windows along one dimension to sums of products, which kernels fuse."""

from __future__ import annotations

from framefuse.ir import costs
from framefuse.ir.builder import ONE, ZERO, Shape
from framefuse.ir.dtypes import BY_NAME
from framefuse.ir.graph import Node
from framefuse.ir.numbers import Expr
from framefuse.ir.values import Value
from framefuse.lower.context import Lowering

FLOATS = ("float32", "bfloat16", "float16")
How = tuple[int, int, Expr, Expr]  # the step of windows, the distance of their points, the zeros before and behind


def stencil(
    lo: Lowering, input: Node, weight: Node, bias: Value, how: How, groups: Value, length: Expr
) -> Node | None:
    """The convolution with a window of its own for each channel, of which ``length`` results come; None where it is the
    library's.
    """
    step, hole, before, behind = how
    points = weight.shape[-1].constant
    target = lo.targets(input.device)
    if target is None or not target.tiles or lo.exact or lo.differentiable:
        return None
    if points is None or points > costs.STENCIL_POINTS:
        return None
    if weight.shape[0].constant != groups or weight.shape[1].constant != 1:
        return None
    given = [input, weight, *([bias] if isinstance(bias, Node) else [])]
    if input.dtype.name not in FLOATS or any(node.dtype is not input.dtype for node in given):
        return None
    lo.same_size(input.shape[-2], weight.shape[0], "channels of a convolution")
    wide = BY_NAME[input.dtype.compute]
    rank, shape = len(input.shape), (*input.shape[:-1], length)
    edge: Shape = (ZERO,) * (rank - 1)
    source = lo.cast(lo.pad(input, (*edge, before), (*edge, behind), 0.0), wide)
    total = None
    for point in range(points):
        seen = lo.slice(source, (*edge, point * hole), (*[1] * (rank - 1), step), shape)
        own = lo.reshape(lo.narrow(weight, 2, point, ONE), (weight.shape[0], ONE))
        term = lo.compute(lambda a, b: a * b, seen, lo.cast(own, wide))
        total = term if total is None else lo.compute(lambda a, b: a + b, total, term)
    assert total is not None
    if isinstance(bias, Node):
        total = lo.compute(lambda a, b: a + b, total, lo.cast(lo.reshape(bias, (weight.shape[0], ONE)), wide))
    return lo.cast(total, input.dtype)
