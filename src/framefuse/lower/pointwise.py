"""Lowers torch's elementwise arithmetic, comparisons and mathematics to pointwise primitives."""

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
from framefuse.lower.counted_shapes import positions
from framefuse.lower.element import Element, fma, where
from framefuse.lower.promotion import is_number, result_dtype, to_float
from framefuse.lower.rules import Shapes, Unsupported, register, rule

# ---- mathematics: float result, one row each -------------------------------------------------------------------------

MATHEMATICS: dict[str, Callable[..., Element]] = {
    **{
        name: e.unary(name)
        for name in (
            "exp", "exp2", "expm1", "log", "log2", "log10", "log1p", "sqrt", "rsqrt", "sin", "cos", "tan", "asin",
            "acos", "atan", "sinh", "cosh", "tanh", "asinh", "acosh", "atanh", "erf", "erfc", "erfinv", "lgamma",
            "digamma", "sigmoid", "reciprocal",
        )
    },
    "deg2rad": lambda a: a * (math.pi / 180.0),
    "rad2deg": lambda a: a * (180.0 / math.pi),
    "sinc": lambda a: where(e.eq(a, 0.0), 1.0, (a * math.pi).apply("sin") / (a * math.pi)).derived("sinc", a),
}  # fmt: skip
ALIASES = {
    "arcsin": "asin", "arccos": "acos", "arctan": "atan", "arcsinh": "asinh", "arccosh": "acosh", "arctanh": "atanh",
    "special.exp2": "exp2", "special.expm1": "expm1", "special.log1p": "log1p", "special.erf": "erf",
    "special.erfc": "erfc", "special.erfinv": "erfinv", "special.gammaln": "lgamma", "special.digamma": "digamma",
    "special.psi": "digamma", "special.expit": "sigmoid", "special.sinc": "sinc",
}  # fmt: skip


def _rough_erf(a: Element) -> Element:
    """Abramowitz and Stegun 7.1.26, an absolute error of 1.5e-7: what eager's vectors of 16-bit floats compute."""
    t = 1.0 / fma(abs(a), 0.3275911, a.number(1.0))
    r = t.number(1.061405429)
    for coefficient in (-1.453152027, 1.421413741, -0.284496736, 0.254829592):
        r = fma(r, t, t.number(coefficient))
    return fma(-e.exp(-(a * a)) * t, r, a.number(1.0)).apply("copysign", a).derived("erf", a)


# In place of those above, where 16-bit floats are to have eager's digits.
ROUGH: dict[str, Callable[..., Element]] = {"erf": _rough_erf}


def _mathematics(name: str, formula: Callable[..., Element]) -> Callable[..., Node]:
    def lowered(lo: Lowering, input: Node, *, out: Value = None) -> Node:
        rough = lo.exact and input.dtype.compute != input.dtype.name
        return lo.compute(ROUGH.get(name, formula) if rough else formula, input, floating=True)

    return lowered


for _name, _formula in MATHEMATICS.items():
    _names = (_name, *(alias for alias, known in ALIASES.items() if known == _name))
    register(_names, "pointwise", _mathematics(_name, _formula))

# ---- operations that keep the dtype ----------------------------------------------------------------------------------


def _rounding(op: str) -> Callable[..., Node]:
    def lowered(lo: Lowering, input: Node, *, out: Value = None) -> Node:
        return lo.compute(e.unary(op), input) if input.dtype.is_float else input

    return lowered


for _name, _others in {"floor": (), "ceil": (), "trunc": ("fix",)}.items():
    register((_name, *_others), "pointwise", _rounding(_name))


@rule("round", "special.round")
def round_(lo: Lowering, input: Node, *, decimals: int = 0, out: Value = None) -> Node:
    if decimals:
        raise Unsupported("decimals")
    return _rounding("round")(lo, input)


@rule("frac")
def frac(lo: Lowering, input: Node, *, out: Value = None) -> Node:
    return lo.compute(lambda a: a - e.trunc(a), input)


@rule("neg", "negative", "__neg__")
def neg(lo: Lowering, input: Node, *, out: Value = None) -> Node:
    if input.dtype is BOOL:
        raise Unsupported("bool")
    return lo.compute(lambda a: -a, input)


@rule("positive", "__pos__", "resolve_conj", "resolve_neg")
def positive(lo: Lowering, input: Node, *, out: Value = None) -> Node:
    return input


@rule("real")
def real(lo: Lowering, input: Node) -> Node:
    return input


