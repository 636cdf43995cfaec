"""Lowers sums, extremes, moments, norms and tests over axes to reductions."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

from framefuse.ir.builder import ONE, ZERO, Shape
from framefuse.ir.dtypes import BOOL, BY_NAME, INT64, DType
from framefuse.ir.graph import Node
from framefuse.ir.numbers import Expr, Real, expr
from framefuse.ir.values import Value
from framefuse.lower import element as e
from framefuse.lower.context import Lowering
from framefuse.lower.element import Element
from framefuse.lower.logic import truth
from framefuse.lower.promotion import row, sum_dtype, to_float
from framefuse.lower.rules import Lowered, Rule, Unsupported, rule


def accumulate(lo: Lowering, op: str, node: Node, axes: tuple[int, ...], keep: bool, dtype: DType) -> Node:
    """A sum or product accumulated in ``dtype``'s arithmetic and rounded to it once."""
    wide = lo.cast(node, BY_NAME[dtype.compute])
    return lo.cast(lo.reduce(op, wide, axes, keep), dtype)


@rule("sum")
def sum_(
    lo: Lowering, input: Node, dim: Value = None, keepdim: bool = False, *, dtype: Value = None, out: Value = None
) -> Node:
    result = row(dtype) if dtype is not None else sum_dtype(input.dtype)
    return accumulate(lo, "sum", input, lo.axes(dim, len(input.shape)), keepdim, result)


@rule("nansum")
def nansum(
    lo: Lowering, input: Node, dim: Value = None, keepdim: bool = False, *, dtype: Value = None, out: Value = None
) -> Node:
    if not input.dtype.is_float:
        return sum_(lo, input, dim, keepdim, dtype=dtype)
    present = lo.compute(lambda a: e.where(e.isnan(a), 0.0, a).derived("present", a), input)
    return sum_(lo, present, dim, keepdim, dtype=dtype)


@rule("prod")
def prod(
    lo: Lowering, input: Node, dim: Value = None, keepdim: bool = False, *, dtype: Value = None, out: Value = None
) -> Node:
    if isinstance(dim, (tuple, list)):
        raise Unsupported("several dimensions")
    result = row(dtype) if dtype is not None else sum_dtype(input.dtype)
    axes = lo.axes(dim, len(input.shape))
    if dim is not None and len(input.shape) == 1:  # the gradient of a row is not that of a product of all elements
        product = accumulate(lo, "prod", lo.reshape(input, (ONE, *input.shape)), (1,), True, result)
        return lo.reshape(product, (ONE,) if keepdim else ())
    return accumulate(lo, "prod", input, axes, keepdim, result)


@rule("mean")
def mean(
    lo: Lowering, input: Node, dim: Value = None, keepdim: bool = False, *, dtype: Value = None, out: Value = None
) -> Node:
    result = row(dtype) if dtype is not None else input.dtype
    if not result.is_float:
        raise Unsupported("integers")
    axes = lo.axes(dim, len(input.shape))
    return lo.cast(mean_of(lo, lo.cast(input, BY_NAME[result.compute]), axes, keepdim), result)


def mean_of(lo: Lowering, node: Node, axes: tuple[int, ...], keep: bool) -> Node:
    """The mean in the node's own dtype."""
    total = lo.total(node.shape, axes)
    return lo.compute(lambda a: a / _size(total), lo.reduce("sum", node, axes, keep))


def _size(value: Expr) -> int | Expr:
    return value if value.constant is None else value.constant


def moments(lo: Lowering, node: Node, axes: tuple[int, ...]) -> tuple[Node, Node]:
    """Mean and summed squared distance from it, both with the axes kept, in the node's dtype: by two passes over memory
    on a CPU, whose caches hold most rows, and whose loops would divide for each element of one pass.
    """
    centre = mean_of(lo, node, axes, True)
    if axes and lo.sums_squares(node):
        squares = lo.reduce("squares", node, axes, True)
    else:
        squares = lo.reduce("sum", lo.compute(lambda a, m: (a - m) * (a - m), node, centre), axes, True)
    return centre, lo.derived(squares, "squares", (node, centre))


