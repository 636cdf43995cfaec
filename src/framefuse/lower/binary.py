"""Lowers torch's elementwise arithmetic of two and more operands to pointwise primitives."""

from __future__ import annotations

import math
from collections.abc import Callable

from framefuse.ir.builder import ONE, ZERO
from framefuse.ir.dtypes import BFLOAT16, BOOL, DType
from framefuse.ir.graph import Node
from framefuse.ir.numbers import Expr
from framefuse.ir.values import Value
from framefuse.lower import element as e
from framefuse.lower.context import Lowering, rounded
from framefuse.lower.element import Element, fma, held_as, where
from framefuse.lower.promotion import result_dtype
from framefuse.lower.rules import Unsupported, register, rule


def operands(lo: Lowering, a: Value, b: Value) -> tuple[Value, Value]:
    """Both, of which one at least is a tensor."""
    if not isinstance(a, Node) and not isinstance(b, Node):
        raise Unsupported("no tensor operand")
    return a, b


@rule("add", "__add__", "__radd__", "__iadd__")
def add(lo: Lowering, input: Value, other: Value, *, alpha: Value = 1, out: Value = None) -> Node:
    dtype = result_dtype(operands(lo, input, other), lo.default)
    if dtype is BOOL:
        return lo.compute(lambda a, b: a | b, input, other)
    return lo.compute(lambda a, b: _scaled(a, b, alpha, dtype), input, other, narrow=True)


@rule("sub", "subtract", "__sub__", "__isub__")
def sub(lo: Lowering, input: Value, other: Value, *, alpha: Value = 1, out: Value = None) -> Node:
    dtype = result_dtype(operands(lo, input, other), lo.default)
    if dtype is BOOL:
        raise Unsupported("bool")
    if _is_one(alpha):
        return lo.compute(lambda a, b: a - b, input, other, narrow=True)
    if not isinstance(alpha, (int, float)):
        raise Unsupported("a run-time alpha")
    return lo.compute(lambda a, b: _scaled(a, b, -alpha, dtype), input, other, narrow=True)


@rule("rsub", "__rsub__")
def rsub(lo: Lowering, input: Value, other: Value, alpha: Value = 1) -> Node:
    return sub(lo, other, input, alpha=alpha)


def _scaled(a: Element, b: Element, alpha: Value, dtype: DType) -> Element:
    if _is_one(alpha):
        return a + b
    if not dtype.is_float:
        whole: Element = a + b * alpha
        return whole
    known = isinstance(alpha, (int, float))
    return fma(b, rounded(alpha, dtype) if known else held_as(a.number(alpha), dtype), a)


def _is_one(alpha: Value) -> bool:
    return isinstance(alpha, (bool, int, float)) and alpha == 1


@rule("mul", "multiply", "__mul__", "__rmul__", "__imul__")
def mul(lo: Lowering, input: Value, other: Value, *, out: Value = None) -> Node:
    if result_dtype(operands(lo, input, other), lo.default) is BOOL:
        return lo.compute(lambda a, b: a & b, input, other)
    return lo.compute(lambda a, b: a * b, input, other, wide=_is_scalar(other))


def _is_scalar(value: Value) -> bool:
    """Whether eager's products and quotients take this operand, a number or a 0-d tensor, with all its digits."""
    return not isinstance(value, Node) or not value.shape


@rule("div", "divide", "true_divide", "__truediv__", "__div__", "__idiv__", "__itruediv__")
def div(lo: Lowering, input: Value, other: Value, *, rounding_mode: str | None = None, out: Value = None) -> Node:
    if rounding_mode == "floor":
        return floor_divide(lo, input, other)
    if rounding_mode is None:
        wide = _is_scalar(other)
        there = isinstance(input, Node) and input.device != "cpu"
        if wide and there and getattr(other, "device", "cpu") == "cpu":  # eager multiplies by the inverse of a number
            return lo.compute(lambda a, b: a * e.reciprocal(b), input, other, floating=True, wide=True)
        return lo.compute(lambda a, b: a / b, *operands(lo, input, other), floating=True, wide=wide)
    dtype = result_dtype(operands(lo, input, other), lo.default)
    if dtype.is_float:
        if isinstance(other, Node) and any(size is not ONE for size in other.shape):  # eager rounds the quotient first
            return lo.compute(lambda a, b: e.trunc(held_as(a / b, dtype)).derived("nothing", a, b), input, other)
        return lo.compute(lambda a, b: e.trunc(a / b).derived("nothing", a, b), input, other)
    if dtype is BOOL:
        raise Unsupported("bool")
    return lo.compute(lambda a, b: (a - a.apply("fmod", b)).apply("floordiv", b), input, other)


@rule("__rtruediv__", "__rdiv__")
def rdiv(lo: Lowering, input: Value, other: Value) -> Node:
    return mul(lo, lo.compute(e.unary("reciprocal"), input, floating=True), other)  # eager's own two steps


