"""The elementary functions of float32 that generated kernels call on the device, written without Triton's libdevice:
linking that takes a third of a kernel's compilation.

Operands are tiles or scalars of float32. NaN, infinities, signed zeros and denormals are as eager has them. Bounds are
in units in the last place (ulp) of the true result, on an H200 where a GPU approximates. ``tl.exp`` is
``2 ** (x * log2(e))`` on every GPU: factor and product are rounded, so that it is right to a part 1.25 |x| * 2**-24.
The polynomials are those of ``codegen/llvm/coefficients.py`` but for the sine's. Additions of 1.5 * 2**23 round to
integers, which then are the last bits of the sum.
"""

from __future__ import annotations

import triton
import triton.language as tl

from framefuse.codegen.triton.vendor import NVIDIA

APPROXIMATES = tl.constexpr(NVIDIA)  # whether text of NVIDIA's assembler may stand in kernels


@triton.jit
def fma(x, y, z):
    """Rounded once."""
    return tl.fma(x, y, z)


@triton.jit
def copysign(x, y):
    """The size of ``x`` with the sign of ``y``."""
    size = x.to(tl.int32, bitcast=True) & 0x7FFFFFFF
    return (size | (y.to(tl.int32, bitcast=True) & -0x80000000)).to(tl.float32, bitcast=True)


@triton.jit
def round(x):
    """To the nearest integer, halves to the even one."""
    size = tl.abs(x)
    whole = (size + 8388608.0) - 8388608.0
    return copysign(tl.where(size < 8388608.0, whole, size), x)


@triton.jit
def floor(x):
    near = round(x)
    return tl.where(near > x, near - 1.0, near)


@triton.jit
def ceil(x):
    near = round(x)
    return copysign(tl.where(near < x, near + 1.0, near), x)


@triton.jit
def trunc(x):
    size = tl.abs(x)
    near = round(size)
    return copysign(tl.where(near > size, near - 1.0, near), x)


@triton.jit
def rsqrt(x):
    """Within 1 ulp."""
    return tl.div_rn(tl.full((), 1.0, tl.float32), tl.sqrt_rn(x))


@triton.jit
def near_rsqrt(x):
    """Within 3 ulp."""
    return 1.0 / tl.sqrt_rn(x)


@triton.jit
def exp(x):
    """Within 3 ulp: by what ``tl.exp`` rounds off in the exponent, ``d``, the result is corrected.

    Beyond the limits the result is 0 and infinity; at the upper one ``d`` is positive, since inf + d * inf must not be
    NaN.
    """
    y = tl.maximum(x, -104.0, propagate_nan=tl.PropagateNan.ALL)
    y = tl.minimum(y, 88.72283935546875, propagate_nan=tl.PropagateNan.ALL)
    h = y * 1.4426950408889634
    d = tl.fma(h, -0.6931471824645996, y)
    d = tl.fma(h, 1.904654299957768e-09, d)
    e = tl.exp(y)
    return tl.fma(e, d, e)


@triton.jit
def scaled(x, n):
    """``x * 2**n`` for integers ``n`` in [-252, 254], in two steps, since 2**n may leave the range."""
    half = n >> 1
    first = ((half + 127) << 23).to(tl.float32, bitcast=True)
    return x * first * ((n - half + 127) << 23).to(tl.float32, bitcast=True)


@triton.jit
def exp2(x):
    """Within 2 ulp, exact for integers."""
    y = tl.maximum(x, -160.0, propagate_nan=tl.PropagateNan.ALL)
    y = tl.minimum(y, 150.0, propagate_nan=tl.PropagateNan.ALL)
    t = y + 12582912.0
    r = y - (t - 12582912.0)
    p = tl.fma(r, 0.000153532572, 0.00133990037)
    p = tl.fma(p, r, 0.00961843861)
    p = tl.fma(p, r, 0.0555033216)
    p = tl.fma(p, r, 0.240226479)
    p = tl.fma(p, r, 0.693147203)
    return scaled(tl.fma(r, p, 1.0), t.to(tl.int32, bitcast=True) - 0x4B400000)


