"""Lowers loss functions to pointwise arithmetic and one reduction."""

from __future__ import annotations

import math
from collections.abc import Callable

from framefuse.ir.dtypes import BOOL, FLOAT32, FLOAT64, INT8, INT64
from framefuse.ir.graph import Node
from framefuse.ir.numbers import Expr
from framefuse.ir.values import Value
from framefuse.lower import element as e
from framefuse.lower.activations import log_sigmoid_of, log_softmax
from framefuse.lower.binary import xlogy_of
from framefuse.lower.context import Lowering
from framefuse.lower.element import Element, where
from framefuse.lower.reductions import accumulate, pairwise_distance
from framefuse.lower.rules import Unsupported, rule


def reduced(lo: Lowering, node: Node, reduction: Value, divisor: Expr | None = None) -> Node:
    """The loss of each element, their sum, or their mean, in the node's dtype; torch's names or numbers."""
    if reduction in ("none", 0):
        return node
    axes = tuple(range(len(node.shape)))
    if reduction in ("sum", 2):
        return accumulate(lo, "sum", node, axes, False, node.dtype)
    if reduction not in ("mean", 1):
        raise Unsupported("reduction")
    count = lo.count(node.shape) if divisor is None else divisor
    total = lo.reduce("sum", lo.widen(node), axes)
    size = count if count.constant is None else count.constant
    return lo.cast(lo.compute(lambda a: a / size, total), node.dtype)


def _need_floats(*nodes: Node) -> None:
    if not all(node.dtype.is_float for node in nodes):
        raise Unsupported("integers")


def _elementwise(formula: Callable[..., Element]) -> Callable[..., Node]:
    def lowered(
        lo: Lowering, input: Node, target: Node, size_average: Value = None, reduce: Value = None,
        reduction: Value = "mean",
        weight: Value = None,
    ) -> Node:  # fmt: skip
        _need_floats(input, target)
        _, reduction = _of_torch(0.0, size_average, reduce, reduction)
        if weight is not None:
            raise Unsupported("a weight")
        return reduced(lo, lo.compute(formula, input, target), reduction)

    return lowered


rule("F.mse_loss", "nn.mse_loss")(_elementwise(lambda a, b: (a - b) * (a - b)))
rule("F.l1_loss", "nn.l1_loss")(_elementwise(lambda a, b: abs(a - b)))
rule("F.soft_margin_loss", "nn.soft_margin_loss")(_elementwise(lambda a, t: -log_sigmoid_of(t * a)))


@rule("F.smooth_l1_loss")
def smooth_l1_loss(
    lo: Lowering, input: Node, target: Node, size_average: Value = None, reduce: Value = None,
    reduction: Value = "mean",
    beta: Value = 1.0,
) -> Node:  # fmt: skip
    _need_floats(input, target)
    if size_average is not None or reduce is not None or not isinstance(beta, (int, float)):
        raise Unsupported("old arguments")

    def formula(a: Element, b: Element) -> Element:
        distance = abs(a - b)
        if beta == 0:
            return distance
        result = where(distance < beta, 0.5 * distance * distance / beta, distance - 0.5 * beta)
        return result.derived("smooth_l1", a, b, numbers=(beta,))

    return reduced(lo, lo.compute(formula, input, target), reduction)


@rule("F.huber_loss")
def huber_loss(
    lo: Lowering, input: Node, target: Node, reduction: Value = "mean", delta: Value = 1.0, weight: Value = None
) -> Node:
    _need_floats(input, target)
    if weight is not None:
        raise Unsupported("a weight")

    def formula(a: Element, b: Element) -> Element:
        distance = abs(a - b)
        result = where(distance < delta, 0.5 * distance * distance, delta * (distance - 0.5 * delta))
        return result.derived("huber", a, b, numbers=(delta,))

    return reduced(lo, lo.compute(formula, input, target), reduction)