@rule("conj", "conj_physical")
def conj(lo: Lowering, input: Node, *, out: Value = None) -> Node:
    return input


@rule("abs", "absolute", "__abs__")
def absolute(lo: Lowering, input: Node, *, out: Value = None) -> Node:
    return input if input.dtype.kind == "uint" else lo.compute(abs, input)


@rule("sign", "sgn")
def sign(lo: Lowering, input: Node, *, out: Value = None) -> Node:
    return input if input.dtype is BOOL else lo.compute(e.unary("sign"), input)


@rule("square")
def square(lo: Lowering, input: Node, *, out: Value = None) -> Node:
    return power(lo, input, 2)


@rule("signbit")
def signbit(lo: Lowering, input: Node, *, out: Value = None) -> Node:
    if input.dtype.kind in ("bool", "uint"):
        return lo.full(False, BOOL, input.shape, input.device)
    return lo.compute(e.unary("signbit"), input)


@rule("isnan")
def isnan(lo: Lowering, input: Node) -> Node:
    if not input.dtype.is_float:
        return lo.full(False, BOOL, input.shape, input.device)
    return lo.compute(e.isnan, input)


@rule("isinf")
def isinf(lo: Lowering, input: Node) -> Node:
    if not input.dtype.is_float:
        return lo.full(False, BOOL, input.shape, input.device)
    return lo.compute(lambda a: e.eq(abs(a), math.inf), input)


@rule("isfinite")
def isfinite(lo: Lowering, input: Node) -> Node:
    if not input.dtype.is_float:
        return lo.full(True, BOOL, input.shape, input.device)
    return lo.compute(lambda a: abs(a) < math.inf, input)


@rule("isposinf")
def isposinf(lo: Lowering, input: Node, *, out: Value = None) -> Node:
    return isinf(lo, input) if not input.dtype.is_float else lo.compute(lambda a: e.eq(a, math.inf), input)


@rule("isneginf")
def isneginf(lo: Lowering, input: Node, *, out: Value = None) -> Node:
    return isinf(lo, input) if not input.dtype.is_float else lo.compute(lambda a: e.eq(a, -math.inf), input)


@rule("nan_to_num")
def nan_to_num(
    lo: Lowering, input: Node, nan: Value = None, posinf: Value = None, neginf: Value = None, *, out: Value = None
) -> Node:
    if not input.dtype.is_float:
        return input
    largest = _limits(input.dtype.name)
    nan = 0.0 if nan is None else nan
    high = largest if posinf is None else posinf
    low = -largest if neginf is None else neginf

    def formula(a: Element) -> Element:
        finite = where(e.eq(a, math.inf), high, where(e.eq(a, -math.inf), low, a))
        return where(e.isnan(a), nan, finite).derived("nan_to_num", a)

    return lo.compute(formula, input)


# ---- arithmetic of two operands --------------------------------------------------------------------------------------


def _operands(lo: Lowering, a: Value, b: Value) -> tuple[Value, Value]:
    if not isinstance(a, Node) and not isinstance(b, Node):
        raise Unsupported("no tensor operand")
    return a, b


@rule("add", "__add__", "__radd__", "__iadd__")
def add(lo: Lowering, input: Value, other: Value, *, alpha: Value = 1, out: Value = None) -> Node:
    dtype = result_dtype(_operands(lo, input, other), lo.default)
    if dtype is BOOL:
        return lo.compute(lambda a, b: a | b, input, other)
    return lo.compute(lambda a, b: _scaled(a, b, alpha, dtype), input, other, narrow=True)


@rule("sub", "subtract", "__sub__", "__isub__")
def sub(lo: Lowering, input: Value, other: Value, *, alpha: Value = 1, out: Value = None) -> Node:
    dtype = result_dtype(_operands(lo, input, other), lo.default)
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
    return fma(b, rounded(alpha, dtype) if known else _rounded(a.number(alpha), dtype), a)


def _rounded(value: Element, dtype: DType) -> Element:
    """The value as eager's tensor of ``dtype`` holds it between two steps of one operation."""
    return value if dtype is value.node.dtype else value.cast(dtype).cast(value.node.dtype)


def _is_one(alpha: Value) -> bool:
    return isinstance(alpha, (bool, int, float)) and alpha == 1