def _variance(
    lo: Lowering, input: Node, dim: Value, unbiased: Value, correction: Value, keepdim: bool
) -> tuple[Node, Node]:
    if isinstance(dim, bool):  # var(input, unbiased)
        dim, unbiased = None, dim
    if unbiased is not None:
        correction = 1 if unbiased else 0
    correction = 1 if correction is None else lo.fixed(correction, "a correction")
    if not input.dtype.is_float or not isinstance(correction, int) or correction < 0:
        raise Unsupported("integers or a fractional correction")
    axes = lo.axes(dim, len(input.shape))
    # Eager's kernel of the CPU accumulates in double, whatever comes in; what finds moments in one pass needs it less.
    double = input.device == "cpu" and not lo.sums_squares(input)
    node = lo.cast(input, BY_NAME["float64"]) if double else lo.widen(input)
    centre, squares = moments(lo, node, axes)
    freedom = lo.total(node.shape, axes) - correction
    _require_freedom(lo, node.shape, axes, freedom)
    variance = lo.compute(lambda s: s / _size(freedom), squares)
    shape = lo.keep(node.shape, axes) if keepdim else tuple(s for axis, s in enumerate(node.shape) if axis not in axes)
    return lo.reshape(variance, shape), lo.reshape(centre, shape)


def _require_freedom(lo: Lowering, shape: Shape, axes: tuple[int, ...], freedom: Expr) -> None:
    """Raises Unsupported where eager warns at each call: of as few elements as the correction, or of no results."""
    told = [freedom, *(size for axis, size in enumerate(shape) if axis not in axes)]
    if any(lo.size(size) <= 0 for size in told):
        raise Unsupported("too few elements, of which eager warns")
    for size in told:
        lo.require("<", ZERO, size, "a variance")


@rule("var")
def var(
    lo: Lowering,
    input: Node,
    dim: Value = None,
    unbiased: Value = None,
    keepdim: bool = False,
    *,
    correction: Value = None,
    out: Value = None,
) -> Node:
    return lo.cast(_variance(lo, input, dim, unbiased, correction, keepdim)[0], input.dtype)


@rule("std")
def std(
    lo: Lowering,
    input: Node,
    dim: Value = None,
    unbiased: Value = None,
    keepdim: bool = False,
    *,
    correction: Value = None,
    out: Value = None,
) -> Node:
    variance = _variance(lo, input, dim, unbiased, correction, keepdim)[0]
    return lo.cast(lo.compute(root, variance), input.dtype)


@rule("var_mean")
def var_mean(
    lo: Lowering,
    input: Node,
    dim: Value = None,
    unbiased: Value = None,
    keepdim: bool = False,
    *,
    correction: Value = None,
    out: Value = None,
) -> tuple[Node, Node]:
    variance, centre = _variance(lo, input, dim, unbiased, correction, keepdim)
    return lo.cast(variance, input.dtype), lo.cast(centre, input.dtype)


@rule("std_mean")
def std_mean(
    lo: Lowering,
    input: Node,
    dim: Value = None,
    unbiased: Value = None,
    keepdim: bool = False,
    *,
    correction: Value = None,
    out: Value = None,
) -> tuple[Node, Node]:
    variance, centre = _variance(lo, input, dim, unbiased, correction, keepdim)
    return lo.cast(lo.compute(root, variance), input.dtype), lo.cast(centre, input.dtype)


# ---- extremes and tests ----------------------------------------------------------------------------------------------


def _nonempty(lo: Lowering, node: Node, axes: tuple[int, ...]) -> None:
    """An extreme of nothing is eager's error, so the reduced sizes must stay above zero."""
    for axis in axes:
        if node.shape[axis].constant is None:
            lo.require("!=", node.shape[axis], expr(0), "an extreme over this dimension")


