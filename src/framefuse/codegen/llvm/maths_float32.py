"""Writes the transcendental functions of float32 inline: range reduction, polynomial, special values; at most 2 ulp.

Every function takes the builder and float registers (scalar or vector) and returns one. Selections are written so that
NaN passes: an ordered comparison is false for it.
"""

from __future__ import annotations

import math
from collections.abc import Callable

from framefuse.codegen.llvm import coefficients as table
from framefuse.codegen.llvm.builder import Builder, Reg
from framefuse.codegen.llvm.math_calls import function

INFINITY = math.inf
# ln 2, lg 2: the upper part has so few bits that its product with an exponent is exact.
LN2_HIGH, LN2_LOW = 0.693359375, -2.12194440e-4
LG2_HIGH, LG2_LOW = 0.301025390625, 4.605038981195214e-06
# log2 e and log10 e as a float32 and what it lacks.
LOG2E_HIGH, LOG2E_LOW = 1.4426950216293335, 1.9259629911266175e-08
LOG10E_HIGH, LOG10E_LOW = 0.4342944920063019, -1.0103050052231683e-08
# pi as three float32, for the reduction by fused multiply-adds.
PI_1, PI_2, PI_3 = 3.1415927410125732, -8.742277657347586e-08, -3.4302490200117637e-15
# Beyond this the three parts of pi are too few; the library's reduction takes over.
LARGE_ANGLE = 10000.0
# From here erf rounds to 1.
ERF_IS_ONE = 3.9999997615814209
EXPM1_LARGEST = 88.72283172607422
SMALLEST_NORMAL = 1.1754943508222875e-38


def scaled(b: Builder, x: Reg, n: Reg) -> Reg:
    """``x * 2**n`` for integral float ``n`` in [-280, 256], rounded once unless the result is denormal."""
    if b.target.scalef and x.lanes == 16:
        symbol = "llvm.x86.avx512.mask.scalef.ps.512"
        rest = f"{x.type} zeroinitializer, i16 -1, i32 4"
        b.declarations[symbol] = f"declare {x.type} @{symbol}({x.type}, {x.type}, {x.type}, i16, i32)"
        return b.op(x.elem, x.lanes, f"call {x.type} @{symbol}({x}, {n}, {rest})")
    # llvm.ldexp would be a library call a lane. Two factors, since 2**n itself may leave the range.
    whole = b.convert("fptosi", n, "i32")
    half = b.binary("ashr", whole, b.like(1, whole))
    for exponent in (half, b.sub(whole, half)):
        bits = b.binary("shl", b.add(exponent, b.like(127, exponent)), b.like(23, exponent))
        x = b.mul(x, b.convert("bitcast", bits, "float"))
    return x


def clamped(b: Builder, x: Reg, low: float, high: float) -> Reg:
    """``x`` within [low, high]; NaN stays."""
    x = b.select(b.compare("ogt", x, b.like(high, x)), b.like(high, x), x)
    return b.select(b.compare("olt", x, b.like(low, x)), b.like(low, x), x)


def reduced(b: Builder, x: Reg) -> tuple[Reg, Reg]:
    """``n, r`` with ``x = n * ln 2 + r`` and |r| <= ln 2 / 2."""
    n = b.intrinsic("rint", b.mul(x, b.like(1 / math.log(2), x)))
    r = b.fma(n, b.like(-LN2_HIGH, x), x)
    return n, b.fma(n, b.like(-LN2_LOW, x), r)


def exp(b: Builder, x: Reg, clamp: bool = True) -> Reg:
    if clamp:
        x = clamped(b, x, -110.0, 104.0)
    n, r = reduced(b, x)
    q = b.fma(b.mul(r, r), b.polynomial(r, table.EXP), r)
    return scaled(b, b.add(q, b.like(1.0, q)), n)


def exp2(b: Builder, x: Reg) -> Reg:
    x = clamped(b, x, -160.0, 150.0)
    n = b.intrinsic("rint", x)
    r = b.sub(x, n)
    return scaled(b, b.fma(r, b.polynomial(r, table.EXP2), b.like(1.0, x)), n)