@rule("mul", "multiply", "__mul__", "__rmul__", "__imul__")
def mul(lo: Lowering, input: Value, other: Value, *, out: Value = None) -> Node:
    if result_dtype(_operands(lo, input, other), lo.default) is BOOL:
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
        return lo.compute(lambda a, b: a / b, *_operands(lo, input, other), floating=True, wide=wide)
    dtype = result_dtype(_operands(lo, input, other), lo.default)
    if dtype.is_float:
        if isinstance(other, Node) and any(size is not ONE for size in other.shape):  # eager rounds the quotient first
            return lo.compute(lambda a, b: e.trunc(_rounded(a / b, dtype)), input, other)
        return lo.compute(lambda a, b: e.trunc(a / b), input, other)
    if dtype is BOOL:
        raise Unsupported("bool")
    return lo.compute(lambda a, b: (a - a.apply("fmod", b)).apply("floordiv", b), input, other)


@rule("__rtruediv__", "__rdiv__")
def rdiv(lo: Lowering, input: Value, other: Value) -> Node:
    return mul(lo, lo.compute(e.unary("reciprocal"), input, floating=True), other)  # eager's own two steps


def _division(op: str) -> Callable[..., Node]:
    def lowered(lo: Lowering, input: Value, other: Value, *, out: Value = None) -> Node:
        if result_dtype(_operands(lo, input, other), lo.default) is BOOL:
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
    if lo.differentiable and result_dtype(_operands(lo, input, other), lo.default).is_float:
        raise Unsupported("a gradient that eager refuses")


floor_divide, remainder = _division("floordiv"), _division("remainder")
register(("floor_divide", "__floordiv__", "__ifloordiv__"), "pointwise", _quotient)
register(("remainder", "__mod__", "__imod__"), "pointwise", remainder)
register(("fmod",), "pointwise", _division("fmod"))
register(("__rfloordiv__",), "pointwise", lambda lo, input, other: _quotient(lo, other, input))
register(("__rmod__",), "pointwise", lambda lo, input, other: remainder(lo, other, input))


@rule("pow", "__pow__", "__ipow__")
def power(lo: Lowering, input: Value, exponent: Value, *, out: Value = None) -> Node:
    dtype = result_dtype(_operands(lo, input, exponent), lo.default)
    if dtype is BOOL:
        raise Unsupported("bool")
    twice = lo.exact and dtype is BFLOAT16  # eager's vectors of bfloat16 round each product

    def step(value: Element) -> Element:
        return _rounded(value, dtype) if twice else value

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
    1.0: lambda a, step: a,
    2.0: lambda a, step: a * a,
    3.0: lambda a, step: step(a * a) * a,
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
        return lo.compute(formula, *_operands(lo, input, other), floating=floating, narrow=True)

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


# ---- comparisons and logic -------------------------------------------------------------------------------------------


def _comparison(op: str) -> Callable[..., Node]:
    def lowered(lo: Lowering, input: Value, other: Value, *, out: Value = None) -> Node:
        a, b = _operands(lo, input, other)
        return lo.compute(lambda x, y: x.apply(op, y), a, b, narrow=True)

    return lowered


COMPARISONS = {
    "eq": (),
    "ne": ("not_equal",),
    "lt": ("less",),
    "le": ("less_equal",),
    "gt": ("greater",),
    "ge": ("greater_equal",),
}
for _name, _more in COMPARISONS.items():
    register((_name, f"__{_name}__", *_more), "pointwise", _comparison(_name))


def truth(lo: Lowering, node: Node) -> Node:
    """The node as bool: unequal zero."""
    if node.dtype is BOOL:
        return node
    return lo.pointwise("ne", node, lo.full(0, node.dtype, node.shape, node.device))


def _logical(formula: Callable[..., Element]) -> Callable[..., Node]:
    def lowered(lo: Lowering, input: Node, other: Node, *, out: Value = None) -> Node:
        return lo.compute(formula, truth(lo, input), truth(lo, other))

    return lowered


register(("logical_and",), "pointwise", _logical(lambda a, b: a & b))
register(("logical_or",), "pointwise", _logical(lambda a, b: a | b))
register(("logical_xor",), "pointwise", _logical(lambda a, b: a ^ b))


@rule("logical_not")
def logical_not(lo: Lowering, input: Node, *, out: Value = None) -> Node:
    return lo.pointwise("bit_not", truth(lo, input))


def _bits(op: str, swap: bool = False) -> Callable[..., Node]:
    def lowered(lo: Lowering, input: Value, other: Value, *, out: Value = None) -> Node:
        a, b = _operands(lo, other, input) if swap else _operands(lo, input, other)
        if result_dtype((a, b), lo.default).is_float:
            raise Unsupported("floats")
        return lo.compute(e.binary(op), a, b)

    return lowered


