"""Writes the functions that are composed in double precision: sigmoid and digamma."""

from __future__ import annotations

import math

from framefuse.codegen.llvm.builder import Builder, Reg
from framefuse.codegen.llvm.math_calls import function

# Bernoulli numbers B(2k) / (2k) of digamma's asymptotic series, highest power of 1/x**2 first.
DIGAMMA_SERIES = (
    -1 / 12, 691 / 32760, -1 / 132, 1 / 240, -1 / 252, 1 / 120, -1 / 12,
)  # fmt: skip
DIGAMMA_STEPS = 10


def sigmoid(b: Builder, x: Reg) -> Reg:
    one = b.like(1.0, x)
    return b.div(one, b.add(one, function(b, "exp", b.neg(x))))


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