@rule("F.poisson_nll_loss")
def poisson_nll_loss(
    lo: Lowering, input: Node, target: Node, log_input: bool = True, full: bool = False, size_average: Value = None,
    eps: Value = 1e-8, reduce: Value = None, reduction: Value = "mean",
) -> Node:  # fmt: skip
    _need_floats(input, target)
    if full or size_average is not None or reduce is not None or not isinstance(eps, float):
        raise Unsupported("old arguments or Stirling's term")

    def formula(a: Element, t: Element) -> Element:
        return e.exp(a) - t * a if log_input else a - t * e.log(a + eps)

    return reduced(lo, lo.compute(formula, input, target), reduction)


@rule("F.gaussian_nll_loss")
def gaussian_nll_loss(
    lo: Lowering, input: Node, target: Node, var: Value, full: bool = False, eps: Value = 1e-6,
    reduction: Value = "mean",
) -> Node:  # fmt: skip
    """Eager raises for a variance below 0, and takes ``eps`` for one below that, without another gradient."""
    nodes = (input, target, var)
    if not all(isinstance(node, Node) and node.dtype is input.dtype for node in nodes) or not isinstance(eps, float):
        raise Unsupported("a variance that is a number, or dtypes")
    if not input.dtype.is_float or {len(node.shape) for node in nodes} != {len(input.shape)}:
        raise Unsupported("dtypes or ranks")
    for mine, *others in zip(*(node.shape for node in nodes), strict=True):
        for other in others:
            lo.same_size(mine, other, "a target and a variance for each input")

    def checked(given: Element, least: Element) -> Element:
        return e.maximum(given.apply("checked", ~(given < 0.0)), least).derived("straight", given)

    # Steps of eager's, each of which rounds 16 bits.
    above = lo.compute(checked, var, eps, narrow=True)
    distance = lo.compute(lambda a, t: a - t, input, target)
    share = lo.compute(lambda a, v: a / v, lo.compute(lambda a: a * a, distance), above)
    loss = lo.compute(lambda a, b: a + b, lo.compute(e.log, above), share)
    loss = lo.compute(lambda a: 0.5 * a, loss)
    if full:
        loss = lo.compute(lambda a, b: a + b, loss, 0.5 * math.log(2 * math.pi), narrow=True)
    return reduced(lo, loss, reduction)


@rule("F.binary_cross_entropy_with_logits")
def binary_cross_entropy_with_logits(
    lo: Lowering, input: Node, target: Node, weight: Value = None, size_average: Value = None, reduce: Value = None,
    reduction: Value = "mean", pos_weight: Value = None,
) -> Node:  # fmt: skip
    _need_floats(input, target)
    if size_average is not None or reduce is not None:
        raise Unsupported("old arguments")

    def formula(a: Element, t: Element, *rest: Element) -> Element:
        log_sigmoid = log_sigmoid_of(a)
        if pos_weight is None:
            return (1.0 - t) * a - log_sigmoid
        return (1.0 - t) * a - ((rest[0] - 1.0) * t + 1.0) * log_sigmoid

    loss = lo.compute(formula, input, target, *([pos_weight] if pos_weight is not None else []))
    if weight is not None:
        loss = lo.compute(lambda a, w: a * w, loss, weight)
    return reduced(lo, loss, reduction)