@triton.jit
def expm1(x):
    """Within 2 ulp: expm1(n ln 2 + r) = 2**n expm1(r) + (2**n - 1); halved powers, since 2**128 is out of range."""
    y = tl.maximum(x, -26.0, propagate_nan=tl.PropagateNan.ALL)
    y = tl.minimum(y, 104.0, propagate_nan=tl.PropagateNan.ALL)
    t = tl.fma(y, 1.4426950408889634, 12582912.0)
    n = t - 12582912.0
    r = tl.fma(n, -0.693359375, y)
    r = tl.fma(n, 2.12194440e-4, r)
    p = tl.fma(r, 0.000198458847, 0.00139407203)
    p = tl.fma(p, r, 0.00833338957)
    p = tl.fma(p, r, 0.0416663598)
    p = tl.fma(p, r, 0.166666664)
    p = tl.fma(p, r, 0.500000004)
    p = tl.fma(r * r, p, r)
    power = scaled(tl.full((), 0.5, tl.float32), t.to(tl.int32, bitcast=True) - 0x4B400000)
    half = tl.fma(p, power, power - 0.5)
    result = tl.where(x > 88.72283172607422, float("inf"), half + half)
    return tl.where(tl.abs(x) < 1e-30, x, result)


@triton.jit
def sigmoid(x):
    """Within 4 ulp for x > -2, with an error below 2e-7 for any ``x``. Results below that of -2 are right to a part of
    (1.25 |x| + 12) * 2**-24, as ``tl.exp`` is; 0 where it overflows, from -88.73 on, as eager's.
    """
    return 1.0 / (1.0 + tl.exp(-1.0 * x))


@triton.jit
def tanh(x):
    """Within 2 ulp: an odd polynomial below 0.625, then 1 - 2 / (exp(2x) + 1)."""
    a = tl.abs(x)
    u = x * x
    p = tl.fma(u, 0.00214275917, -0.00817718365)
    p = tl.fma(p, u, 0.0217006193)
    p = tl.fma(p, u, -0.0539467483)
    p = tl.fma(p, u, 0.133332059)
    p = tl.fma(p, u, -0.333333308)
    small = tl.fma(a * u, p, a)
    large = 1.0 - 2.0 / (tl.exp(a + a) + 1.0)
    return copysign(tl.where(a > 0.625, large, small), x)


@triton.jit
def erf(x):
    """Within 2 ulp: an odd polynomial up to 1, then 1 - 2**P(x) with P fitted to lg(erfc(x)).

    Of Triton's exp and exp2 only the former is no call of libdevice.
    """
    a = tl.abs(x)
    u = x * x
    p = tl.fma(u, 7.85053708e-05, -0.000800926879)
    p = tl.fma(p, u, 0.00518823182)
    p = tl.fma(p, u, -0.0268537663)
    p = tl.fma(p, u, 0.112835839)
    p = tl.fma(p, u, -0.37612626)
    p = tl.fma(p, u, 0.128379166)
    small = tl.fma(a, p, a)
    y = tl.minimum(a, 4.0)
    q = tl.fma(y, -0.00166952133, 0.0213978626)
    q = tl.fma(q, y, -0.12811102)
    q = tl.fma(q, y, -0.943868756)
    q = tl.fma(q, y, -1.61238682)
    q = tl.fma(q, y, -0.00377863878)
    large = 1.0 - tl.exp(q * 0.693147182)
    return copysign(tl.where(a > 1.0, large, small), x)


@triton.jit
def near_erf(x):
    """Within 3e-7, and to six digits near 0: its series below 1/4, then 1 - exp(P(x)) with P fitted to log(erfc(x))."""
    a = tl.abs(x)
    u = x * x
    p = tl.fma(u, -0.026866170645, 0.112837916709)
    p = tl.fma(p, u, -0.376126389032)
    p = tl.fma(p, u, 1.128379167096)
    y = tl.minimum(a, 4.0)
    q = tl.fma(y, 0.000145664249, -0.00281105679)
    q = tl.fma(q, y, 0.021997679)
    q = tl.fma(q, y, -0.104349673)
    q = tl.fma(q, y, -0.636139691)
    q = tl.fma(q, y, -1.12845242)
    q = tl.fma(q, y, 4.29927877e-06)
    return copysign(tl.where(a > 0.25, 1.0 - tl.exp(q), a * p), x)


@triton.jit
def near_tanh(x):
    """To six digits: its series below 1/4, then 1 - 2 / (exp(2x) + 1)."""
    u = x * x
    p = tl.fma(u, -0.053968253968, 0.133333333333)
    p = tl.fma(p, u, -0.333333333333)
    large = 1.0 - 2.0 / (tl.exp(x + x) + 1.0)
    return tl.where(tl.abs(x) < 0.25, x * tl.fma(u, p, 1.0), large)


