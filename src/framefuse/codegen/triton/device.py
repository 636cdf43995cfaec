"""The functions that generated kernels call on the device: eager's conventions where Triton and libdevice have others
(elementary functions of float32: ``maths``).

Operands are tiles or scalars with a type, never plain Python numbers.
"""

from __future__ import annotations

import triton
import triton.language as tl
from triton.language.extra import libdevice as libdevice  # interpreted.py puts another in its place

from framefuse.codegen.triton import maths


@triton.jit
def divide(x, y):
    """The quotient, rounded to nearest; ``/`` on float32 is an approximation on the device."""
    if x.dtype == tl.float64:
        return x / y
    else:
        return tl.div_rn(x, y)


@triton.jit
def scale_of(y):
    """A power of two by which a divisor must be multiplied so that its reciprocal is a normal number."""
    size = tl.abs(y)
    return tl.where(size < 1e-30, 1.8446744073709552e19, tl.where(size > 1e30, 5.421010862427522e-20, 1.0))


@triton.jit
def inverse(y, scale):
    """The factor by which, with ``scale`` again, to multiply in place of a division: within 2 ulp, zeros and infinities
    as a division has them.
    """
    return tl.div_rn(tl.full((), 1.0, y.dtype), y * scale)


@triton.jit
def shared_quotient(x, scale, opposite, inverse):
    """The quotient rounded to nearest by the ``inverse`` of a divisor, whose negative is ``opposite``, both scaled.

    What the first product leaves is divided again (Markstein's theorem; held to 40 million quotients). Where it leaves
    nothing, or what is no number, it is the quotient. Where that is no normal number, the last digit may differ.
    """
    wide = x * scale
    near = wide * inverse
    rest = tl.fma(near, opposite, wide)
    size = tl.abs(rest)
    return tl.where((size > 0.0) & (size < float("inf")), tl.fma(rest, inverse, near), near)


@triton.jit
def square_root(x):
    """Rounded to nearest."""
    if x.dtype == tl.float64:
        return tl.sqrt(x)
    else:
        return tl.sqrt_rn(x)


@triton.jit
def sigmoid(x):
    """Of float64, as eager computes it, by one exponential."""
    return 1.0 / (1.0 + libdevice.exp(-1.0 * x))


@triton.jit
def quotient(x, y):
    """Within 2 ulp."""
    return x / y


@triton.jit
def maximum(x, y):
    """NaN of either operand wins; of equal zeros the second is the result."""
    return tl.where((x > y) | (x != x), x, y)


@triton.jit
def minimum(x, y):
    """NaN of either operand wins; of equal zeros the second is the result."""
    return tl.where((x < y) | (x != x), x, y)


@triton.jit
def largest(x, y):
    """NaN of either operand wins, by one instruction; of two zeros any is the result, as in eager's reductions."""
    return tl.maximum(x, y, propagate_nan=tl.PropagateNan.ALL)


@triton.jit
def smallest(x, y):
    """NaN of either operand wins; of two zeros any is the result."""
    return tl.minimum(x, y, propagate_nan=tl.PropagateNan.ALL)


@triton.jit
def fmax(x, y):
    """A NaN operand loses."""
    return tl.where((x > y) | (y != y), x, y)


@triton.jit
def fmin(x, y):
    """A NaN operand loses."""
    return tl.where((x < y) | (y != y), x, y)


@triton.jit
def sign(x):
    """-1, 0 or 1; 0 for NaN."""
    up = tl.where(x > 0, tl.full((), 1, x.dtype), tl.full((), 0, x.dtype))
    return tl.where(x < 0, tl.full((), -1, x.dtype), up)


@triton.jit
def remainder(x, y):
    """The exact remainder of floats with the divisor's sign."""
    rest = libdevice.fmod(x, y)
    return tl.where((rest != 0.0) & ((y < 0.0) != (rest < 0.0)), rest + y, rest)


@triton.jit
def floor_divide(x, y):
    """The floor of the quotient of floats by way of the exact remainder, as eager and Python define it."""
    rest = libdevice.fmod(x, y)
    quotient = divide(x - rest, y)
    quotient = tl.where((rest != 0.0) & ((y < 0.0) != (rest < 0.0)), quotient - 1.0, quotient)
    floor = libdevice.floor(quotient)
    floor = tl.where(quotient - floor > 0.5, floor + 1.0, floor)
    exact = divide(x, y)
    floor = tl.where(quotient == 0.0, libdevice.copysign(tl.full((), 0.0, x.dtype), exact), floor)
    return tl.where(y == 0.0, exact, floor)