@rule("F.binary_cross_entropy")
def binary_cross_entropy(
    lo: Lowering, input: Node, target: Node, weight: Value = None, size_average: Value = None, reduce: Value = None,
    reduction: Value = "mean",
) -> Node:  # fmt: skip
    """Eager raises where an input or a target is outside of [0, 1], and takes logarithms for -100 at least."""
    _, reduction = _of_torch(0.0, size_average, reduce, reduction)
    alike = input.dtype is target.dtype and len(input.shape) == len(target.shape)
    if not alike or input.dtype not in (FLOAT32, FLOAT64):
        raise Unsupported("dtypes or ranks")
    for mine, other in zip(input.shape, target.shape, strict=True):
        lo.same_size(mine, other, "a target for each input")

    def log_of(a: Element) -> Element:
        return e.maximum(a, a.number(-100.0))

    def formula(given: Element, wanted: Element) -> Element:
        a, t = (x.apply("checked", (x >= 0.0) & (x <= 1.0)) for x in (given, wanted))
        loss = (t - 1.0) * log_of(e.log1p(-a)) - t * log_of(e.log(a))
        return loss.derived("binary_cross_entropy", given, wanted)

    loss = lo.compute(formula, input, target)
    if weight is not None:
        loss = lo.compute(lambda a, w: a * w, loss, weight)
    return reduced(lo, loss, reduction)


@rule("nn.binary_cross_entropy")
def binary_cross_entropy_of_torch(
    lo: Lowering, input: Node, target: Node, weight: Value = None, reduction: Value = 1
) -> Node:
    return binary_cross_entropy(lo, input, target, weight, reduction=reduction)


@rule("F.multilabel_soft_margin_loss")
def multilabel_soft_margin_loss(
    lo: Lowering, input: Node, target: Node, weight: Value = None, size_average: Value = None, reduce: Value = None,
    reduction: Value = "mean",
) -> Node:  # fmt: skip
    _need_floats(input, target)
    if size_average is not None or reduce is not None or reduction not in ("none", "mean", "sum") or not input.shape:
        raise Unsupported("old arguments")

    def formula(a: Element, t: Element, *rest: Element) -> Element:
        loss = -(t * log_sigmoid_of(a) + (1.0 - t) * log_sigmoid_of(-a))
        return loss * rest[0] if rest else loss

    loss = lo.compute(formula, input, target, *([weight] if isinstance(weight, Node) else []))
    axis, classes = len(input.shape) - 1, input.shape[-1]
    total = accumulate(lo, "sum", loss, (axis,), False, loss.dtype)
    count = classes if classes.constant is None else classes.constant
    return reduced(lo, lo.compute(lambda a: a / count, total), reduction)


@rule("F.kl_div")
def kl_div(
    lo: Lowering, input: Node, target: Node, size_average: Value = None, reduce: Value = None,
    reduction: Value = "mean",
    log_target: bool = False,
) -> Node:  # fmt: skip
    _need_floats(input, target)
    if size_average is not None or reduce is not None:
        raise Unsupported("old arguments")

    def formula(a: Element, t: Element) -> Element:
        if log_target:
            return e.exp(t) * (t - a)
        return xlogy_of(t, t) - t * a

    loss = lo.compute(formula, input, target)
    if reduction == "batchmean":
        return reduced(lo, loss, "mean", input.shape[0])
    return reduced(lo, loss, reduction)


@rule("F.triplet_margin_loss")
def triplet_margin_loss(
    lo: Lowering, anchor: Node, positive: Node, negative: Node, margin: Value = 1.0, p: Value = 2.0, eps: Value = 1e-6,
    swap: Value = False, size_average: Value = None, reduce: Value = None, reduction: Value = "mean",
) -> Node:  # fmt: skip
    _need_floats(anchor, positive, negative)
    if size_average is not None or reduce is not None or (swap and lo.differentiable):
        raise Unsupported("old arguments, or the gradient of the nearer of two distances")
    if len({len(node.shape) for node in (anchor, positive, negative)}) != 1:
        raise Unsupported("ranks")
    if anchor.device == "cpu" and anchor.dtype.size == 2:  # the difference of two distances shows each rounding
        raise Unsupported("16-bit distances")
    near, far = (pairwise_distance(lo, anchor, other, p, eps) for other in (positive, negative))
    if swap:
        far = lo.compute(e.minimum, far, pairwise_distance(lo, positive, negative, p, eps))

    def formula(a: Element, b: Element) -> Element:
        loss = a - b + margin
        return e.maximum(loss, loss.number(0.0)).derived("clamp_min", loss, loss.number(0.0))

    return reduced(lo, lo.compute(formula, near, far), reduction)