def _division(op: str) -> Callable[..., Node]:
    def lowered(lo: Lowering, input: Value, other: Value, *, out: Value = None) -> Node:
        if result_dtype(operands(lo, input, other), lo.default) is BOOL:
            raise Unsupported("bool")
        if op == "remainder" and not isinstance(input, Node):
            _refused(lo, input, other)
        return lo.compute(e.binary(op), input, other, narrow=op != "floordiv")

    return lowered


def _quotient(lo: Lowering, input: Value, other: Value, *, out: Value = None) -> Node:
    """floor_divide: eager's own has no derivative (a division that is rounded has: 0), and says so to who asks."""
    _refused(lo, input, other)
    return floor_divide(lo, input, other)


def _refused(lo: Lowering, input: Value, other: Value) -> None:
    if lo.differentiable and result_dtype(operands(lo, input, other), lo.default).is_float:
        raise Unsupported("a gradient that eager refuses")


floor_divide, remainder = _division("floordiv"), _division("remainder")
register(("floor_divide", "__floordiv__", "__ifloordiv__"), "pointwise", _quotient)
register(("remainder", "__mod__", "__imod__"), "pointwise", remainder)
register(("fmod",), "pointwise", _division("fmod"))
register(("__rfloordiv__",), "pointwise", lambda lo, input, other: _quotient(lo, other, input))
register(("__rmod__",), "pointwise", lambda lo, input, other: remainder(lo, other, input))


@rule("pow", "__pow__", "__ipow__")
def power(lo: Lowering, input: Value, exponent: Value, *, out: Value = None) -> Node:
    dtype = result_dtype(operands(lo, input, exponent), lo.default)
    if dtype is BOOL:
        raise Unsupported("bool")
    twice = lo.exact and dtype is BFLOAT16  # eager's vectors of bfloat16 round each product

    def step(value: Element) -> Element:
        return held_as(value, dtype) if twice else value

    if isinstance(exponent, Expr) and not dtype.is_float and dtype.kind != "complex":  # eager refuses negative ones
        lo.require("<=", ZERO, exponent, "a power of integers")
    if exponent is False and dtype.is_float:  # no number 0 to eager's derivative, which divides by the base
        return lo.compute(lambda a, b: a.number(1).derived("power", a, numbers=(0.0, -1.0)), input, exponent)
    if isinstance(exponent, (int, float)) and float(exponent) in _POWERS:
        chosen = _POWERS[float(exponent)]
        rooted = dtype.name == "float16" and abs(exponent) == 0.5  # pow itself: of -inf it is not NaN
        if dtype.is_float and not rooted:
            return lo.compute(lambda a, b: chosen(a, step), input, exponent)
        if float(exponent) in (0.0, 1.0, 2.0, 3.0):
            return lo.compute(lambda a, b: chosen(a, step), input, exponent)
    if isinstance(input, (int, float)) and input == 1:
        return lo.compute(lambda a, b: b.number(1).derived("nothing", b), input, exponent)
    if isinstance(input, (int, float)) and input == 2 and dtype.is_float:
        return lo.compute(lambda a, b: b.apply("exp2"), input, exponent)
    return lo.compute(lambda a, b: a.apply("pow", b), input, exponent, narrow=True)


# pow with these exponents is what eager computes without calling pow.
_POWERS: dict[float, Callable[[Element, Callable[[Element], Element]], Element]] = {
    0.0: lambda a, step: a.number(1).derived("nothing", a),
    1.0: lambda a, step: a.derived("power", a, numbers=(1.0, 0.0)),
    2.0: lambda a, step: (a * a).derived("power", a, numbers=(2.0, 1.0)),
    3.0: lambda a, step: (step(a * a) * a).derived("power", a, numbers=(3.0, 2.0)),
    0.5: lambda a, step: e.sqrt(a),
    -0.5: lambda a, step: e.rsqrt(a).derived("power", a, numbers=(-0.5, -1.5)),
    -1.0: lambda a, step: e.reciprocal(a),
    -2.0: lambda a, step: e.reciprocal(step(a * a)).derived("power", a, numbers=(-2.0, -3.0)),
}


@rule("__rpow__")
def rpow(lo: Lowering, input: Value, other: Value) -> Node:
    return power(lo, other, input)


def _float_binary(formula: Callable[..., Element], floating: bool = True) -> Callable[..., Node]:
    def lowered(lo: Lowering, input: Value, other: Value, *, out: Value = None) -> Node:
        return lo.compute(formula, *operands(lo, input, other), floating=floating, narrow=True)

    return lowered


def _log_add(a: Element, b: Element) -> Element:
    """log(exp(a) + exp(b)) about the larger operand; equal infinities stay what they are."""
    high, low = e.maximum(a, b), e.minimum(a, b)
    same = e.eq(a, b) & e.eq(abs(a), math.inf)
    return where(same, a, high + e.log1p(e.exp(low - high))).derived("logaddexp", a, b)


