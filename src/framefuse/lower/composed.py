"""Lowers functions that torch composes of others, by the rules of those."""

from __future__ import annotations

from collections.abc import Sequence

from framefuse.ir.builder import ONE
from framefuse.ir.dtypes import BY_NAME
from framefuse.ir.graph import Node
from framefuse.ir.numbers import expr
from framefuse.ir.values import Value
from framefuse.lower import element as e
from framefuse.lower.activations import softmax
from framefuse.lower.binary import clamp, mul, power
from framefuse.lower.context import Lowering
from framefuse.lower.diagonals import view as diagonal
from framefuse.lower.einsum import tensordot
from framefuse.lower.products import added, by_blas, outer, plain_product
from framefuse.lower.random_numbers import draw
from framefuse.lower.reductions import index_of, mean_of, norm, sum_
from framefuse.lower.rules import Lowered, Shapes, Unsupported, rule
from framefuse.lower.scans import running_sum
from framefuse.lower.views import cat, diff


@rule("inner")
def inner(lo: Lowering, input: Node, other: Node, *, out: Value = None) -> Node:
    if not input.shape or not other.shape:
        return mul(lo, input, other)
    return _ours(tensordot(lo, input, other, ([-1], [-1])))


def _ours(found: Value) -> Node:
    if not isinstance(found, Node):
        raise Unsupported("a product of the library's")
    return found


@rule("addbmm")
def addbmm(
    lo: Lowering, input: Node, batch1: Node, batch2: Node, *, beta: Value = 1, alpha: Value = 1, out: Value = None
) -> Node:
    if not by_blas(lo, input, batch1, batch2):
        raise Unsupported("a product of the library's")
    return _added(lo, input, _ours(tensordot(lo, batch1, batch2, ([0, 2], [0, 1]))), beta, alpha)


@rule("addr")
def addr(
    lo: Lowering, input: Node, vec1: Node, vec2: Node, *, beta: Value = 1, alpha: Value = 1, out: Value = None
) -> Node:
    if not by_blas(lo, input, vec1, vec2) or not vec1.shape or not vec2.shape:  # others round on the way
        raise Unsupported("dtypes, or a number")
    return _added(lo, input, outer(lo, vec1, vec2), beta, alpha)


def _added(lo: Lowering, input: Node, product: Node, beta: Value, alpha: Value) -> Node:
    """The two as :func:`added` adds them, where the factors are known and the input is looked at."""
    if not isinstance(beta, (int, float)) or not isinstance(alpha, (int, float)) or beta == 0:
        raise Unsupported("run-time factors, or an input that is not looked at")
    return added(lo, input, product, beta, alpha)


@rule("column_stack")
def column_stack(lo: Lowering, tensors: Sequence[Node], *, out: Value = None) -> Node:
    columns = [lo.reshape(node, (*(node.shape or (ONE,)), ONE)) if len(node.shape) < 2 else node for node in tensors]
    return cat(lo, columns, 1)


@rule("dstack")
def dstack(lo: Lowering, tensors: Sequence[Node], *, out: Value = None) -> Node:
    deep = []
    for node in tensors:
        shape = (*(ONE,) * (2 - len(node.shape)), *node.shape, ONE) if len(node.shape) < 3 else node.shape
        deep.append(lo.reshape(node, shape))
    return cat(lo, deep, 2)


@rule("dist")
def dist(lo: Lowering, input: Node, other: Node, p: Value = 2) -> Node:
    if input.dtype is not other.dtype:
        raise Unsupported("two dtypes")
    return norm(lo, lo.compute(lambda a, b: a - b, input, other), p)


@rule("float_power")
def float_power(lo: Lowering, input: Value, exponent: Value, *, out: Value = None) -> Node:
    """In double, whatever comes in."""

    def double(value: Value) -> Value:
        if not isinstance(value, Node):
            return float(value) if isinstance(value, (bool, int)) else value
        if value.dtype.kind == "complex":
            raise Unsupported("complex numbers")
        return lo.cast(value, BY_NAME["float64"])

    return power(lo, double(input), double(exponent))


@rule("cov")
def cov(lo: Lowering, input: Node, *, correction: Value = 1, fweights: Value = None, aweights: Value = None) -> Node:
    """Of rows of observations: at::cov."""
    if fweights is not None or aweights is not None or len(input.shape) > 2 or not by_blas(lo, input):
        raise Unsupported("weights, or a product of the library's")
    rows = input if len(input.shape) == 2 else lo.reshape(input, (ONE, *(input.shape or (ONE,))))
    count, free = rows.shape
    lo.require("<", expr(correction), free, "covariances of more than so many")
    apart = lo.compute(lambda a, m: a - m, rows, mean_of(lo, rows, (1,), True))
    shared = _ours(plain_product(lo, apart, lo.permute(apart, (1, 0))))
    over = free - correction
    shared = lo.compute(lambda a: a / (over if over.constant is None else over.constant), shared)
    if lo.size(count) == 1:
        lo.require("==", count, ONE, "one variable")
        return lo.reshape(shared, ())
    lo.require("!=", count, ONE, "several variables")
    return shared


