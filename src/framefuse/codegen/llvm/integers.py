"""Writes integer arithmetic: division with eager's signs and errors, shifts, powers, extremes."""

from __future__ import annotations

from collections.abc import Callable

from framefuse.codegen.llvm.builder import BITS, Builder, Reg
from framefuse.ir.dtypes import DType

Fail = Callable[[Reg], None]


def divide(b: Builder, op: str, x: Reg, y: Reg, dtype: DType, fail: Fail) -> Reg:
    """floordiv (rounds down), remainder (the divisor's sign) or fmod (the dividend's sign).

    The machine traps on a zero divisor and on the lowest number divided by -1: both are replaced by 1 (the first after
    ``fail``, the second with the negated dividend as quotient).
    """
    zero = b.compare("eq", y, b.like(0, y))
    fail(zero)
    y = b.select(zero, b.like(1, y), y)
    if dtype.size < 8:
        quotient = _small_quotient(b, x, y, dtype)
    else:
        minus = b.compare("eq", y, b.like(-1, y))
        quotient = b.binary("sdiv", x, b.select(minus, b.like(1, y), y))
        quotient = b.select(minus, b.neg(x), quotient)
    rest = b.sub(x, b.mul(quotient, y))
    if op == "fmod":
        return rest
    if dtype.kind != "int":
        return quotient if op == "floordiv" else rest
    signs_differ = b.compare("slt", b.bit_xor(rest, y), b.like(0, y))
    wrong = b.bit_and(b.compare("ne", rest, b.like(0, rest)), signs_differ)
    if op == "floordiv":
        return b.add(quotient, b.convert("sext", wrong, x.elem))
    return b.add(rest, b.select(wrong, y, b.like(0, y)))


def _small_quotient(b: Builder, x: Reg, y: Reg, dtype: DType) -> Reg:
    """The truncated quotient of integers of at most 32 bits through floats that hold them exactly.

    Vectors have no integer division; the rounded quotient of integers below 2**24 (floats) or 2**53 (doubles) never
    crosses a whole number. 2**31, from the lowest number by -1, wraps in the truncation.
    """
    to_float = "sitofp" if dtype.kind == "int" else "uitofp"
    real = "double" if dtype.size == 4 else "float"
    ratio = b.div(b.convert(to_float, x, real), b.convert(to_float, y, real))
    return b.convert("trunc", b.convert("fptosi", ratio, "i64" if dtype.size == 4 else "i32"), x.elem)


def floor_quotient(b: Builder, x: Reg, y: Reg) -> Reg:
    """``x // y`` of int64 index expressions with y > 0 and |x| < 2**53, in vectors through doubles.

    A size that is a divisor may be zero where nothing uses the quotient; it must not trap.
    """
    if not x.lanes and not y.lanes:
        if y.name.startswith("%"):
            y = b.select(b.compare("eq", y, b.like(0, y)), b.like(1, y), y)
        quotient = b.binary("sdiv", x, y)
        rest = b.sub(x, b.mul(quotient, y))
        return b.add(quotient, b.convert("sext", b.compare("slt", rest, b.like(0, rest)), "i64"))
    x, y = b.match(x, y)
    ratio = b.div(b.convert("sitofp", x, "double"), b.convert("sitofp", y, "double"))
    return b.convert("fptosi", b.intrinsic("floor", ratio), "i64")


def lane_quotients(b: Builder, start: Reg, y: Reg, lanes: int) -> Reg:
    """``(start + lane) // y`` of int64 index expressions with start >= 0 and y > 0, for each lane: one division, of the
    first lane, and how often a multiple of ``y`` was passed since, in floats that hold such small numbers exactly.
    """
    whole = floor_quotient(b, start, y)
    most = b.const(lanes, "i64")
    left = b.intrinsic("smin", b.sub(y, b.sub(start, b.mul(whole, y))), most)  # lanes before the next multiple
    step = b.intrinsic("smax", b.intrinsic("smin", y, most), b.const(1, "i64"))
    behind = b.sub(b.iota("i32", lanes), b.splat(b.convert("trunc", left, "i32"), lanes))
    middle = b.add(b.convert("sitofp", behind, "float"), b.const(0.5, "float", lanes))
    per_lane = b.div(b.const(1.0, "float"), b.convert("sitofp", b.convert("trunc", step, "i32"), "float"))
    passed = b.intrinsic("floor", b.mul(middle, b.splat(per_lane, lanes)))
    return b.add(b.splat(b.add(whole, b.const(1, "i64")), lanes), b.convert("fptosi", passed, "i64"))


