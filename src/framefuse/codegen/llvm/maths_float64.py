"""Writes the functions that are composed in double precision: sigmoid, digamma, the inverse error function."""

from __future__ import annotations

import math

from framefuse.codegen.llvm.builder import Builder, Reg
from framefuse.codegen.llvm.math_calls import function

# Mike Giles, "Approximating the erfinv function", GPU Computing Gems (2011), the single-precision variant.
ERFINV_CENTRE = (
    2.81022636e-08, 3.43273939e-07, -3.5233877e-06, -4.39150654e-06, 0.00021858087, -0.00125372503, -0.00417768164,
    0.246640727, 1.50140941,
)  # fmt: skip
ERFINV_TAIL = (
    -0.000200214257, 0.000100950558, 0.00134934322, -0.00367342844, 0.00573950773, -0.0076224613, 0.00943887047,
    1.00167406, 2.83297682,
)  # fmt: skip
# Bernoulli numbers B(2k) / (2k) of digamma's asymptotic series, highest power of 1/x**2 first.
DIGAMMA_SERIES = (
    -1 / 12, 691 / 32760, -1 / 132, 1 / 240, -1 / 252, 1 / 120, -1 / 12,
)  # fmt: skip
DIGAMMA_STEPS = 10


def sigmoid(b: Builder, x: Reg) -> Reg:
    one = b.like(1.0, x)
    return b.div(one, b.add(one, function(b, "exp", b.neg(x))))


def erfinv(b: Builder, y: Reg) -> Reg:
    """Giles' approximation, then steps of Newton's method on erf(x) - |y|; far out on the logarithm of the complement,
    which has digits left there and is nearly a parabola.
    """
    narrow = y.elem == "float"
    y = b.convert("fpext", y, "double")
    one = b.like(1.0, y)
    a = b.intrinsic("fabs", y)
    w = b.neg(function(b, "log", b.mul(b.sub(one, a), b.add(one, a))))
    centre = b.polynomial(b.sub(w, b.like(2.5, w)), ERFINV_CENTRE)
    tail = b.polynomial(b.sub(b.intrinsic("sqrt", w), b.like(3.0, w)), ERFINV_TAIL)
    x = b.mul(a, b.select(b.compare("olt", w, b.like(5.0, w)), centre, tail))
    for _ in range(2 if narrow else 4):
        rest = function(b, "erfc", x)
        far = b.mul(rest, function(b, "log", b.div(rest, b.sub(one, a))))
        miss = b.select(b.compare("ogt", a, b.like(0.5, a)), far, b.sub(a, function(b, "erf", x)))
        slope = b.mul(b.like(2 / math.sqrt(math.pi), x), function(b, "exp", b.neg(b.mul(x, x))))
        x = b.add(x, b.div(miss, slope))
    x = b.intrinsic("copysign", x, y)
    x = b.select(b.compare("oeq", a, one), b.intrinsic("copysign", b.like(math.inf, y), y), x)
    x = b.select(b.compare("ogt", a, one), b.like(math.nan, y), x)
    return b.convert("fptrunc", x, "float") if narrow else x


def digamma(b: Builder, given: Reg) -> Reg:
    """Reflection below zero, recurrence up to ten, asymptotic series; poles are NaN, and at zero -+infinity."""
    narrow = given.elem == "float"
    x = b.convert("fpext", given, "double")
    zero, one = b.like(0.0, x), b.like(1.0, x)
    below = b.compare("olt", x, zero)
    # psi(x) = psi(1 - x) - pi / tan(pi x), with the angle reduced exactly first
    fraction = b.sub(x, b.intrinsic("trunc", x))
    reflection = b.div(b.like(math.pi, x), function(b, "tan", b.mul(b.like(math.pi, x), fraction)))
    total = b.select(below, b.neg(reflection), zero)
    z = b.select(below, b.sub(one, x), x)
    for _ in range(DIGAMMA_STEPS):
        small = b.compare("olt", z, b.like(10.0, z))
        total = b.select(small, b.sub(total, b.div(one, z)), total)
        z = b.select(small, b.add(z, one), z)
    inverse = b.div(one, b.mul(z, z))
    series = b.mul(inverse, b.polynomial(inverse, DIGAMMA_SERIES))
    series = b.add(series, b.sub(function(b, "log", z), b.div(b.like(0.5, z), z)))
    total = b.add(total, series)
    pole = b.bit_and(below, b.compare("oeq", fraction, zero))
    total = b.select(pole, b.like(math.nan, x), total)
    total = b.select(b.compare("oeq", x, zero), b.intrinsic("copysign", b.like(math.inf, x), b.neg(x)), total)
    return b.convert("fptrunc", total, "float") if narrow else total