def expm1(b: Builder, x: Reg) -> Reg:
    """``q * 2**n + (2**n - 1)`` with q = expm1(r); halved powers, since 2**128 is out of range."""
    y = clamped(b, x, -26.0, 104.0)
    n, r = reduced(b, y)
    q = b.fma(b.mul(r, r), b.polynomial(r, table.EXPM1), r)
    power = scaled(b, b.like(0.5, x), n)
    result = b.fma(q, power, b.sub(power, b.like(0.5, x)))
    result = b.add(result, result)
    result = b.select(b.compare("ogt", x, b.like(EXPM1_LARGEST, x)), b.like(INFINITY, x), result)
    return b.select(b.compare("oeq", x, b.like(0.0, x)), x, result)


def sigmoid(b: Builder, x: Reg) -> Reg:
    one = b.like(1.0, x)
    return b.div(one, b.add(one, exp(b, b.neg(x))))


def sinh(b: Builder, x: Reg) -> Reg:
    return b.intrinsic("copysign", _hyperbolic(b, x, odd=True), x)


def cosh(b: Builder, x: Reg) -> Reg:
    return _hyperbolic(b, x, odd=False)


def _hyperbolic(b: Builder, x: Reg, odd: bool) -> Reg:
    """sinh |x| or cosh x: of n ln 2 + r it is ``A cosh(r) + B sinh(r)`` with A and B a sum and a difference of 2**n / 2
    and 2**-n / 2; quarters of them, since 2**128 is out of range.
    """
    a = b.intrinsic("fabs", x)
    n, r = reduced(b, b.select(b.compare("ogt", a, b.like(90.0, a)), b.like(90.0, a), a))
    u = b.mul(r, r)
    more, sine = b.mul(u, b.polynomial(u, table.COSH)), b.fma(b.mul(r, u), b.polynomial(u, table.SINH), r)
    up, down = (scaled(b, b.like(0.125, x), exponent) for exponent in (n, b.neg(n)))
    total, difference = b.add(up, down), b.sub(up, down)
    first, second = (difference, total) if odd else (total, difference)
    result = b.mul(b.add(first, b.fma(first, more, b.mul(second, sine))), b.like(4.0, x))
    return b.select(b.compare("olt", a, b.like(2.0**-12, a)), a, result) if odd else result


def tanh(b: Builder, x: Reg) -> Reg:
    """An odd polynomial below 0.625, then 1 - 2 / (exp(2x) + 1)."""
    a, u = b.intrinsic("fabs", x), b.mul(x, x)
    small = b.fma(b.mul(a, u), b.polynomial(u, table.TANH), a)
    limited = b.select(b.compare("ogt", a, b.like(10.0, a)), b.like(10.0, a), a)
    power = exp(b, b.add(limited, limited), clamp=False)
    large = b.sub(b.like(1.0, a), b.div(b.like(2.0, a), b.add(power, b.like(1.0, a))))
    result = b.select(b.compare("ogt", a, b.like(0.625, a)), large, small)
    return b.intrinsic("copysign", result, x)


def erf(b: Builder, x: Reg) -> Reg:
    if b.target.scalef and x.lanes == 16:
        return _erf_by_pieces(b, x)
    return _erf_by_exp(b, x)


def _erf_by_exp(b: Builder, x: Reg) -> Reg:
    """An odd polynomial up to 1, then 1 - 2**P(x) with P fitted to lg(erfc(x)): a power from -24 to -2 is a polynomial
    whose exponent is moved.
    """
    a, u = b.intrinsic("fabs", x), b.mul(x, x)
    small = b.fma(a, b.polynomial(u, table.ERF_SMALL), a)
    limited = b.select(b.compare("ogt", a, b.like(4.0, a)), b.like(4.0, a), a)
    power = b.polynomial(limited, table.ERF_LARGE)
    n = b.intrinsic("rint", power)
    part = b.convert("bitcast", b.polynomial(b.sub(power, n), table.ERF_POWER), "i32")
    moved = b.add(part, b.binary("shl", b.convert("fptosi", n, "i32"), b.like(23, part)))
    large = b.sub(b.like(1.0, a), b.convert("bitcast", moved, "float"))
    result = b.select(b.compare("ogt", a, b.like(1.0, a)), large, small)
    return b.intrinsic("copysign", result, x)