@triton.jit
def near_sinh(x):
    """To five digits: its series below 1/2, then by exponentials of half of it, which overflow no sooner."""
    a = tl.abs(x)
    u = x * x
    p = tl.fma(u, 0.000198412698, 0.00833333333)
    p = tl.fma(p, u, 0.166666667)
    h = tl.exp(0.5 * a)
    large = 0.5 * h * h - 0.5 / (h * h)
    return copysign(tl.where(a < 0.5, tl.fma(a * u, p, a), large), x)


@triton.jit
def near_cosh(x):
    """To five digits."""
    h = tl.exp(0.5 * tl.abs(x))
    return 0.5 * h * h + 0.5 / (h * h)


@triton.jit
def normal_mantissa(x):
    """The same of what is not denormal."""
    bits = x.to(tl.int32, bitcast=True)
    exponent = (bits - 0x3F3504F3) >> 23
    return exponent.to(tl.float32), (bits - (exponent << 23)).to(tl.float32, bitcast=True) - 1.0


@triton.jit
def mantissa(x):
    """``n, f`` with ``x = 2**n * (1 + f)`` and 1 + f in [sqrt(1/2), sqrt(2)), for positive finite ``x``."""
    denormal = x < 1.1754943508222875e-38
    n, f = normal_mantissa(tl.where(denormal, x * 33554432.0, x))
    return tl.where(denormal, n - 25.0, n), f


@triton.jit
def log_square(f):
    """``f * f`` and P with log(1 + f) = f + f * f * P."""
    p = tl.fma(f, -0.0806460094, 0.129178435)
    p = tl.fma(p, f, -0.130725619)
    p = tl.fma(p, f, 0.14173459)
    p = tl.fma(p, f, -0.166289198)
    p = tl.fma(p, f, 0.200026953)
    p = tl.fma(p, f, -0.250007512)
    p = tl.fma(p, f, 0.333333129)
    p = tl.fma(p, f, -0.499999977)
    return f * f, p


@triton.jit
def log_limits(x, result):
    """The logarithm's values at infinity, zero and below."""
    result = tl.where(x == float("inf"), x, result)
    result = tl.where(x == 0.0, float("-inf"), result)
    return tl.where(x >= 0.0, result, float("nan"))


@triton.jit
def log(x):
    """Within 2 ulp."""
    n, f = mantissa(x)
    square, p = log_square(f)
    tail = tl.fma(square, p, n * -2.12194440e-4)
    return log_limits(x, tl.fma(n, 0.693359375, tail + f))


@triton.jit
def log2(x):
    """Within 2 ulp; the base's log(e) is taken in two parts."""
    n, f = mantissa(x)
    square, p = log_square(f)
    tail = tl.fma(square * p, 1.4426950216293335, f * 1.9259629911266175e-08)
    return log_limits(x, n + tl.fma(f, 1.4426950216293335, tail))


@triton.jit
def log10(x):
    """Within 2 ulp; the base's log(e) and log(2) are taken in two parts."""
    n, f = mantissa(x)
    square, p = log_square(f)
    tail = tl.fma(square * p, 0.4342944920063019, f * -1.0103050052231683e-08)
    tail = tl.fma(n, 4.605038981195214e-06, tail)
    return log_limits(x, tl.fma(n, 0.301025390625, tl.fma(f, 0.4342944920063019, tail)))


@triton.jit
def log1p(x):
    """Within 2 ulp: 1 + x = 2**n * (1 + f) with f = x / 2**n + (2**-n - 1), which takes no
    division: n is that of the rounded sum, in ``power`` as a float's exponent lies.
    """
    u = x + 1.0
    power = (u.to(tl.int32, bitcast=True) - 0x3F3504F3) & -0x800000
    quarter = tl.fma((0x40800000 - power).to(tl.float32, bitcast=True), 0.25, -1.0)  # 2**-n may be denormal
    f = (x.to(tl.int32, bitcast=True) - power).to(tl.float32, bitcast=True) + quarter
    n = power.to(tl.float32) * 1.1920928955078125e-07
    square, p = log_square(f)
    tail = tl.fma(square, p, n * -2.12194440e-4)
    result = tl.where((u == 1.0) | (x == float("inf")), x, tl.fma(n, 0.693359375, tail + f))
    return tl.where(x > -1.0, result, tl.where(x == -1.0, float("-inf"), float("nan")))


@triton.jit
def rough_log2(x):
    """With an error below 2**-22, or a part of it; NVIDIA's instruction where there is one."""
    if APPROXIMATES:
        return tl.inline_asm_elementwise("lg2.approx.f32 $0, $1;", "=f,f", [x], tl.float32, True, 1)
    else:
        return log2(x)


