"""Lowers layer, group, batch and instance norms to moments and pointwise arithmetic."""

from __future__ import annotations

from framefuse.ir.builder import ONE
from framefuse.ir.dtypes import FLOAT32, DType
from framefuse.ir.graph import Node
from framefuse.ir.numbers import expr, product
from framefuse.ir.values import Value
from framefuse.lower import element as e
from framefuse.lower.context import Lowering
from framefuse.lower.element import Element
from framefuse.lower.reductions import mean_of, moments, power_norm
from framefuse.lower.rules import Lowered, Shapes, Unsupported, rule

EPSILON = {"float16": 2.0**-10, "bfloat16": 2.0**-7, "float32": 2.0**-23, "float64": 2.0**-52}


def _inner(node: Node) -> DType:
    """The dtype in which eager takes moments."""
    if not node.dtype.is_float:
        raise Unsupported("integers")
    return node.dtype if node.dtype.name == "float64" else FLOAT32


def _scaled(lo: Lowering, node: Node, weight: Node | None, bias: Node | None) -> Node:
    """``node * weight + bias`` in the node's dtype."""

    def shifted(a: Element, b: Element) -> Element:
        return (a + b).derived("shifted", a, b)

    for factor, formula in ((weight, lambda a, w: a * w), (bias, shifted)):
        if factor is not None:
            node = lo.compute(formula, node, lo.cast(factor, node.dtype))
    return node


def _asked(lo: Lowering, factor: Node | None) -> Node | None:
    """A scale or shift, whose gradient requires grad with it: eager's node that gives it takes it too."""
    return None if factor is None else lo.derived(factor, "unheard", (factor,))


def standardise(lo: Lowering, node: Node, axes: tuple[int, ...], eps: Value) -> Node:
    """``(node - mean) / sqrt(variance + eps)`` over ``axes``, in the node's dtype."""
    centre, squares = moments(lo, node, axes)
    total = lo.total(node.shape, axes)
    count = total if total.constant is None else total.constant
    scale = lo.compute(lambda s: e.rsqrt(s / count + eps), squares)
    result = lo.compute(lambda a, m, r: (a - m) * r, node, centre, scale)
    return lo.derived(result, "standardise", (node, scale), *axes)


def _trailing(lo: Lowering, input: Node, normalized_shape: Value) -> tuple[int, ...]:
    shape = lo.shape_of(normalized_shape)
    rank = len(input.shape)
    axes = tuple(range(rank - len(shape), rank))
    for axis, size in zip(axes, shape, strict=True):
        lo.require("==", input.shape[axis], size, "the normalised shape")
    return axes


@rule("layer_norm")
def layer_norm(
    lo: Lowering, input: Node, normalized_shape: Value, weight: Value = None, bias: Value = None, eps: Value = 1e-5,
    cudnn_enable: bool = True,
) -> Node:  # fmt: skip
    axes = _trailing(lo, input, normalized_shape)
    node = standardise(lo, lo.cast(input, _inner(input)), axes, eps)
    return lo.cast(_scaled(lo, node, _asked(lo, weight), _asked(lo, bias)), input.dtype)


@rule("rms_norm")
def rms_norm(lo: Lowering, input: Node, normalized_shape: Value, weight: Value = None, eps: Value = None) -> Node:
    axes = _trailing(lo, input, normalized_shape)
    node = lo.cast(input, _inner(input))
    small = EPSILON[input.dtype.name if input.dtype.name == "float64" else "float32"] if eps is None else eps
    squares = mean_of(lo, lo.compute(lambda a: a * a, node), axes, True)
    scale = lo.compute(lambda s: e.rsqrt(s + small), squares)  # of a row, before it is one of each element
    node = lo.compute(lambda a, r: a * r, node, scale)
    result = lo.cast(node, input.dtype)
    if weight is None:
        return result
    return lo.cast(_scaled(lo, node, weight, None), input.dtype)


@rule("group_norm")
def group_norm(
    lo: Lowering, input: Node, num_groups: Value, weight: Value = None, bias: Value = None, eps: Value = 1e-5,
    cudnn_enabled: bool = True,
) -> Node:  # fmt: skip
    batch, channels, *rest = input.shape
    groups = expr(num_groups)
    inner = channels // groups
    lo.require("!=", batch * inner * product(rest), ONE, "more than one value in a channel")
    lo.require("==", channels, groups * inner, "channels in groups of equal size")
    # Named as a product, so that the channel of a point is ``group * inner + rest`` and not divided at every point.
    shape = (batch, groups * inner, *rest)
    node = lo.expand(lo.cast(input, _inner(input)), shape)
    by_group = (batch, groups, inner, *rest)
    axes = tuple(range(2, len(by_group)))
    total = lo.total(by_group, axes)
    count = total if total.constant is None else total.constant

    def by_channel(group: Node) -> Node:
        """A value of each group for each of its channels, by which a point finds it without a division."""
        return lo.reshape(lo.expand(lo.reshape(group, (batch, groups, ONE)), (batch, groups, inner)), shape[:2])

    def wide(channel: Node) -> Node:
        return lo.reshape(channel, (*channel.shape, *[ONE] * len(rest)))

    parts = lo.reshape(node, by_group)
    mean = lo.compute(lambda s: s / count, by_channel(lo.reduce("sum", parts, axes)))
    centred = lo.compute(lambda a, m: a - m, node, wide(mean))
    if lo.sums_squares(node):
        squares = moments(lo, parts, axes)[1]
    else:
        away = lo.compute(lambda a: a * a, centred)
        squares = lo.reduce("sum", lo.reshape(away, by_group), axes, True)

    def inverse(s: Element) -> Element:
        return e.rsqrt(s / count + eps)

    scale = lo.compute(inverse, squares)
    given = [lo.cast(each, node.dtype) if each is not None else None for each in (weight, bias)]
    factors = [lo.resized(each, shape[1:2]) if each is not None else None for each in given]
    factor = by_channel(scale)
    if weight is None and not lo.sums_squares(node):  # computed for each channel, so that a loop goes along them all
        factor = lo.compute(inverse, by_channel(squares))
    if factors[0] is not None:
        factor = lo.compute(lambda s, w: s * w, factor, factors[0])
    result = lo.compute(lambda a, f: a * f, centred, wide(factor))
    if factors[1] is not None:
        result = lo.compute(lambda a, b: a + b, result, lo.along(factors[1], 1, len(shape)))
    present = [factor is not None for factor in factors]
    operands = (node, centred, scale, *(factor for factor in factors if factor is not None))
    return lo.cast(lo.derived(result, "group_norm", operands, *present), input.dtype)


