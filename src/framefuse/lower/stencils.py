"""Lowers depthwise convolutions of short windows to sums of products, which kernels fuse."""

from __future__ import annotations

import itertools
import math
from dataclasses import dataclass

import torch

from framefuse.ir import costs
from framefuse.ir.builder import ONE, ZERO, Shape
from framefuse.ir.dtypes import BY_NAME
from framefuse.ir.graph import Arg, Node, call_attrs
from framefuse.ir.numbers import expr
from framefuse.ir.strides import dense_strides
from framefuse.ir.values import Value
from framefuse.lower.context import Lowering, in_memory

FLOATS = ("float32", "bfloat16", "float16")


@dataclass(frozen=True, slots=True)
class Steps:
    """Along each dimension of the windows: the step from one to the next, the distance of their points, the zeros
    before and behind the input, and how many windows there are.
    """

    step: tuple[int, ...]
    hole: tuple[int, ...]
    before: Shape
    behind: Shape
    counts: Shape


def stencil(lo: Lowering, input: Node, weight: Node, bias: Value, how: Steps, groups: Value) -> Node | None:
    """The convolution with windows of their own for each channel; None where it is the library's."""
    rank, target = len(how.counts), lo.targets(input.device)
    if rank > len(costs.STENCIL_POINTS) or target is None or not target.tiles or lo.exact or lo.differentiable:
        return None
    if rank > 1 and groups == 1 and not in_memory(input):
        return None
    given = [input, weight, *([bias] if isinstance(bias, Node) else [])]
    if input.dtype.name not in FLOATS or any(node.dtype is not input.dtype for node in given):
        return None
    made, each, *points = map(lo.size, weight.shape)
    if math.prod(points) > costs.STENCIL_POINTS[rank - 1] or each != 1 or not isinstance(groups, int):
        return None
    if not 0 < groups <= made or made % groups:
        return None
    results = made * math.prod(map(lo.size, (*input.shape[: -1 - rank], *how.counts)))
    if rank > 1 and input.dtype.size == 2 and results > costs.STENCIL_NARROW:
        return None
    for size in weight.shape:
        lo.fixed(size, "windows of a convolution")
    lo.same_size(input.shape[-1 - rank], expr(groups), "channels of a convolution")
    wide = BY_NAME[input.dtype.compute]
    lead: Shape = (ZERO,) * (len(input.shape) - rank)
    around = lo.pad(input, (*lead, *how.before), (*lead, *how.behind), 0.0)
    source = lo.cast(_for_each(lo, around, rank, made // groups), wide)
    ones, single = [1] * len(lead), (expr(made), *[ONE] * rank)
    shape, total = (*source.shape[: len(lead)], *how.counts), None
    axes = (*range(2, rank + 2), 1, 0)
    if target.library and math.prod(points) > 1 and math.prod(map(lo.size, shape)) > costs.STENCIL_TURNED:
        turned = _turned(lo, weight, axes)
    else:
        turned = lo.permute(weight, axes)
    for place in itertools.product(*map(range, points)):
        starts = [at * hole for at, hole in zip(place, how.hole, strict=True)]
        seen = lo.slice(source, (*lead, *starts), (*ones, *how.step), shape)
        own = lo.slice(turned, (*place, ZERO, ZERO), [1] * (rank + 2), (*[ONE] * (rank + 1), expr(made)))
        term = lo.compute(lambda a, b: a * b, seen, lo.cast(lo.reshape(own, single), wide))
        total = term if total is None else lo.compute(lambda a, b: a + b, total, term)
    assert total is not None
    if isinstance(bias, Node):
        total = lo.compute(lambda a, b: a + b, total, lo.cast(lo.reshape(bias, single), wide))
    return lo.cast(total, input.dtype)


def _turned(lo: Lowering, weight: Node, axes: tuple[int, ...]) -> Node:
    """The windows, point by point with all channels of each side by side, in memory of their own."""
    shape = tuple(weight.shape[axis] for axis in axes)
    attrs = call_attrs(torch.permute_copy, (Arg(0), axes), (None,))
    call = lo.opaque("library", (weight,), attrs, weight.dtype, (), None, weight.device)
    strides = dense_strides(shape, range(len(shape)))
    return lo.opaque("result", (call,), (("path", ()),), weight.dtype, shape, strides, weight.device)


def _for_each(lo: Lowering, node: Node, rank: int, windows: int) -> Node:
    """Each channel as often as it has windows."""
    if windows == 1:
        return node
    place = len(node.shape) - rank
    lead, points = node.shape[:place], node.shape[place:]
    each = lo.expand(lo.reshape(node, (*lead, ONE, *points)), (*lead, expr(windows), *points))
    return lo.reshape(each, (*lead[:-1], lead[-1] * windows, *points))
