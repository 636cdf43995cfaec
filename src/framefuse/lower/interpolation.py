"""Lowers interpolation: elements repeat or are left out, and between those around it a GPU computes each."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

from framefuse.ir import costs
from framefuse.ir.builder import ONE, Shape
from framefuse.ir.dtypes import BFLOAT16, FLOAT16, FLOAT32, INT32, INT64
from framefuse.ir.graph import Node
from framefuse.ir.numbers import Expr, expr
from framefuse.ir.target import type_of
from framefuse.ir.values import Value
from framefuse.lower.context import Lowering
from framefuse.lower.element import Element, maximum, where
from framefuse.lower.pooling import averaged, positive
from framefuse.lower.rules import Lowered, Shapes, Unsupported, rule

# Scales by which kernels repeat elements, whose reciprocals float32 rounds up if at all: eager's places are exact then
# (of sides up to the last number). On an H100 twice both sides of 4 x 64 x 512 x 512 took 0.51 ms for the library's
# 0.80; on a CPU, a thread, in the library's speed: 2 x 16 x 32 x 32 5, 4 x 32 x 56 x 56 1.1, channels-last 2.2 to 2.6.
SCALES, MOST, LONGEST = (1, 2, 3, 4, 5, 6, 7, 8), 64, 1 << 18
# Every how many elements one is taken: by scales that are powers of two their reciprocals are exact. On a CPU half of
# both sides takes 1.4 to 25 times the library's speed.
STEPS = (1, 2, 4, 8)
BETWEEN = {"cpu": False}  # devices on which kernels weigh what lies beside a point


Ratio = tuple[int, int]  # how often each element of an axis repeats, and every how many elements one is taken


def _ratios(lo: Lowering, old: Shape, new: Shape) -> list[Ratio] | None:
    """How sizes that are multiples of each other change; None where some are not, or all stay as they are."""
    found: list[Ratio] = []
    for mine, size in zip(old, new, strict=True):
        before, after = max(1, lo.size(mine)), max(1, lo.size(size))
        up, down = after // before, before // after
        if (before * up != after or up not in SCALES) and (after * down != before or down not in SCALES):
            return None
        found.append((up, 1) if up else (1, down))
    if not _is_small(found):
        return None
    for mine, size, (up, down) in zip(old, new, found, strict=True):
        lo.require("==", size * down, mine * up, "sizes that are multiples")
    return found


def _given_ratios(scales: Sequence[Value], recomputed: bool) -> list[Ratio] | None:
    """The same of scales; ``recomputed`` ones are of the sizes, which scales below one may leave a rest of."""
    found: list[Ratio] = []
    for scale in map(float, scales):
        if scale in SCALES:
            found.append((int(scale), 1))
        elif 1.0 / scale in STEPS and not recomputed:
            found.append((1, int(1.0 / scale)))
        else:
            return None
    return found if _is_small(found) else None


def _is_small(ratios: Sequence[Ratio]) -> bool:
    repeats = math.prod(up for up, _ in ratios)
    return repeats <= MOST and any(ratio != (1, 1) for ratio in ratios)


def _nearest(lo: Lowering, input: Node, ratios: Sequence[Ratio]) -> Node:
    """Elements of the last dimensions that repeat, or of which some are taken."""
    lead = len(input.shape) - len(ratios)
    for size, (up, down) in zip(input.shape[lead:], ratios, strict=True):
        lo.require("<=", expr(down), size, "a picture with elements")
        if up & (up - 1) or down & (down - 1):
            lo.require("<=", size, expr(LONGEST), "places that float32 has")
    if any(down > 1 for _, down in ratios):
        steps = [1] * lead + [down for _, down in ratios]
        sizes = [size // step for size, step in zip(input.shape, steps, strict=True)]
        input = lo.slice(input, [0] * len(steps), steps, sizes)
    scales = tuple(up for up, _ in ratios)
    return _repeated(lo, input, scales) if any(up > 1 for up in scales) else input


def _repeated(lo: Lowering, input: Node, scales: tuple[int, ...]) -> Node:
    """Each element of the last dimensions so many times."""
    lead = len(input.shape) - len(scales)
    apart, long, flat = (list(input.shape[:lead]) for _ in range(3))
    for size, scale in zip(input.shape[lead:], scales, strict=True):
        apart += [size, ONE]
        long += [size, expr(scale)]
        flat.append(size * scale)
    for size in input.shape[1:]:
        lo.require("!=", size, expr(0), "a picture with elements")
    repeated = lo.reshape(lo.expand(lo.reshape(input, tuple(apart)), tuple(long)), tuple(flat))
    return lo.derived(repeated, "repeated", (input,), *scales)


def _weighed(
    lo: Lowering, input: Node, sizes: Shape, scales: tuple[float, ...] | None, corners: bool, cubic: bool
) -> Node:
    """Between the elements beside each point, as eager weighs them: along the last axis first."""
    lead = len(input.shape) - len(sizes)
    positive(lo, sizes)
    beside = {}
    for place, (mine, size) in enumerate(zip(input.shape[lead:], sizes, strict=True)):
        lo.require("!=", mine, expr(0), "a picture with elements")
        lo.require("<=", mine, expr(1 << 30), "places that narrow integers have")
        source = _source(lo, input, mine, size, scales[place] if scales is not None else None, corners)
        beside[lead + place] = (_four if cubic else _two)(lo, input, mine, source, corners)

    def between(node: Node, axes: Sequence[int]) -> Node:
        if not axes:
            return lo.widen(node)
        positions, weigh, share = beside[axes[0]]
        parts = [between(lo.take(node, at, axes[0], None), axes[1:]) for at in positions]
        return lo.compute(weigh, *parts, lo.expand(lo.along(share, axes[0], len(parts[0].shape)), parts[0].shape))

    return lo.cast(between(input, tuple(beside)), input.dtype)


def _is_resized(lo: Lowering, old: Shape, new: Shape) -> bool:
    """Whether sizes change: eager copies a picture that keeps them, with infinities, which weights of zero lose."""
    apart = [(mine, size) for mine, size in zip(old, new, strict=True) if lo.size(mine) != lo.size(size)]
    if apart:
        lo.require("!=", *apart[0], "a picture of another size")
    return bool(apart)


# Along one axis, for each point of the result: where what it is computed from lies, how, and by which share.
Beside = tuple[list[Node], Callable[..., Element], Node]


def _source(lo: Lowering, input: Node, mine: Expr, size: Expr, scale: float | None, corners: bool) -> Node:
    """Along one axis, where each point of the result lies in the input."""
    old, new = (lo.cast(lo.full(count, INT64, (), input.device), FLOAT32) for count in (mine, size))
    line = lo.cast(lo.iota(0, 1, INT64, size, input.device), FLOAT32)
    if corners:
        step = lo.compute(lambda a, b: where(b > 1.0, (a - 1.0) / (b - 1.0), 0.0), old, new)
        return lo.compute(lambda at, step: at * step, line, step)
    step = lo.compute(lambda a, b: a / b, old, new)
    if scale is not None:
        step = lo.full(1.0 / scale, FLOAT32, (), input.device)
    return lo.compute(lambda at, step: step * (at + 0.5) - 0.5, line, step)


def _two(lo: Lowering, input: Node, mine: Expr, place: Node, corners: bool) -> Beside:
    """The elements before and behind each point, and the share of the latter."""
    if not corners:
        place = lo.compute(lambda at: maximum(at, 0.0), place)
    first = lo.cast(place, INT32)
    last = lo.full(mine - 1, INT32, first.shape, input.device)
    first = lo.pointwise("minimum", first, last)
    second = lo.pointwise("minimum", lo.compute(lambda at: at + 1, first), last)
    share = lo.compute(lambda place, at: place - at, place, lo.cast(first, FLOAT32))
    return [lo.cast(at, INT64) for at in (first, second)], lambda a, b, share: (1.0 - share) * a + share * b, share


def _four(lo: Lowering, input: Node, mine: Expr, place: Node, corners: bool) -> Beside:
    """Two elements on either side of each point, at the border those that are there, and how far it is from the second
    to the third.
    """
    floor = lo.pointwise("floor", place)
    first, share = lo.cast(floor, INT32), lo.compute(lambda at, low: at - low, place, floor)
    zero, last = (lo.full(end, INT32, first.shape, input.device) for end in (0, mine - 1))
    moved = [lo.compute(lambda at, by=by: at + by, first) for by in (-1, 0, 1, 2)]
    beside = [lo.pointwise("minimum", lo.pointwise("maximum", at, zero), last) for at in moved]
    return [lo.cast(at, INT64) for at in beside], _cubic, share


def _cubic(a: Element, b: Element, c: Element, d: Element, share: Element) -> Element:
    """Keys' convolution of four neighbours."""

    def near(x: Element) -> Element:
        return (1.25 * x - 2.25) * x * x + 1.0

    def far(x: Element) -> Element:
        return ((-0.75 * x + 3.75) * x - 6.0) * x + 3.0

    rest = 1.0 - share
    return a * far(share + 1.0) + b * near(share) + c * near(rest) + d * far(rest + 1.0)