@rule("torch.triplet_margin_loss")
def triplet_margin_loss_of_torch(
    lo: Lowering, anchor: Node, positive: Node, negative: Node, margin: Value = 1.0, p: Value = 2.0, eps: Value = 1e-6,
    swap: Value = False, reduction: Value = 1,
) -> Node:  # fmt: skip
    return triplet_margin_loss(lo, anchor, positive, negative, margin, p, eps, swap, reduction=reduction)


def _from_zero(lo: Lowering, node: Node) -> Node:
    """What is above 0, as ``clamp_min`` gives it."""

    def formula(a: Element) -> Element:
        return e.maximum(a, a.number(0.0)).derived("clamp_min", a, a.number(0.0))

    return lo.compute(formula, node)


@rule("margin_ranking_loss")
def margin_ranking_loss(
    lo: Lowering, input1: Node, input2: Node, target: Node, margin: Value = 0.0, size_average: Value = None,
    reduce: Value = None, reduction: Value = "mean",
) -> Node:  # fmt: skip
    margin, reduction = _of_torch(margin, size_average, reduce, reduction)
    _need_floats(input1, input2)
    if len({len(node.shape) for node in (input1, input2, target)}) != 1:
        raise Unsupported("ranks")
    apart = lo.compute(lambda a, b: a - b, input1, input2)
    loss = lo.compute(lambda t, d: t * d, lo.compute(lambda t: -t, target), apart)
    return reduced(lo, _from_zero(lo, lo.compute(lambda a: a + margin, loss)), reduction)


@rule("hinge_embedding_loss")
def hinge_embedding_loss(
    lo: Lowering, input: Node, target: Node, margin: Value = 1.0, size_average: Value = None, reduce: Value = None,
    reduction: Value = "mean",
) -> Node:  # fmt: skip
    margin, reduction = _of_torch(margin, size_average, reduce, reduction)
    _need_floats(input)
    far = _from_zero(lo, lo.compute(lambda a: margin - a, input))
    loss = lo.compute(lambda a, b: a + b, _unless(lo, target, 1, far), _unless(lo, target, -1, input))
    return reduced(lo, loss, reduction)


@rule("cosine_embedding_loss")
def cosine_embedding_loss(
    lo: Lowering, input1: Node, input2: Node, target: Node, margin: Value = 0.0, size_average: Value = None,
    reduce: Value = None, reduction: Value = "mean",
) -> Node:  # fmt: skip
    margin, reduction = _of_torch(margin, size_average, reduce, reduction)
    _need_floats(input1, input2)
    axis = len(target.shape)
    if axis > 1 or {len(input1.shape), len(input2.shape)} != {axis + 1} or input1.dtype is not input2.dtype:
        raise Unsupported("ranks or dtypes")
    if input1.dtype.size == 2:  # the difference of two nearly equal numbers shows each rounding
        raise Unsupported("16-bit distances")

    def dot(a: Node, b: Node) -> Node:
        return lo.reduce("sum", lo.compute(lambda a, b: a * b, a, b), (axis,))

    near, squares = dot(input1, input2), (dot(input1, input1), dot(input2, input2))
    cosine = lo.compute(lambda n, a, b: n / e.sqrt((a + 1e-12) * (b + 1e-12)), near, *squares)
    alike, other = lo.compute(lambda c: 1.0 - c, cosine), _from_zero(lo, lo.compute(lambda c: c - margin, cosine))
    terms = (_where(lo, "eq", target, number, loss) for number, loss in ((1, alike), (-1, other)))
    return reduced(lo, lo.compute(lambda a, b: a + b, *terms), reduction)


