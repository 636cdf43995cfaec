"""Lowers torch's mathematics of one operand to pointwise primitives."""

from __future__ import annotations

import math
from collections.abc import Callable

from framefuse.ir.dtypes import BOOL
from framefuse.ir.graph import Node
from framefuse.ir.values import Value
from framefuse.lower import element as e
from framefuse.lower.binary import power
from framefuse.lower.context import Lowering, rounded
from framefuse.lower.element import Element, fma, held_as, where
from framefuse.lower.promotion import to_float
from framefuse.lower.rules import Unsupported, register, rule

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
    if decimals and input.dtype.name not in ("float32", "float64"):
        raise Unsupported("decimals of integers, or rounded at each step")
    if not decimals:
        return _rounding("round")(lo, input)
    scale = math.pow(10.0, abs(lo.fixed(decimals, "a count of decimals")))

    def formula(a: Element) -> Element:
        scaled = a * scale if decimals > 0 else a / scale
        rounded = scaled.apply("round")
        return (rounded / scale if decimals > 0 else rounded * scale).derived("nothing", a)

    return lo.compute(formula, input)


@rule("frac")
def frac(lo: Lowering, input: Node, *, out: Value = None) -> Node:
    return lo.compute(lambda a: a - e.trunc(a), input)


@rule("neg", "negative", "__neg__", "aten._neg_view")
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


@rule("conj", "conj_physical", "aten._conj")
def conj(lo: Lowering, input: Node, *, out: Value = None) -> Node:
    return input


@rule("abs", "absolute", "__abs__")
def absolute(lo: Lowering, input: Node, *, out: Value = None) -> Node:
    return input if input.dtype.kind in ("bool", "uint") else lo.compute(abs, input)  # of bools: on a GPU alone


@rule("sign")
def sign(lo: Lowering, input: Node, *, out: Value = None) -> Node:
    return input if input.dtype is BOOL else lo.compute(e.unary("sign"), input)


@rule("sgn")
def sgn(lo: Lowering, input: Node, *, out: Value = None) -> Node:
    """Its gradient is zeros without memory, that of sign is zeros."""
    return sign(lo, input) if not input.dtype.is_float else lo.compute(_sgn, input)


def _sgn(a: Element) -> Element:
    return a.apply("sign").derived("faint", a)


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


@rule("logit", "special.logit")
def logit(lo: Lowering, input: Node, eps: Value = None, *, out: Value = None) -> Node:
    dtype = to_float(input.dtype, lo.default)
    if not isinstance(eps, (int, float, type(None))):
        raise Unsupported("a run-time eps")
    if eps is not None and eps < 0:  # which torch takes for none
        eps = None

    def formula(given: Element) -> Element:
        a = given
        if eps is not None:
            low = rounded(eps, dtype)
            high = rounded(1 - low, dtype)
            a = where(a < low, low, where(a > high, high, a))
        result = e.log(held_as(a / held_as(1.0 - a, dtype), dtype))
        return result.derived("logit", given) if eps is None else result.derived("logit_eps", given, numbers=(eps,))

    return lo.compute(formula, input, floating=True)


def _limits(name: str) -> float:
    return {"float16": 65504.0, "bfloat16": 3.3895313892515355e38, "float32": 3.4028234663852886e38}.get(
        name, 1.7976931348623157e308
    )