@triton.jit
def digamma(x):
    """By reflection for x < 0, the recurrence up to 10 and the asymptotic series, in double (as eager's CUDA kernel).

    The series is that of Cephes, psi.c.
    """
    wide = x.to(tl.float64)
    whole = libdevice.floor(wide)
    negative = wide < 0.0
    pole = negative & (wide == whole)
    tangent = libdevice.tan((wide - libdevice.trunc(wide)) * 3.14159265358979323846)
    reflected = tl.where(negative, -3.14159265358979323846 / tangent, 0.0)
    point = tl.where(negative, 1.0 - wide, wide)
    # The sum of up to ten reciprocals as one fraction: ten divisions of doubles are most of the time else.
    above = negative.to(tl.float64) * 0.0
    below = above + 1.0
    for _ in range(10):
        small = point < 10.0
        above = tl.where(small, above * point + below, above)
        below = tl.where(small, below * point, below)
        point = tl.where(small, point + 1.0, point)
    result = 0.0 - above / below
    inverse = 1.0 / point
    z = inverse * inverse
    series = z * 8.33333333333333333333e-2 - 2.10927960927960927961e-2
    series = series * z + 7.57575757575757575758e-3
    series = series * z - 4.16666666666666666667e-3
    series = series * z + 3.96825396825396825397e-3
    series = series * z - 8.33333333333333333333e-3
    series = series * z + 8.33333333333333333333e-2
    value = result + libdevice.log(point) - 0.5 * inverse - tl.where(point < 1.0e17, z * series, 0.0) + reflected
    value = tl.where(pole, float("nan"), value)
    at_zero = libdevice.copysign(tl.full((), float("inf"), tl.float64), -1.0 * wide)
    return tl.where(wide == 0.0, at_zero, value).to(x.dtype)


@triton.jit
def integer_floor_divide(x, y):
    """Rounds down. What a zero divisor gives is as undefined as it is in eager on a GPU, but does not trap."""
    y = tl.where(y == 0, tl.full((), 1, y.dtype), y)
    rest = x % y
    return x // y - ((rest != 0) & ((rest < 0) != (y < 0))).to(x.dtype)


@triton.jit
def integer_remainder(x, y):
    """The divisor's sign."""
    y = tl.where(y == 0, tl.full((), 1, y.dtype), y)
    rest = x % y
    return tl.where((rest != 0) & ((rest < 0) != (y < 0)), rest + y, rest)


@triton.jit
def integer_fmod(x, y):
    """The dividend's sign."""
    return x % tl.where(y == 0, tl.full((), 1, y.dtype), y)


@triton.jit
def integer_power(x, y, BITS: tl.constexpr):
    """By squaring, wrapping; negative exponents leave 1 for 1, +-1 for -1 and 0 for the rest."""
    one, zero = tl.full((), 1, x.dtype), tl.full((), 0, x.dtype)
    odd = (y & 1) != 0
    total, base, exponent = one + (x & zero) + (y & zero), x + (y & zero), y + (x & zero)
    for _ in range(BITS):
        total = tl.where((exponent & 1) != 0, total * base, total)
        base = base * base
        exponent = exponent >> 1
    inverse = tl.where(x == 1, one, tl.where((x + 1) == 0, tl.where(odd, zero - one, one), zero))
    return tl.where(y < 0, inverse, total)


@triton.jit
def shift_left(x, y, BITS: tl.constexpr):
    """Zero when the distance is negative or not below the width."""
    inside = (y >= 0) & (y < BITS)
    return tl.where(inside, x << tl.where(inside, y, tl.full((), 0, y.dtype)), tl.full((), 0, x.dtype))


@triton.jit
def shift_right(x, y, BITS: tl.constexpr):
    """Arithmetic; a distance that is negative or too wide leaves only the sign."""
    inside = (y >= 0) & (y < BITS)
    return x >> tl.where(inside, y, tl.full((), BITS - 1, y.dtype))


@triton.jit
def unsigned_shift_right(x, y, BITS: tl.constexpr):
    """A distance that is negative or too wide leaves nothing."""
    inside = (y >= 0) & (y < BITS)
    return tl.where(inside, x >> tl.where(inside, y, tl.full((), 0, y.dtype)), tl.full((), 0, x.dtype))


@triton.jit
def floor_quotient(x, y):
    """``x // y`` of index expressions with y > 0."""
    quotient = x // y
    return quotient - ((x - quotient * y) < 0).to(quotient.dtype)