def _of_torch(margin: Value, size_average: Value, reduce: Value, reduction: Value) -> tuple[Value, Value]:
    """The margin and the reduction; torch's own function has the reduction where the other one has ``size_average``."""
    if type(size_average) is int and reduce is None:
        return margin, size_average
    if size_average is not None or reduce is not None or not isinstance(margin, (int, float)):
        raise Unsupported("old arguments")
    return margin, reduction


def _unless(lo: Lowering, target: Node, number: int, loss: Node) -> Node:
    return _where(lo, "ne", target, number, loss)


def _where(lo: Lowering, op: str, target: Node, number: int, loss: Node) -> Node:
    """The loss where the target compares so with a number, else 0. A target of bools is of ones and zeros."""
    if target.dtype is BOOL:
        target = lo.cast(target, INT8)
    shape = lo.broadcast(target.shape, loss.shape)
    counted = lo.pointwise(op, target, lo.full(number, target.dtype, target.shape, target.device))
    zeros = lo.full(0.0, loss.dtype, shape, loss.device)
    return lo.pointwise("where", lo.expand(counted, shape), lo.expand(loss, shape), zeros)


# ---- classes ---------------------------------------------------------------------------------------------------------


@rule("F.nll_loss")
def nll_loss(
    lo: Lowering, input: Node, target: Node, weight: Value = None, size_average: Value = None,
    ignore_index: Value = -100,
    reduce: Value = None, reduction: Value = "mean",
) -> Node:  # fmt: skip
    if size_average is not None or reduce is not None or target.dtype.is_float or not isinstance(ignore_index, int):
        raise Unsupported("old arguments or probabilities")
    if len(target.shape) != max(len(input.shape) - 1, 0) or not input.shape:
        raise Unsupported("ranks")
    _need_floats(input)
    axis = 1 if len(input.shape) > 1 else 0
    wide = lo.widen(lo.derived(input, "aside", (input,)))
    index = lo.cast(target, INT64)
    counted = lo.pointwise("ne", index, lo.full(ignore_index, INT64, index.shape, index.device))
    index = lo.pointwise("where", counted, index, lo.full(0, INT64, index.shape, index.device))
    column = lo.reshape(index, (*index.shape[:axis], lo.shape_of(1)[0], *index.shape[axis:]))
    for place, (mine, read) in enumerate(zip(wide.shape, column.shape, strict=True)):
        if place != axis:
            lo.require("==", mine, read, "one class for each row")
    picked = lo.reshape(lo.gather(wide, column, axis), index.shape)
    if weight is None:
        factor = lo.cast(counted, wide.dtype)
        loss = _kept(lo, picked, counted)
    else:
        chosen = lo.take(lo.cast(weight, wide.dtype), index, 0, False)
        factor = _kept(lo, lo.compute(lambda w: -w, chosen), counted)
        loss = _kept(lo, lo.compute(lambda a, w: a * w, picked, chosen), counted)
    if reduction in ("none", 0):
        return lo.cast(loss, input.dtype)
    axes = tuple(range(len(loss.shape)))
    total = lo.reduce("sum", loss, axes)
    if reduction in ("mean", 1):
        total = lo.compute(lambda a, n: a / n, total, lo.reduce("sum", factor, axes))
    return lo.cast(total, input.dtype)


def _kept(lo: Lowering, node: Node, counted: Node) -> Node:
    """The negated values where they count, else zero."""
    negated = lo.compute(lambda a: -a, node)
    return lo.pointwise("where", counted, negated, lo.full(0.0, node.dtype, node.shape, node.device))