@rule("corrcoef")
def corrcoef(lo: Lowering, input: Node) -> Node:
    shared = cov(lo, input)
    if not shared.shape:
        return lo.compute(lambda a: a / a, shared)
    spread = lo.compute(e.sqrt, diagonal(lo, shared))
    by_row = lo.compute(lambda a, s: a / s, shared, lo.reshape(spread, (*spread.shape, ONE)))
    found = lo.compute(lambda a, s: a / s, by_row, spread)
    return clamp(lo, found, -1.0, 1.0)


@rule("trapezoid", "trapz")
def trapezoid(lo: Lowering, y: Node, x: Value = None, *, dx: Value = 1, dim: Value = -1) -> Lowered:
    """at::trapezoid: with one distance, all but half of the first and the last."""
    axis = lo.axis(dim, len(y.shape))
    lo.require("!=", y.shape[axis], expr(0), "samples")  # of none torch gives zeros without gradient
    if x is None:
        rest = (*y.shape[:axis], *y.shape[axis + 1 :])
        if not y.dtype.is_float:
            return Shapes((rest,))
        ends = [lo.narrow(y, axis, place, ONE) for place in (0, y.shape[axis] - 1)]
        half = lo.compute(lambda a, b: (a + b) * 0.5, *ends)
        return lo.compute(lambda a, b: (a - b) * dx, sum_(lo, y, axis), lo.reshape(half, rest))
    return lo.compute(lambda a: a / 2.0, sum_(lo, _steps(lo, y, x, axis), axis))


@rule("cumulative_trapezoid")
def cumulative_trapezoid(lo: Lowering, y: Node, x: Value = None, *, dx: Value = 1, dim: Value = -1) -> Node:
    axis = lo.axis(dim, len(y.shape))
    lo.require("!=", y.shape[axis], expr(0), "samples")
    if not y.dtype.is_float:
        raise Unsupported("integers")
    if x is None:
        left, right = _neighbours(lo, y, axis)
        steps = lo.compute(lambda a, b: (a + b) * (dx / 2.0), left, right)
        return _ours(running_sum(lo, steps, axis))
    return lo.compute(lambda a: a / 2.0, _ours(running_sum(lo, _steps(lo, y, x, axis), axis)))


def _neighbours(lo: Lowering, y: Node, axis: int) -> tuple[Node, Node]:
    length = y.shape[axis] - 1
    return lo.narrow(y, axis, 0, length), lo.narrow(y, axis, 1, length)


def _steps(lo: Lowering, y: Node, x: Value, axis: int) -> Node:
    """Twice the areas between neighbours that lie at ``x``."""
    if not isinstance(x, Node) or x.dtype is not y.dtype or not x.shape or not y.dtype.is_float:
        raise Unsupported("places")
    if len(x.shape) == 1:
        lo.same_size(x.shape[0], y.shape[axis], "as many places")
        x = lo.along(x, axis, len(y.shape))
    elif len(x.shape) != len(y.shape):
        raise Unsupported("places of another rank")
    left, right = _neighbours(lo, y, axis)
    return lo.compute(lambda a, b, d: (a + b) * d, left, right, diff(lo, x, 1, axis))


@rule("gumbel_softmax")
def gumbel_softmax(
    lo: Lowering, logits: Node, tau: Value = 1, hard: bool = False, eps: Value = 1e-10, dim: Value = -1
) -> Node | Shapes:
    """One draw by the library, as eager's, in contiguous memory."""
    if not isinstance(hard, bool) or eps != 1e-10 or not logits.dtype.is_float or not logits.shape:
        raise Unsupported("the kind of the arguments")
    noise = draw(lo, "exponential_", (), logits.dtype, logits.shape, logits, by_rows=True)
    apart = lo.settled(lo.compute(lambda g: -e.log(g), noise))
    moved = lo.settled(lo.compute(lambda a, g: a + g, logits, apart))
    soft = softmax(lo, lo.settled(lo.compute(lambda a: a / tau, moved)), dim)
    if not hard:
        return soft
    axis = lo.axis(dim, len(logits.shape))
    lo.require("!=", logits.shape[axis], expr(0), "a choice among something")
    chosen = index_of(lo, "argmax", soft, (axis,), True)
    places = lo.along(lo.iota(0, 1, chosen.dtype, logits.shape[axis], logits.device), axis, len(logits.shape))
    one_hot = lo.cast(lo.compute(lambda a, b: e.eq(a, b), places, chosen), soft.dtype)
    apart = lo.settled(lo.compute(lambda a, b: a - b, one_hot, lo.detach(soft)))
    return lo.compute(lambda a, b: a + b, apart, soft)
