"""Writes erfc of float32 and the inverse of erf, at most 2.5 ulp: a polynomial for each part of the axis."""

from __future__ import annotations

import math
from collections.abc import Sequence

from framefuse.codegen.llvm import coefficients as table
from framefuse.codegen.llvm.builder import Builder, Reg
from framefuse.codegen.llvm.math_calls import function
from framefuse.codegen.llvm.maths_float32 import log, reduced, scaled

ERFC_IS_ZERO = 10.5


def erfc(b: Builder, x: Reg) -> Reg:
    """``(1 + P(k)) / (1 + 2a) * exp(-a*a)`` of a = |x|, k = (a - 2) / (a + 2), as M. M. Shepherd and J. G. Laframboise,
    "Chebyshev Approximation of (1 + 2x) exp(x^2) erfc x in 0 <= x < inf", Mathematics of Computation 36 (1981); near
    zero 1 - erf(x).
    """
    a = b.intrinsic("fabs", x)
    a = b.select(b.compare("ogt", a, b.like(ERFC_IS_ZERO, a)), b.like(ERFC_IS_ZERO, a), a)
    one, two = b.like(1.0, x), b.like(2.0, x)
    k = b.div(b.sub(a, two), b.add(a, two))
    over, under = b.polynomial(k, table.ERFC), b.div(one, b.fma(a, two, one))
    factor = b.fma(over, under, under)
    rest = b.fma(b.fma(b.neg(factor), a, b.like(0.5, x)), two, b.sub(over, factor))  # what the division lost
    factor = b.fma(rest, under, factor)
    square = b.mul(a, a)
    n, r = reduced(b, b.neg(square))
    r = b.sub(r, b.fma(a, a, b.neg(square)))  # what the rounding of the square lost
    power = b.fma(b.mul(r, r), b.polynomial(r, table.EXP), r)
    result = scaled(b, b.fma(factor, power, factor), n)
    result = b.select(b.compare("olt", x, b.like(0.0, x)), b.sub(two, result), result)
    erf = b.fma(x, b.polynomial(b.mul(x, x), table.ERF_SMALL), x)
    return b.select(b.compare("olt", a, b.like(0.5, x)), b.sub(one, erf), result)


def erfinv_float32(b: Builder, y: Reg) -> Reg:
    """``y`` times a polynomial in w = -log(1 - y*y), and in its root where w is 5 or more, as Mike Giles,
    "Approximating the erfinv function", GPU Computing Gems (2011).
    """
    a = b.intrinsic("fabs", y)
    w = b.neg(log(b, _complement(b, a)))
    near = b.compare("olt", w, b.like(5.0, w))
    t = b.select(near, w, b.sub(b.intrinsic("sqrt", w), b.like(3.0, w)))
    return _limited(b, y, a, _times(b, a, t, table.ERFINV_CENTRE, (near, table.ERFINV_TAIL)))


def erfinv_float64(b: Builder, y: Reg) -> Reg:
    """The same with more terms, and with a third polynomial where the root is 4 or more, which is seldom met."""
    a = b.intrinsic("fabs", y)
    w = b.neg(function(b, "log", _complement(b, a)))
    root = b.intrinsic("sqrt", w)
    near = b.compare("olt", w, b.like(5.0, w))
    t = b.select(near, w, b.sub(root, b.like(3.0, w)))
    result = _times(b, a, t, table.ERFINV64_CENTRE, (near, table.ERFINV64_TAIL))
    far = b.compare("ogt", root, b.like(4.0, w))

    def outside() -> list[Reg]:
        return [b.select(far, _times(b, a, b.sub(root, b.like(5.0, w)), table.ERFINV64_FAR), result)]

    return _limited(b, y, a, b.guarded(b.any_lane(far), [result], outside)[0])


def _complement(b: Builder, a: Reg) -> Reg:
    """``1 - a*a``, rounded once."""
    return b.fma(b.neg(a), a, b.like(1.0, a))


def _times(b: Builder, a: Reg, t: Reg, terms: Sequence[float], other: tuple[Reg, Sequence[float]] | None = None) -> Reg:
    """``a`` times the polynomial in ``t``; where the mask of ``other`` is false, with its coefficients. The constant is
    in two parts, the last of which is the rounded one.
    """
    mask, others = other or (None, terms)
    chosen = [
        b.like(one, t) if mask is None else b.select(mask, b.like(one, t), b.like(two, t))
        for one, two in zip(terms, others, strict=True)
    ]
    total = chosen[0]
    for coefficient in chosen[1:-1]:
        total = b.fma(total, t, coefficient)
    return b.fma(a, chosen[-1], b.mul(a, total))


def _limited(b: Builder, y: Reg, a: Reg, result: Reg) -> Reg:
    """erfinv where it is infinite and where it is none; the sign of ``y``."""
    one = b.like(1.0, a)
    result = b.select(b.compare("oeq", a, one), b.like(math.inf, a), result)
    result = b.select(b.compare("ogt", a, one), b.like(math.nan, a), result)
    return b.intrinsic("copysign", result, y)