@triton.jit
def near_log_of(x, f):
    """To six digits, where ``x`` is 1 + ``f``: its series for an ``f`` below 1/8."""
    p = tl.fma(f, 0.142857143, -0.166666667)
    p = tl.fma(p, f, 0.2)
    p = tl.fma(p, f, -0.25)
    p = tl.fma(p, f, 0.333333333)
    p = tl.fma(p, f, -0.5)
    return tl.where(tl.abs(f) < 0.125, tl.fma(p * f, f, f), rough_log2(x) * 0.693147181)


@triton.jit
def near_log(x):
    return near_log_of(x, x - 1.0)


@triton.jit
def near_log1p(x):
    return near_log_of(x + 1.0, x)


@triton.jit
def near_log2(x):
    return near_log(x) * 1.44269504


@triton.jit
def near_log10(x):
    return near_log(x) * 0.434294482


@triton.jit
def near_asinh(x):
    """To six digits: log(|x| + sqrt(x * x + 1)), of what is large log(2 |x|)."""
    a = tl.abs(x)
    far = a > 1e9
    y = tl.where(far, 1.0, a)
    y = tl.fma(y, y / (1.0 + tl.sqrt_rn(tl.fma(y, y, 1.0))), y)
    result = near_log1p(tl.where(far, a, y))
    return copysign(tl.where(far, result + 0.693147181, result), x)


@triton.jit
def near_acosh(x):
    """To six digits: log(x + sqrt(x * x - 1)), of what is large log(2 x); NaN below 1."""
    far = x > 1e9
    t = tl.where(far, 1.0, x - 1.0)
    result = near_log1p(tl.where(far, x, t + tl.sqrt_rn(tl.fma(t, t, t + t))))
    return tl.where(x < 1.0, float("nan"), tl.where(far, result + 0.693147181, result))


@triton.jit
def some_large(x):
    """Whether an angle of a tile, or the only one, is beyond 1e5, where ``less_pi`` ends, or NaN."""
    bits = x.to(tl.int32, bitcast=True) & 0x7FFFFFFF
    if x.type.is_block():
        bits = tl.max(bits)  # one instruction a warp, where floats take five pairs
    return bits > 0x47C35000


@triton.jit
def less_pi(x, n):
    """``x - n * pi``."""
    r = tl.fma(n, -3.141592502593994, x)
    r = tl.fma(n, -1.5099578831723193e-07, r)
    return tl.fma(n, -1.0780605906948477e-14, r)


@triton.jit
def large_angle(x, QUARTERS: tl.constexpr):
    """``n, r``: |x| + QUARTERS * pi / 4 = n pi + r with |r| <= pi / 2 and ``n`` known but for multiples of 2, for
    |x| >= 2**16; NaN for infinities.

    Payne and Hanek's reduction: |x| is an integer of 24 bits times 2**shift; of its product with the bits of 1 / pi
    those are computed that are worth from 1 to 2**-62.
    """
    bits = x.to(tl.int32, bitcast=True) & 0x7FFFFFFF
    factor = ((bits & 0x7FFFFF) | 0x800000).to(tl.uint64)
    place = (bits >> 23) - 119  # of the first bit of 1 / pi, behind 32 zeros, whose product is below 2
    word, shift = place >> 5, (place & 31).to(tl.uint64)
    a = tl.full((), 0x00000000517CC1B7, tl.uint64)
    b = tl.full((), 0x517CC1B727220A94, tl.uint64)
    c = tl.full((), 0x27220A94FE13ABE8, tl.uint64)
    d = tl.full((), 0xFE13ABE8FA9A6EE0, tl.uint64)
    e = tl.full((), 0xFA9A6EE06DB14ACC, tl.uint64)
    f = tl.full((), 0x6DB14ACC9E21C820, tl.uint64)
    g = tl.full((), 0x9E21C820FF28B1D5, tl.uint64)
    high = tl.where(word == 0, a, tl.where(word == 1, b, tl.where(word == 2, c, tl.where(word == 3, d, e))))
    low = tl.where(word == 0, c, tl.where(word == 1, d, tl.where(word == 2, e, tl.where(word == 3, f, g))))
    upper = (high << shift) | ((low >> 32) >> (32 - shift))
    turns = factor * upper + ((factor * ((low << shift) >> 32)) >> 32)
    turns += QUARTERS << 61
    rest = (turns << 1).to(tl.int64, bitcast=True) >> 2  # -1/2 to 1/2, times 2**62
    r = rest.to(tl.float32)
    lost = (rest - r.to(tl.int64)).to(tl.float32)
    r = tl.fma(r, 6.812243349741045e-19, tl.fma(r, -1.8956792857135478e-26, lost * 6.812243349741045e-19))
    n = ((turns >> 63) + ((turns >> 62) & 1)).to(tl.int32)
    return n, tl.where(bits < 0x7F800000, r, float("nan"))