def xlogy_of(a: Element, b: Element) -> Element:
    """``a * log(b)``, 0 where ``a`` is."""
    return where(e.isnan(b), b, where(e.eq(a, 0.0), 0.0, a * e.log(b))).derived("xlogy", a, b)


register(("atan2", "arctan2"), "pointwise", _float_binary(e.binary("atan2")))
register(("copysign",), "pointwise", _float_binary(e.binary("copysign")))
register(("hypot",), "pointwise", _float_binary(e.binary("hypot")))
register(("nextafter",), "pointwise", lambda lo, input, other, out=None: _nextafter(lo, input, other))
register(("logaddexp",), "pointwise", _float_binary(_log_add))
register(
    ("special.xlogy", "xlogy"),
    "pointwise",
    _float_binary(xlogy_of),
)


def _nextafter(lo: Lowering, input: Node, other: Node) -> Node:
    if input.dtype.compute != input.dtype.name or input.dtype is not other.dtype:
        raise Unsupported("16-bit nextafter")
    return lo.compute(e.binary("nextafter"), input, other)


def _extreme(op: str, logical: Callable[[Element, Element], Element]) -> Callable[..., Node]:
    def lowered(lo: Lowering, input: Value, other: Value, *, out: Value = None) -> Node:
        if not isinstance(input, Node) or not isinstance(other, Node):
            raise Unsupported("two tensors are needed")
        dtype = result_dtype((input, other), lo.default)
        return lo.compute(logical if dtype is BOOL else e.binary(op), input, other)

    return lowered


maximum, minimum = _extreme("maximum", lambda a, b: a | b), _extreme("minimum", lambda a, b: a & b)
register(("maximum",), "pointwise", maximum)
register(("minimum",), "pointwise", minimum)
register(("fmax",), "pointwise", _extreme("fmax", lambda a, b: a | b))
register(("fmin",), "pointwise", _extreme("fmin", lambda a, b: a & b))


@rule("clamp", "clip")
def clamp(lo: Lowering, input: Node, min: Value = None, max: Value = None, *, out: Value = None) -> Node:
    operands = [value for value in (input, min, max) if value is not None]
    dtype = result_dtype(operands, lo.default)
    if len(operands) == 1:
        raise Unsupported("no bound")
    if dtype is BOOL:  # the larger of two bools is their or, the smaller their and
        low, high = (False if min is None else min), (True if max is None else max)
        return lo.compute(lambda a, low, high: (a | low) & high, input, low, high)
    if min is None:
        return lo.compute(lambda a, high: e.minimum(high, a).derived("clamp_max", a, high), input, max, dtype=dtype)
    if max is None:
        return lo.compute(lambda a, low: e.maximum(low, a).derived("clamp_min", a, low), input, min, dtype=dtype)
    return lo.compute(
        lambda a, low, high: e.minimum(high, e.maximum(low, a)).derived("clamp", a, low, high),
        input, min, max, dtype=dtype,
    )  # fmt: skip


@rule("clamp_min")
def clamp_min(lo: Lowering, input: Node, min: Value, *, out: Value = None) -> Node:
    return clamp(lo, input, min)


@rule("clamp_max")
def clamp_max(lo: Lowering, input: Node, max: Value, *, out: Value = None) -> Node:
    return clamp(lo, input, None, max)


@rule("addcmul")
def addcmul(lo: Lowering, input: Node, tensor1: Node, tensor2: Node, *, value: Value = 1, out: Value = None) -> Node:
    dtype = result_dtype((input, tensor1, tensor2), lo.default)
    if dtype.is_float:
        scaled = (lambda a: a) if _is_one(value) else (lambda a: a * value)
        return lo.compute(lambda a, b, c: fma(scaled(b), c, a), input, tensor1, tensor2)
    return lo.compute(lambda a, b, c: a + b * value * c, input, tensor1, tensor2)


@rule("addcdiv")
def addcdiv(lo: Lowering, input: Node, tensor1: Node, tensor2: Node, *, value: Value = 1, out: Value = None) -> Node:
    if not result_dtype((input, tensor1, tensor2), lo.default).is_float:
        raise Unsupported("integers")
    return lo.compute(lambda a, b, c: a + (b if _is_one(value) else b * value) / c, input, tensor1, tensor2)


@rule("lerp")
def lerp(lo: Lowering, input: Node, end: Node, weight: Value, *, out: Value = None) -> Node:
    def formula(a: Element, b: Element, w: Element) -> Element:
        small = abs(w) < 0.5
        return fma(where(small, w, w - 1.0), b - a, where(small, a, b))

    return lo.compute(formula, input, end, weight, dtype=input.dtype)