for _name in ("and", "or", "xor"):
    register((f"bitwise_{_name}", f"__{_name}__", f"__i{_name}__"), "pointwise", _bits(f"bit_{_name}"))
    register((f"__r{_name}__",), "pointwise", _bits(f"bit_{_name}", swap=True))
register(("bitwise_left_shift", "__lshift__", "__ilshift__"), "pointwise", _bits("shift_left"))
register(("bitwise_right_shift", "__rshift__", "__irshift__"), "pointwise", _bits("shift_right"))


@rule("bitwise_not", "__invert__")
def bitwise_not(lo: Lowering, input: Node, *, out: Value = None) -> Node:
    if input.dtype.is_float:
        raise Unsupported("floats")
    return lo.pointwise("bit_not", input)


@rule("where")
def where_(
    lo: Lowering, condition: Node, input: Value = None, other: Value = None, *, out: Value = None
) -> Node | Shapes:
    if input is None and other is None:
        return positions(condition)
    if condition.dtype is not BOOL or not (isinstance(input, Node) or isinstance(other, Node) or is_number(input)):
        raise Unsupported("condition is no bool")
    dtype = result_dtype((input, other), lo.default)
    return select_where(lo, condition, input, other, dtype)


def select_where(lo: Lowering, condition: Node, a: Value, b: Value, dtype: Value) -> Node:
    """``a`` where the condition holds, else ``b``, both converted to ``dtype``: no arithmetic, so no rounding."""
    shapes = [condition.shape] + [value.shape for value in (a, b) if isinstance(value, Node)]
    shape = lo.broadcast(*shapes)
    parts = [
        lo.expand(lo.cast(value, dtype), shape)
        if isinstance(value, Node)
        else lo.full(value, dtype, shape, condition.device)
        for value in (a, b)
    ]
    return lo.pointwise("where", lo.expand(condition, shape), *parts)


@rule("masked_fill")
def masked_fill(lo: Lowering, input: Node, mask: Node, value: Value) -> Node:
    if isinstance(value, Node) and value.shape:
        raise Unsupported("value has dimensions")
    if mask.dtype is not BOOL:
        raise Unsupported("mask is no bool")
    return select_where(lo, mask, value, input, input.dtype)


@rule("heaviside")
def heaviside(lo: Lowering, input: Node, values: Node, *, out: Value = None) -> Node:
    def formula(a: Element, v: Element) -> Element:
        return where(e.eq(a, 0), v, where(a > 0, a.number(1), 0))

    if input.dtype is BOOL:
        return lo.compute(lambda a, v: a | v, input, values)
    return lo.compute(formula, input, values)


@rule("logit", "special.logit")
def logit(lo: Lowering, input: Node, eps: Value = None, *, out: Value = None) -> Node:
    dtype = to_float(input.dtype, lo.default)
    if not isinstance(eps, (int, float, type(None))):
        raise Unsupported("a run-time eps")

    def formula(given: Element) -> Element:
        a = given
        if eps is not None:
            low = rounded(eps, dtype)
            high = rounded(1 - low, dtype)
            a = where(a < low, low, where(a > high, high, a))
        result = e.log(_rounded(a / _rounded(1.0 - a, dtype), dtype))
        return result.derived("logit", given) if eps is None else result.derived("logit_eps", given, numbers=(eps,))

    return lo.compute(formula, input, floating=True)


def _limits(name: str) -> float:
    return {"float16": 65504.0, "bfloat16": 3.3895313892515355e38, "float32": 3.4028234663852886e38}.get(
        name, 1.7976931348623157e308
    )


@rule("isclose")
def isclose(
    lo: Lowering, input: Node, other: Node, rtol: Value = 1e-05, atol: Value = 1e-08, equal_nan: bool = False
) -> Node:
    if input.dtype is not other.dtype or not input.dtype.is_float or input.dtype.compute != input.dtype.name:
        raise Unsupported("integers or 16-bit floats")

    def formula(a: Element, b: Element) -> Element:
        close: Element = e.eq(a, b) | ((abs(a - b) <= atol + abs(b * rtol)) & (abs(a - b) < math.inf))
        return close | (e.isnan(a) & e.isnan(b)) if equal_nan else close

    return lo.compute(formula, input, other)