def extreme(lo: Lowering, op: str, node: Node, axes: tuple[int, ...], keep: bool) -> Node:
    """amax or amin; bool reduces as any or all."""
    if node.dtype is BOOL:
        return lo.reduce("any" if op == "amax" else "all", node, axes, keep)
    return lo.cast(lo.reduce(op, lo.widen(node), axes, keep), node.dtype)


@rule("amax")
def amax(lo: Lowering, input: Node, dim: Value = (), keepdim: bool = False, *, out: Value = None) -> Node:
    axes = lo.axes(dim, len(input.shape))
    _nonempty(lo, input, axes)
    return extreme(lo, "amax", input, axes, keepdim)


@rule("amin")
def amin(lo: Lowering, input: Node, dim: Value = (), keepdim: bool = False, *, out: Value = None) -> Node:
    axes = lo.axes(dim, len(input.shape))
    _nonempty(lo, input, axes)
    return extreme(lo, "amin", input, axes, keepdim)


@rule("aminmax")
def aminmax(
    lo: Lowering, input: Node, *, dim: Value = None, keepdim: bool = False, out: Value = None
) -> tuple[Node, Node]:
    return amin(lo, input, () if dim is None else dim, keepdim), amax(lo, input, () if dim is None else dim, keepdim)


def _max_or_min(op: str, position: str) -> Rule:
    from_pair = {"amax": "maximum", "amin": "minimum"}[op]

    def lowered(
        lo: Lowering, input: Node, dim: Value = None, keepdim: bool = False, *, other: Value = None, out: Value = None
    ) -> Lowered:
        second = dim if isinstance(dim, Node) else other
        if second is not None:
            if input.dtype is BOOL and second.dtype is BOOL:
                return lo.compute((lambda a, b: a | b) if op == "amax" else (lambda a, b: a & b), input, second)
            return lo.compute(e.binary(from_pair), input, second)
        axes = lo.axes(dim, len(input.shape))
        _nonempty(lo, input, axes)
        if dim is None:
            if not input.dtype.is_float:
                return extreme(lo, op, input, axes, keepdim)
            wide = lo.widen(input)
            return lo.cast(lo.derived(lo.reduce(op, wide, axes), "extreme_of_all", (wide,), *axes), input.dtype)
        index = index_of(lo, position, input, axes, keepdim)
        return _chosen(lo, extreme(lo, op, input, axes, True), input, axes, index, keepdim), index

    return lowered


def _chosen(lo: Lowering, values: Node, input: Node, axes: tuple[int, ...], index: Node, keep: bool) -> Node:
    """Extremes along one axis, whose gradient goes to the first of equal ones."""
    if axes:
        places = index if keep else lo.reshape(index, values.shape)
        values = lo.derived(values, "extreme_at", (input, places), axes[0])
    shape = tuple(size for axis, size in enumerate(input.shape) if axis not in axes)
    return values if keep else lo.reshape(values, shape)


def index_of(lo: Lowering, op: str, node: Node, axes: tuple[int, ...], keep: bool) -> Node:
    """argmax or argmin over one axis, or over all as a flat index."""
    if not node.shape:
        return lo.full(0, INT64, (), node.device)
    if node.dtype is BOOL:
        node = lo.cast(node, BY_NAME["uint8"])
    return lo.reduce(op, lo.widen(node), axes, keep)


rule("max")(_max_or_min("amax", "argmax"))
rule("min")(_max_or_min("amin", "argmin"))


def _argument(op: str) -> Callable[..., Node]:
    def lowered(lo: Lowering, input: Node, dim: Value = None, keepdim: bool = False, *, out: Value = None) -> Node:
        axes = lo.axes(dim, len(input.shape))
        _nonempty(lo, input, axes)
        return index_of(lo, op, input, axes, keepdim)

    return lowered