@triton.jit
def floor_rest(x, y):
    """``x % y`` of index expressions with y > 0."""
    rest = x % y
    return tl.where(rest < 0, rest + y, rest)


@triton.jit
def add(x, y):
    return x + y


@triton.jit
def multiply(x, y):
    return x * y


@triton.jit
def log_add_exp(x, y):
    """The logarithm of the sum of two exponentials, also of infinite ones."""
    away = 0.0 - tl.abs(x - y)
    if x.dtype == tl.float64:
        more = libdevice.log1p(libdevice.exp(away))
    else:
        more = maths.log1p(tl.exp(away))
    return largest(x, y) + tl.where(x == y, 0.6931471805599453, more)


@triton.jit
def logarithm(x):
    if x.dtype == tl.float64:
        return libdevice.log(x)
    else:
        return maths.log(x)


@triton.jit
def exponential(x):
    """Of what is not above zero, and of which little is far below it."""
    if x.dtype == tl.float64:
        return libdevice.exp(x)
    else:
        return tl.exp(x)


@triton.jit
def scaled_sums(x, total, y, other):
    """Two sums of exponentials made one, each as the largest exponent and the sum of the distances' exponentials."""
    share = tl.where(x == y, 1.0, exponential(0.0 - tl.abs(x - y)))
    return largest(x, y), tl.where(y > x, total * share + other, total + other * share)


@triton.jit
def log_sums(x, carry, AXIS: tl.constexpr):
    """The logarithms of sums of exponentials up to each element along a dimension, behind those that ``carry`` stands
    for. Exponentials of distances from the largest are added up, unless some element is so far below it that its own
    digits would be lost, or is infinite or NaN: an infinitely small one adds nothing.
    """
    top = largest(tl.expand_dims(tl.reduce(x, AXIS, largest), AXIS), carry)
    finite = tl.where(x == float("-inf"), float("inf"), x)
    least = tl.expand_dims(tl.reduce(finite, AXIS, smallest), AXIS)
    near = (top - tl.maximum(least, carry) <= 16.0) | (top == float("-inf"))
    if tl.min(near.to(tl.int32)) == 1:
        base = tl.where(top == float("-inf"), 0.0, top)
        result = logarithm(exponential(carry - base) + tl.cumsum(exponential(x - base), AXIS)) + base
    else:
        # A logarithm at each step of the scan is a hundred times the code, seconds of the compiler's time.
        first, total = tl.associative_scan((x, tl.full(x.shape, 1.0, x.dtype)), AXIS, scaled_sums)
        first, total = scaled_sums(carry, 1.0, first, total)
        result = first + logarithm(total)
    return result


@triton.jit
def larger_first(x, at_x, y, at_y):
    """The larger of two values with its position; of equal ones (NaN equals NaN and beats all) the earlier."""
    better = (y > x) | ((y != y) & (x == x))
    equal = (y == x) | ((y != y) & (x != x))
    take = better | (equal & (at_y < at_x))
    return tl.where(take, y, x), tl.where(take, at_y, at_x)


@triton.jit
def rescaled(total, x, y, share):
    """A sum of exponentials of distances from ``x`` with one more value, as distances from the larger of both;
    ``share`` is the exponential of minus their distance, which says nothing of equal infinities.
    """
    return tl.where(y > x, total * share + 1.0, total + tl.where(x == y, 1.0, share))


@triton.jit
def same(x, y):
    """Whether two values are equal; NaN equals NaN."""
    return (x == y) | ((x != x) & (y != y))


@triton.jit
def larger_later(x, at_x, y, NONE: tl.constexpr):
    """Whether a later value takes the place of ``x``, which has none yet if its position is NONE."""
    return ((y > x) | (y != y)) & (x == x) | (at_x == NONE)


@triton.jit
def smaller_later(x, at_x, y, NONE: tl.constexpr):
    """Whether a later value takes the place of ``x``, which has none yet if its position is NONE."""
    return ((y < x) | (y != y)) & (x == x) | (at_x == NONE)


@triton.jit
def smaller_first(x, at_x, y, at_y):
    """The smaller of two values with its position; of equal ones (NaN equals NaN and beats all) the earlier."""
    better = (y < x) | ((y != y) & (x == x))
    equal = (y == x) | ((y != y) & (x != x))
    take = better | (equal & (at_y < at_x))
    return tl.where(take, y, x), tl.where(take, at_y, at_x)