def _erf_by_pieces(b: Builder, x: Reg) -> Reg:
    """``a + a * P_k(t)`` below 1 and ``P_k(t)`` above, with a = |x| = (k + t) / 4: AVX-512 picks the coefficients of
    piece k from registers.
    """
    a = b.intrinsic("fabs", x)
    a = b.select(b.compare("ogt", a, b.like(ERF_IS_ONE, a)), b.like(ERF_IS_ONE, a), a)
    quarters = b.mul(a, b.like(4.0, a))
    piece = b.intrinsic("trunc", quarters)
    t, k = b.sub(quarters, piece), b.convert("fptosi", piece, "i32")
    symbol = "llvm.x86.avx512.permvar.sf.512"
    b.declarations[symbol] = f"declare {x.type} @{symbol}({x.type}, {k.type})"
    total: Reg | None = None
    for row in table.ERF_PIECES:
        coefficient = b.op(x.elem, 16, f"call {x.type} @{symbol}({b.vector(row, x.elem)}, {k})")
        total = coefficient if total is None else b.fma(total, t, coefficient)
    assert total is not None
    result = b.select(b.compare("oge", a, b.like(1.0, a)), total, b.fma(a, total, a))
    return b.intrinsic("copysign", result, x)


def mantissa(b: Builder, x: Reg) -> tuple[Reg, Reg]:
    """``n, f`` with ``x = 2**n * (1 + f)`` and 1 + f in [sqrt(1/2), sqrt(2)), for positive finite x."""
    denormal = b.compare("olt", x, b.like(SMALLEST_NORMAL, x))
    bits = b.convert("bitcast", b.select(denormal, b.mul(x, b.like(2.0**25, x)), x), "i32")
    exponent = b.binary("ashr", b.sub(bits, b.like(0x3F3504F3, bits)), b.like(23, bits))
    one_plus_f = b.convert("bitcast", b.sub(bits, b.binary("shl", exponent, b.like(23, bits))), "float")
    n = b.convert("sitofp", exponent, "float")
    n = b.select(denormal, b.sub(n, b.like(25.0, n)), n)
    return n, b.sub(one_plus_f, b.like(1.0, x))


def log_limits(b: Builder, x: Reg, result: Reg) -> Reg:
    """The logarithm's values at infinity, zero and below."""
    result = b.select(b.compare("oeq", x, b.like(INFINITY, x)), x, result)
    result = b.select(b.compare("oeq", x, b.like(0.0, x)), b.like(-INFINITY, x), result)
    return b.select(b.compare("ult", x, b.like(0.0, x)), b.like(math.nan, x), result)


def log(b: Builder, x: Reg) -> Reg:
    n, f = mantissa(b, x)
    tail = b.fma(b.mul(f, f), b.polynomial(f, table.LOG), b.mul(n, b.like(LN2_LOW, x)))
    return log_limits(b, x, b.fma(n, b.like(LN2_HIGH, x), b.add(tail, f)))


def _log_to_base(b: Builder, x: Reg, base: tuple[float, float], two: tuple[float, float]) -> Reg:
    """``n * log(2) + log(1 + f)`` in a base whose log(e) and log(2) are given in two parts each."""
    n, f = mantissa(b, x)
    square = b.mul(b.mul(f, f), b.polynomial(f, table.LOG))
    tail = b.fma(square, b.like(base[0], x), b.mul(f, b.like(base[1], x)))
    tail = b.fma(n, b.like(two[1], x), tail)
    return log_limits(b, x, b.fma(n, b.like(two[0], x), b.fma(f, b.like(base[0], x), tail)))


def log2(b: Builder, x: Reg) -> Reg:
    return _log_to_base(b, x, (LOG2E_HIGH, LOG2E_LOW), (1.0, 0.0))


def log10(b: Builder, x: Reg) -> Reg:
    return _log_to_base(b, x, (LOG10E_HIGH, LOG10E_LOW), (LG2_HIGH, LG2_LOW))