rule("argmax")(_argument("argmax"))
rule("argmin")(_argument("argmin"))


def _test(op: str) -> Callable[..., Node]:
    def lowered(lo: Lowering, input: Node, dim: Value = None, keepdim: bool = False, *, out: Value = None) -> Node:
        result = lo.reduce(op, truth(lo, input), lo.axes(dim, len(input.shape)), keepdim)
        return lo.cast(result, input.dtype) if input.dtype.name == "uint8" else result  # torch keeps uint8

    return lowered


rule("any", "_is_any_true")(_test("any"))
rule("all", "_is_all_true")(_test("all"))


@rule("count_nonzero")
def count_nonzero(lo: Lowering, input: Node, dim: Value = None) -> Node:
    return lo.reduce("sum", lo.cast(truth(lo, input), INT64), lo.axes(dim, len(input.shape)))


# ---- norms -----------------------------------------------------------------------------------------------------------


def root(a: Element) -> Element:
    """The square root of a sum of squares; where that is 0, so is its gradient."""
    return e.sqrt(a).derived("norm", a)


def dropped(shape: Shape, axes: Sequence[int]) -> Shape:
    """``shape`` without the dimensions at ``axes``."""
    return tuple(size for axis, size in enumerate(shape) if axis not in axes)


def power_norm(lo: Lowering, node: Node, p: Value, axes: tuple[int, ...], keep: bool) -> Node:
    """The p-norm of the entries along ``axes`` in the node's dtype."""
    size = lo.compute(abs, node)
    if p == 2:
        length = lo.compute(e.sqrt, lo.reduce("sum", lo.compute(lambda a: a * a, node), axes, True))
        length = lo.derived(length, "length", (node,))
        return length if keep else lo.reshape(length, dropped(node.shape, axes))
    if p == 1:
        return lo.reduce("sum", size, axes, keep)
    if p == 0:
        nonzero = lo.compute(lambda a: e.ne(a, 0.0), node)
        counted = lo.derived(lo.cast(nonzero, node.dtype), "undefined", (node,))
        return lo.reduce("sum", counted, axes, keep)
    if p in (math.inf, -math.inf):
        _nonempty(lo, node, axes)
        value = lo.derived(lo.reduce("amax" if p > 0 else "amin", size, axes), "extreme_of_all", (size,), *axes)
        return lo.reshape(value, lo.keep(node.shape, axes)) if keep else value
    if isinstance(p, (Expr, Real)) or not node.shape:  # of one number eager's powers cancel exactly
        raise Unsupported("a run-time order, or a number")
    power = (lambda a: a * a * a) if p == 3 else (lambda a: a.apply("pow", float(p)))
    total = lo.reduce("sum", lo.compute(power, size), axes, True)
    length = lo.derived(lo.compute(lambda a: a.apply("pow", 1.0 / p), total), "power_norm", (size,), float(p))
    return length if keep else lo.reshape(length, dropped(node.shape, axes))


@rule("norm", "linalg.vector_norm")
def norm(
    lo: Lowering,
    input: Node,
    p: Value = 2,
    dim: Value = None,
    keepdim: bool = False,
    out: Value = None,
    dtype: Value = None,
    *,
    ord: Value = None,
) -> Node:
    p = ord if ord is not None else p
    if p is None or p == "fro":
        p = 2
    if isinstance(p, str) or not input.dtype.is_float or dtype is not None:
        raise Unsupported("a matrix norm or integers")
    p = lo.fixed(p, "the order of a norm")
    axes = lo.axes(dim, len(input.shape))
    return lo.cast(power_norm(lo, lo.widen(input), p, axes, keepdim), input.dtype)