def _channel(lo: Lowering, factor: Value, node: Node) -> Node | None:
    return lo.along(factor, 1, len(node.shape)) if factor is not None else None


@rule("F.batch_norm")
def batch_norm(
    lo: Lowering, input: Node, running_mean: Value, running_var: Value, weight: Value = None, bias: Value = None,
    training: bool = False, momentum: Value = 0.1, eps: Value = 1e-5,
) -> Lowered:  # fmt: skip
    if training or running_mean is None or running_var is None or len(input.shape) < 2:
        return Shapes((input.shape,))
    inner = _inner(input)
    mean, variance = lo.cast(running_mean, inner), lo.cast(running_var, inner)
    scale = lo.compute(lambda v: 1.0 / e.sqrt(v + eps), variance)
    if weight is not None:
        scale = lo.compute(lambda s, w: s * w, scale, lo.cast(weight, inner))

    def offset(m: Element, s: Element, *b: Element) -> Element:
        return b[0] - m * s if b else -(m * s)

    shift = lo.compute(offset, mean, scale, *([lo.cast(bias, inner)] if bias is not None else []))
    rank = len(input.shape)

    def normalised(a: Element, s: Element, b: Element) -> Element:
        product = a * s
        return (product + b).derived("shifted", product, b)

    input = lo.derived(input, "unheard", (input,))
    node = lo.compute(normalised, lo.cast(input, inner), lo.along(scale, 1, rank), lo.along(shift, 1, rank))
    return lo.cast(node, input.dtype)


@rule("torch.batch_norm")
def batch_norm_of_torch(
    lo: Lowering, input: Node, weight: Value, bias: Value, running_mean: Value, running_var: Value, training: bool,
    momentum: Value, eps: Value, cudnn_enabled: bool,
) -> Lowered:  # fmt: skip
    return batch_norm(lo, input, running_mean, running_var, weight, bias, training, momentum, eps)


@rule("F.instance_norm")
def instance_norm(
    lo: Lowering, input: Node, running_mean: Value = None, running_var: Value = None, weight: Value = None,
    bias: Value = None,
    use_input_stats: bool = True, momentum: Value = 0.1, eps: Value = 1e-5,
) -> Lowered:  # fmt: skip
    if len(input.shape) < 3:
        return Shapes((input.shape,))
    if not use_input_stats:
        return batch_norm(lo, input, running_mean, running_var, weight, bias, False, momentum, eps)
    if running_mean is not None or running_var is not None:
        return Shapes((input.shape,))
    lo.require("!=", product(input.shape[2:]), ONE, "more than one value in a channel")
    node = lo.cast(input, _inner(input))
    node = standardise(lo, node, tuple(range(2, len(node.shape))), eps)
    weight = _asked(lo, weight)
    return lo.cast(_scaled(lo, node, _channel(lo, weight, node), _channel(lo, bias, node)), input.dtype)


@rule("F.normalize")
def normalize(lo: Lowering, input: Node, p: Value = 2.0, dim: Value = 1, eps: Value = 1e-12, out: Value = None) -> Node:
    _inner(input)
    axes = lo.axes(dim, len(input.shape))
    length = lo.cast(power_norm(lo, lo.widen(input), p, axes, True), input.dtype)
    floor = lo.compute(lambda n: e.maximum(n.number(eps), n).derived("clamp_min", n, n.number(eps)), length)
    return lo.compute(lambda a, n: a / n, input, floor)


@rule("cosine_similarity")
def cosine_similarity(lo: Lowering, x1: Node, x2: Node, dim: Value = 1, eps: Value = 1e-8) -> Node:
    if x1.dtype is not x2.dtype:
        raise Unsupported("two dtypes")
    inner = _inner(x1)
    shape = lo.broadcast(x1.shape, x2.shape)
    a, b = (lo.expand(lo.cast(node, inner), shape) for node in (x1, x2))
    axes = lo.axes(dim, len(shape))
    scaled = []
    for node in (a, b):
        length = power_norm(lo, node, 2, axes, True)
        floor = lo.compute(lambda n: e.maximum(n.number(eps), n).derived("straight", n), length)
        scaled.append(lo.compute(lambda v, n: v / n, node, floor))
    return lo.cast(lo.reduce("sum", lo.compute(lambda v, w: v * w, *scaled), axes), x1.dtype)