# What kernels weigh, by the rank of the operand.
WEIGHED = {("linear", 3), ("bilinear", 4), ("trilinear", 5), ("bicubic", 4)}


def _is_weighed(lo: Lowering, input: Node, mode: Value, antialias: Value) -> bool:
    """Whether kernels weigh what lies beside a point. The gradient, which adds at positions, is the library's."""
    here = BETWEEN.get(type_of(input.device), True)
    if not here or lo.differentiable or antialias or input.dtype not in (FLOAT32, FLOAT16, BFLOAT16):
        return False
    return (mode, len(input.shape)) in WEIGHED


def _area(lo: Lowering, input: Node, size: Value, scale_factor: Value) -> Lowered:
    """Means of the windows that fall on each point."""
    spatial = input.shape[2:]
    if size is not None:
        sizes = lo.shape_of(size if isinstance(size, (tuple, list)) else (size,) * len(spatial))
        return averaged(lo, input, sizes) if len(sizes) == len(spatial) else Shapes(((*input.shape[:2], *sizes),))
    given = scale_factor if isinstance(scale_factor, (tuple, list)) else (scale_factor,) * len(spatial)
    found = list[Expr]()
    for mine, scale in zip(spatial, map(float, given), strict=True):
        if not scale.is_integer() and 1.0 / scale not in STEPS:
            raise Unsupported("a fractional scale")
        found.append(mine * int(scale) if scale.is_integer() else mine // int(1.0 / scale))
    return averaged(lo, input, positive(lo, tuple(found)))


def _scaled(size: Expr, scale: float) -> Expr:
    """A size times a fraction that floats have exactly, as eager rounds it down."""
    above, below = scale.as_integer_ratio()
    if below > costs.FRACTIONS:
        raise Unsupported("a fractional scale")
    return size * above // below


@rule("F.interpolate", "F.upsample")
def interpolate(
    lo: Lowering, input: Node, size: Value = None, scale_factor: Value = None, mode: str = "nearest",
    align_corners: Value = None, recompute_scale_factor: Value = None, antialias: bool = False,
) -> Lowered:  # fmt: skip
    rank = len(input.shape) - 2
    if mode == "area" and rank in (1, 2, 3):
        return _area(lo, input, size, scale_factor)
    weighed, corners = _is_weighed(lo, input, mode, antialias), bool(align_corners)
    nearest = mode == "nearest" and input.dtype.is_float
    if size is not None:
        sizes = lo.shape_of(size if isinstance(size, (tuple, list)) else (size,) * rank)
        if weighed and _is_resized(lo, input.shape[2:], sizes):
            return _weighed(lo, input, sizes, None, corners, mode == "bicubic")
        ratios = _ratios(lo, input.shape[2:], sizes) if nearest else None
        return Shapes(((*input.shape[:2], *sizes),)) if ratios is None else _nearest(lo, input, ratios)
    given = scale_factor if isinstance(scale_factor, (tuple, list)) else (scale_factor,) * rank
    ratios = _given_ratios(given, bool(recompute_scale_factor)) if nearest else None
    if ratios is not None:
        return _nearest(lo, input, ratios)
    scales = tuple(map(float, given))
    sizes = tuple(_scaled(mine, scale) for mine, scale in zip(input.shape[2:], scales, strict=True))
    if weighed and _is_resized(lo, input.shape[2:], sizes):
        given_scales = None if recompute_scale_factor else scales
        return _weighed(lo, input, sizes, given_scales, corners, mode == "bicubic")
    return Shapes(((*input.shape[:2], *sizes),))