@rule("F.cross_entropy")
def cross_entropy(
    lo: Lowering, input: Node, target: Node, weight: Value = None, size_average: Value = None,
    ignore_index: Value = -100,
    reduce: Value = None, reduction: Value = "mean", label_smoothing: Value = 0.0,
) -> Node:  # fmt: skip
    if size_average is not None or reduce is not None or not isinstance(label_smoothing, float):
        raise Unsupported("old arguments")
    axis = 1 if len(input.shape) > 1 else 0
    logs = log_softmax(lo, input, axis)
    if not target.dtype.is_float:
        loss = nll_loss(lo, logs, target, weight, ignore_index=ignore_index, reduction=reduction)
        return _smoothed(lo, loss, input, logs, target, weight, ignore_index, reduction, label_smoothing)
    if label_smoothing != 0.0:
        raise Unsupported("smoothed probabilities")
    if weight is not None or len(target.shape) != len(input.shape) or target.dtype is not input.dtype:
        raise Unsupported("weighted probabilities")
    for mine, other in zip(input.shape, target.shape, strict=True):
        lo.require("==", mine, other, "probabilities")
    terms = lo.compute(lambda a, t: a * t, lo.widen(logs), lo.widen(target))
    loss = lo.compute(lambda a: -a, lo.reduce("sum", terms, (axis,)))
    if reduction == "mean":
        rows = lo.count(input.shape) // input.shape[axis]
        return lo.cast(reduced(lo, loss, "mean", rows), input.dtype)
    return lo.cast(reduced(lo, loss, reduction), input.dtype)


def _sum_of_logs(lo: Lowering, node: Node, logs: Node, axis: int) -> Node:
    """The sum of log_softmax along an axis, where a kernel need not have the logarithms for a gradient: from the sum of
    distances from the first element, which is computed with the largest one, before the row's logarithm is known.
    """
    if lo.differentiable or not lo.sums_squares(node):
        return lo.reduce("sum", logs, (axis,))
    # An infinite element is no place to begin from.
    first = lo.compute(lambda a: where((a - a).apply("eq", 0.0), a, 0.0), lo.narrow(node, axis, 0, 1))
    high = lo.reduce("amax", node, (axis,), True)
    total = lo.reduce("sum", lo.compute(lambda a, m: e.exp(a - m), node, high), (axis,), True)
    apart = lo.reduce("sum", lo.compute(lambda a, b: a - b, node, first), (axis,), True)
    count = lo.full(node.shape[axis], node.dtype, (), node.device)
    logarithm = lo.compute(lambda m, b, s: (m - b) + e.log(s), high, first, total)
    rows = lo.compute(lambda a, n, b: a - n * b, apart, count, logarithm)
    return lo.reshape(rows, tuple(size for place, size in enumerate(rows.shape) if place != axis))


def _smoothed(
    lo: Lowering, loss: Node, input: Node, logs: Node, target: Node, weight: Value, ignore_index: Value,
    reduction: Value, smoothing: float,
) -> Node:  # fmt: skip
    """The ``loss`` of a class, mixed with the mean over all classes of its row."""
    if smoothing == 0.0:
        return loss
    if weight is not None or not 0.0 < smoothing <= 1.0:
        raise Unsupported("weighted smoothed labels")
    axis = 1 if len(logs.shape) > 1 else 0
    wide = _sum_of_logs(lo, lo.widen(input), lo.widen(logs), axis)
    counted = lo.pointwise("ne", target, lo.full(ignore_index, target.dtype, target.shape, target.device))
    rows = _kept(lo, lo.reshape(wide, target.shape), counted)
    if reduction in ("sum", "mean", 1, 2):
        axes = tuple(range(len(rows.shape)))
        rows = lo.reduce("sum", rows, axes)
        if reduction in ("mean", 1):
            rows = lo.compute(lambda a, n: a / n, rows, lo.reduce("sum", lo.cast(counted, rows.dtype), axes))
    share = lo.compute(lambda n: smoothing / n, lo.full(logs.shape[axis], rows.dtype, (), rows.device))
    mixed = lo.compute(lambda a, b, s: a * (1.0 - smoothing) + b * s, lo.widen(loss), rows, share)
    return lo.cast(mixed, loss.dtype)