@rule("linalg.norm")
def vector_or_matrix_norm(
    lo: Lowering,
    input: Node,
    ord: Value = None,
    dim: Value = None,
    keepdim: bool = False,
    *,
    out: Value = None,
    dtype: Value = None,
) -> Node:
    """That of all elements, or of vectors: along one axis, or of a tensor that has one."""
    single = isinstance(dim, (int, Expr)) or (isinstance(dim, tuple) and len(dim) == 1)
    if ord is not None and not single and (dim is not None or len(input.shape) != 1):
        return matrix_norm(lo, input, ord, (0, 1) if dim is None else dim, keepdim, dtype=dtype)
    return norm(lo, input, 2 if ord is None else ord, dim, keepdim, dtype=dtype)


@rule("linalg.matrix_norm")
def matrix_norm(
    lo: Lowering, A: Node, ord: Value = "fro", dim: Value = (-2, -1), keepdim: bool = False, *, dtype: Value = None,
    out: Value = None,
) -> Node:  # fmt: skip
    """Of all entries, or the largest or smallest sum of a column or a row."""
    if not A.dtype.is_float or dtype is not None or len(A.shape) < 2:
        raise Unsupported("integers or a dtype")
    rows, columns = (lo.axis(axis, len(A.shape)) for axis in dim)
    if ord == "fro":
        return norm(lo, A, 2, (rows, columns), keepdim)
    ord = lo.fixed(ord, "the order of a norm")
    if isinstance(ord, str) or abs(ord) not in (1, math.inf):
        raise Unsupported("singular values")
    summed, left = (rows, columns) if abs(ord) == 1 else (columns, rows)
    sums = lo.reduce("sum", lo.compute(abs, lo.widen(A)), (summed,), True)
    found = lo.cast(extreme(lo, "amax" if ord > 0 else "amin", sums, (left,), True), A.dtype)
    return found if keepdim else lo.reshape(found, dropped(A.shape, (rows, columns)))


@rule("pairwise_distance")
def pairwise_distance(
    lo: Lowering, x1: Node, x2: Node, p: Value = 2.0, eps: Value = 1e-6, keepdim: bool = False
) -> Node:
    """The norm of differences along the last axis, which are moved by ``eps``."""
    apart = lo.compute(lambda a, b: a - b, x1, x2)
    return norm(lo, lo.compute(lambda a, b: a + b, apart, eps), p, -1, keepdim)


@rule("logsumexp", "special.logsumexp")
def logsumexp(lo: Lowering, input: Node, dim: Value, keepdim: bool = False, *, out: Value = None) -> Node:
    result_type = to_float(input.dtype, lo.default)
    node = lo.widen(lo.cast(input, result_type))
    axes = lo.axes(dim, len(node.shape))
    for axis in axes:
        lo.require("!=", node.shape[axis], expr(0), "logsumexp over this dimension")
    high = lo.reduce("amax", node, axes, True)
    safe = lo.compute(lambda m: e.where(e.eq(abs(m), math.inf), 0.0, m), high)
    total = lo.reduce("sum", lo.compute(lambda a, m: e.exp(a - m), node, safe), axes, True)
    result = lo.derived(lo.compute(lambda s, m: e.log(s) + m, total, safe), "logsumexp", (node,))
    if not keepdim:
        result = lo.reshape(result, tuple(s for axis, s in enumerate(node.shape) if axis not in axes))
    return lo.cast(result, result_type)


@rule("nanmean")
def nanmean(
    lo: Lowering, input: Node, dim: Value = None, keepdim: bool = False, *, dtype: Value = None, out: Value = None
) -> Node:
    if not input.dtype.is_float or dtype is not None:
        raise Unsupported("integers or a dtype")
    axes, node = lo.axes(dim, len(input.shape)), lo.widen(input)
    missing = lo.compute(e.isnan, node)
    kept = lo.compute(lambda a: e.where(e.isnan(a), 0.0, a).derived("present", a), node)
    count = lo.reduce("sum", lo.cast(lo.pointwise("bit_not", missing), node.dtype), axes, keepdim)
    return lo.cast(lo.compute(lambda a, n: a / n, lo.reduce("sum", kept, axes, keepdim), count), input.dtype)