def log1p(b: Builder, x: Reg) -> Reg:
    """log of the rounded 1 + x, corrected by what the rounding lost."""
    one = b.like(1.0, x)
    u = b.add(x, one)
    lost = b.div(b.sub(x, b.sub(u, one)), u)
    result = b.add(log(b, u), lost)
    plain = b.bit_or(b.compare("oeq", u, one), b.compare("oeq", x, b.like(INFINITY, x)))
    result = b.select(plain, x, result)
    return b.select(b.compare("oeq", x, b.like(-1.0, x)), b.like(-INFINITY, x), result)


def asinh(b: Builder, x: Reg) -> Reg:
    """log1p(a + a*a / (1 + sqrt(1 + a*a))) of a = |x|."""
    a, one = b.intrinsic("fabs", x), b.like(1.0, x)
    root = b.intrinsic("sqrt", b.fma(a, a, one))
    return b.intrinsic("copysign", _log_beside(b, b.add(a, b.div(b.mul(a, a), b.add(one, root))), a), x)


def acosh(b: Builder, x: Reg, log: Callable[[Builder, Reg], Reg] = log, large: float = 4096.0) -> Reg:
    """log1p(t + sqrt(t*t + 2t)) of t = x - 1. With another ``log`` also of doubles."""
    t = b.sub(x, b.like(1.0, x))
    result = _log_beside(b, b.add(t, b.intrinsic("sqrt", b.fma(t, t, b.add(t, t)))), x, log, large)
    return b.select(b.compare("olt", x, b.like(1.0, x)), b.like(math.nan, x), result)


def _log_beside(
    b: Builder, y: Reg, x: Reg, log: Callable[[Builder, Reg], Reg] = log, above: float = 4096.0
) -> Reg:
    """log(1 + y), which is log(2x) to all digits where ``x`` is large."""
    one, large = b.like(1.0, x), b.compare("ogt", x, b.like(above, x))
    u = b.add(y, one)
    lost = b.div(b.sub(y, b.sub(u, one)), u)
    result = b.add(log(b, b.select(large, x, u)), b.select(large, b.like(math.log(2), x), lost))
    return b.select(b.compare("oeq", u, one), y, result)


def _with_large_angles(b: Builder, name: str, x: Reg, result: Reg) -> Reg:
    """``result``, unless a lane holds a large angle, an infinity or NaN: then the library's function of all lanes."""
    large = b.compare("ugt", b.intrinsic("fabs", x), b.like(LARGE_ANGLE, x))
    return b.guarded(b.any_lane(large), [result], lambda: [function(b, name, x)])[0]


def _sine_polynomial(b: Builder, r: Reg, flips: Reg) -> Reg:
    """sin(r) for |r| <= pi/2, its sign flipped where the integer ``flips`` is odd."""
    u = b.mul(r, r)
    s = b.fma(b.mul(u, r), b.polynomial(u, table.SIN), r)
    for limit, beyond in ((1.0, "ogt"), (-1.0, "olt")):  # roundings go beyond them here and there
        s = b.select(b.compare(beyond, s, b.like(limit, s)), b.like(limit, s), s)
    bits = b.bit_xor(b.convert("bitcast", s, "i32"), b.binary("shl", flips, b.like(31, flips)))
    return b.convert("bitcast", bits, "float")


def _less_pi(b: Builder, x: Reg, n: Reg) -> Reg:
    """``x - n * pi``."""
    for part in (PI_1, PI_2, PI_3):
        x = b.fma(n, b.like(-part, x), x)
    return x


def sin(b: Builder, x: Reg) -> Reg:
    n = b.intrinsic("rint", b.mul(x, b.like(1 / math.pi, x)))
    s = _sine_polynomial(b, _less_pi(b, x, n), b.convert("fptosi", n, "i32"))
    s = b.select(b.compare("oeq", x, b.like(0.0, x)), x, s)
    return _with_large_angles(b, "sin", x, s)


def cos(b: Builder, x: Reg) -> Reg:
    """cos((n + 1/2) pi + r) = -sin(n pi + r)."""
    n = b.intrinsic("rint", b.fma(x, b.like(1 / math.pi, x), b.like(-0.5, x)))
    r = _less_pi(b, x, b.add(n, b.like(0.5, x)))
    flips = b.convert("fptosi", n, "i32")
    c = _sine_polynomial(b, r, b.add(flips, b.like(1, flips)))
    return _with_large_angles(b, "cos", x, c)