def power(b: Builder, dtype: DType, x: Reg, y: Reg) -> Reg:
    """``x ** y`` by squaring, wrapping; negative exponents leave 1 for 1, +-1 for -1 and 0 for the rest, as eager."""
    wide = b.convert("zext" if dtype.kind != "int" else "sext", y, "i64")

    def turn(_: Reg, carried: list[Reg]) -> list[Reg]:
        total, base, exponent = carried
        odd = b.compare("ne", b.bit_and(exponent, b.like(1, exponent)), b.like(0, exponent))
        total = b.select(odd, b.mul(total, base), total)
        return [total, b.mul(base, base), b.binary("lshr", exponent, b.like(1, exponent))]

    # An exponent has no more bits than its type.
    turns = b.const(BITS[x.elem], "i64")
    total, _, _ = b.counted(b.const(0, "i64"), turns, 1, [b.like(1, x), x, wide], turn)
    if dtype.kind != "int":
        return total
    negative = b.compare("slt", y, b.like(0, y))
    odd = b.compare("ne", b.bit_and(y, b.like(1, y)), b.like(0, y))
    of_minus_one = b.select(odd, b.like(-1, x), b.like(1, x))
    is_one, is_minus = b.compare("eq", x, b.like(1, x)), b.compare("eq", x, b.like(-1, x))
    inverse = b.select(is_one, b.like(1, x), b.select(is_minus, of_minus_one, b.like(0, x)))
    return b.select(negative, inverse, total)


def _extreme(b: Builder, dtype: DType, greater: bool, x: Reg, y: Reg) -> Reg:
    sign = "s" if dtype.kind == "int" else "u"
    return b.select(b.compare(f"{sign}{'gt' if greater else 'lt'}", x, y), x, y)


def _sign(b: Builder, dtype: DType, x: Reg) -> Reg:
    zero, one = b.like(0, x), b.like(1, x)
    if dtype.kind != "int":
        return b.select(b.compare("ne", x, zero), one, zero)
    up = b.select(b.compare("sgt", x, zero), one, zero)
    return b.select(b.compare("slt", x, zero), b.like(-1, x), up)


def _shift_left(b: Builder, dtype: DType, x: Reg, y: Reg) -> Reg:
    """Zero when the distance is negative or not below the width."""
    inside = b.compare("ult", y, b.like(BITS[x.elem], y))
    return b.select(inside, b.binary("shl", x, b.select(inside, y, b.like(0, y))), b.like(0, x))


def _shift_right(b: Builder, dtype: DType, x: Reg, y: Reg) -> Reg:
    """Arithmetic; a distance that is negative or too wide leaves only the sign."""
    bits = BITS[x.elem]
    inside = b.compare("ult", y, b.like(bits, y))
    if dtype.kind == "int":
        return b.binary("ashr", x, b.select(inside, y, b.like(bits - 1, y)))
    return b.select(inside, b.binary("lshr", x, b.select(inside, y, b.like(0, y))), b.like(0, x))


ROWS: dict[str, Callable[..., Reg]] = {
    "add": lambda b, dtype, x, y: b.bit_or(x, y) if dtype.kind == "bool" else b.add(x, y),
    "sub": lambda b, dtype, x, y: b.sub(x, y),
    "mul": lambda b, dtype, x, y: b.bit_and(x, y) if dtype.kind == "bool" else b.mul(x, y),
    "pow": power,
    "maximum": lambda b, dtype, x, y: _extreme(b, dtype, True, x, y),
    "minimum": lambda b, dtype, x, y: _extreme(b, dtype, False, x, y),
    "fmax": lambda b, dtype, x, y: _extreme(b, dtype, True, x, y),
    "fmin": lambda b, dtype, x, y: _extreme(b, dtype, False, x, y),
    "neg": lambda b, dtype, x: b.neg(x),
    "abs": lambda b, dtype, x: x if dtype.kind != "int" else b.select(b.compare("slt", x, b.like(0, x)), b.neg(x), x),
    "sign": _sign,
    "signbit": lambda b, dtype, x: (
        b.compare("slt", x, b.like(0, x)) if dtype.kind == "int" else b.const(False, "i1", x.lanes)
    ),
    "bit_and": lambda b, dtype, x, y: b.bit_and(x, y),
    "bit_or": lambda b, dtype, x, y: b.bit_or(x, y),
    "bit_xor": lambda b, dtype, x, y: b.bit_xor(x, y),
    "bit_not": lambda b, dtype, x: b.bit_not(x),
    "shift_left": _shift_left,
    "shift_right": _shift_right,
}