@triton.jit
def sine(r, n):
    """sin(n pi + r) for |r| <= pi / 2 and an integer ``n``; coefficients for which cos(0) is 1. Roundings may go beyond
    1.
    """
    u = r * r
    p = tl.fma(u, -2.3795781e-08, 2.750914e-06)
    p = tl.fma(p, u, -0.0001984035)
    p = tl.fma(p, u, 0.008333329)
    p = tl.fma(p, u, -0.16666667)
    s = tl.fma(u * r, p, r)
    s = tl.minimum(s, 1.0, propagate_nan=tl.PropagateNan.ALL)
    s = tl.maximum(s, -1.0, propagate_nan=tl.PropagateNan.ALL)
    return (s.to(tl.int32, bitcast=True) ^ (n << 31)).to(tl.float32, bitcast=True)


@triton.jit
def digamma(x):
    """Within some units in the last place of its largest term: by reflection for x < 0, the recurrence up to 6 and the
    asymptotic series. Eager's kernel adds up to ten rounded reciprocals, here they are one fraction.
    """
    negative = x < 0.0
    part = x - trunc(x)
    part = tl.where(part < -0.5, part + 1.0, part)
    whole = tl.full((), 0, tl.int32)
    above = sine(3.14159265358979 * (0.5 - tl.abs(part)), whole)
    below = sine(3.14159265358979 * part, whole)
    reflected = tl.where(negative, -3.14159265358979 * above / tl.where(negative, below, 1.0), 0.0)
    point = tl.where(negative, 1.0 - x, x)
    above, below = tl.where(negative, 0.0, 0.0), tl.where(negative, 1.0, 1.0)
    for _ in range(6):
        small = point < 6.0
        above = tl.where(small, tl.fma(above, point, below), above)
        below = tl.where(small, below * point, below)
        point = tl.where(small, point + 1.0, point)
    inverse = 1.0 / point
    z = inverse * inverse
    series = tl.fma(z, -0.00416666666667, 0.00396825396825)
    series = tl.fma(series, z, -0.00833333333333)
    series = tl.fma(series, z, 0.0833333333333)
    value = log(point) - (0.5 * inverse + z * series) - above / below + reflected
    value = tl.where(negative & (part == 0.0), float("nan"), value)
    return tl.where(x == 0.0, copysign(tl.full((), float("inf"), tl.float32), -1.0 * x), value)


@triton.jit
def far_sine(x, y):
    """``y``, or sin(x) where |x| is beyond 1e5."""
    if some_large(x):
        n, r = large_angle(x, 0)
        y = tl.where(tl.abs(x) > 1e5, sine(tl.where(x < 0.0, -1.0 * r, r), n), y)
    return y


@triton.jit
def far_cosine(x, y):
    """``y``, or cos(x) where |x| is beyond 1e5."""
    if some_large(x):
        n, r = large_angle(x, 2)
        y = tl.where(tl.abs(x) > 1e5, sine(r, n), y)
    return y


@triton.jit
def sin(x):
    """Within 2.2 ulp. A tile is tested for large angles as a whole; these go the long way one by one, since many at
    once would take many registers.
    """
    t = tl.fma(x, 0.3183098861837907, 12582912.0)
    y = sine(less_pi(x, t - 12582912.0), t.to(tl.int32, bitcast=True))
    y = tl.where(x == 0.0, x, y)
    if some_large(x):
        if x.type.is_block():
            y = tl.map_elementwise(far_sine, x, y)
        else:
            y = far_sine(x, y)
    return y


@triton.jit
def cos(x):
    """Within 2.2 ulp: cos(x) = sin(x + pi / 2) = -sin(x - n pi - pi / 2) for odd ``n``; large angles as in ``sin``."""
    t = tl.fma(x, 0.3183098861837907, -0.5) + 12582912.0
    y = sine(-1.0 * less_pi(x, (t - 12582912.0) + 0.5), t.to(tl.int32, bitcast=True))
    if some_large(x):
        if x.type.is_block():
            y = tl.map_elementwise(far_cosine, x, y)
        else:
            y = far_cosine(x, y)
    return y
