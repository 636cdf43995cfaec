"""Writes one pointwise primitive on registers: the row of the table and the dtype choose the instructions."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial

from framefuse.codegen.llvm import error_functions, integers, maths_float32, maths_float64
from framefuse.codegen.llvm.builder import Builder, Reg
from framefuse.codegen.llvm.casts import cast, widened
from framefuse.codegen.llvm.math_calls import function
from framefuse.errors import CompilerBug
from framefuse.ir.dtypes import FLOAT32 as FLOAT32_ROW
from framefuse.ir.dtypes import DType
from framefuse.ir.loops.nodes import DIVISIONS

Fail = Callable[[Reg], None]


def apply(b: Builder, op: str, args: list[Reg], dtype: DType, result: DType, fail: Fail) -> Reg:
    """The register of ``op(*args)``: operands of ``dtype`` (of the last one for ``where``) and a ``result`` dtype.

    ``fail`` is called with a mask of the lanes in which eager would raise (integer division by zero).
    """
    if op == "cast":
        return cast(b, args[0], dtype, result)
    if op == "where":
        return b.select(*args)
    if op in COMPARISONS:
        return _compare(b, op, args[0], args[1], dtype)
    args = b.match(*args)
    if dtype.is_float:
        if dtype.size == 2:
            return _in_float32(b, op, args, dtype, result, fail)
        if b.exact and op in EXACT:
            return EXACT[op](b, *args)
        row = FLOAT.get(op) or (FLOAT32 if dtype.size == 4 else FLOAT64).get(op)
        if row is not None:
            return row(b, *args)
        if op in LIBRARY:
            return function(b, LIBRARY[op], *args)
    else:
        if op in DIVISIONS:
            return integers.divide(b, op, args[0], args[1], dtype, fail)
        if op in integers.ROWS:
            return integers.ROWS[op](b, dtype, *args)
    raise CompilerBug(f"no code for {op} of {dtype}")


def known(op: str, dtype: DType) -> bool:
    """Whether :func:`apply` has code for ``op`` on operands of ``dtype``."""
    if op in ("cast", "where") or op in COMPARISONS:
        return True
    if dtype.is_float:
        return op in FLOAT or op in FLOAT32 or op in LIBRARY
    return op in DIVISIONS or op in integers.ROWS


def _in_float32(b: Builder, op: str, args: list[Reg], dtype: DType, result: DType, fail: Fail) -> Reg:
    """A 16-bit operation through float32, for the rows that are exact there (neg, abs, isnan, maximum...)."""
    value = apply(b, op, [widened(b, arg, dtype) for arg in args], FLOAT32_ROW, result, fail)
    return cast(b, value, FLOAT32_ROW, dtype) if result is dtype else value


def _compare(b: Builder, op: str, x: Reg, y: Reg, dtype: DType) -> Reg:
    if dtype.is_float:
        return b.compare(COMPARISONS[op][0], widened(b, x, dtype), widened(b, y, dtype))
    return b.compare(COMPARISONS[op][1 if dtype.kind == "int" else 2], x, y)


def maximum(b: Builder, x: Reg, y: Reg) -> Reg:
    """NaN of either operand wins; of equal zeros the second is the result."""
    return _extreme(b, "gt", x, y)


def minimum(b: Builder, x: Reg, y: Reg) -> Reg:
    return _extreme(b, "lt", x, y)


def _extreme(b: Builder, order: str, x: Reg, y: Reg) -> Reg:
    if b.is_number(y):
        # The second operand is a constant: an unordered comparison lets NaN of the first pass.
        return b.select(b.compare(f"u{order}", x, y), x, y)
    greater = b.select(b.compare(f"o{order}", x, y), x, y)
    if b.is_number(x):
        return greater
    return b.select(b.is_nan(x), x, greater)


def fmax(b: Builder, x: Reg, y: Reg) -> Reg:
    """A NaN operand loses."""
    return b.select(b.is_nan(y), x, b.select(b.compare("ogt", x, y), x, y))


def fmin(b: Builder, x: Reg, y: Reg) -> Reg:
    return b.select(b.is_nan(y), x, b.select(b.compare("olt", x, y), x, y))


def sign(b: Builder, x: Reg) -> Reg:
    """-1, 0 or 1; zero for NaN and for either zero."""
    zero = b.like(0.0, x)
    up = b.select(b.compare("ogt", x, zero), b.like(1.0, x), zero)
    return b.select(b.compare("olt", x, zero), b.like(-1.0, x), up)


def signbit(b: Builder, x: Reg) -> Reg:
    bits = b.convert("bitcast", x, "i32" if x.elem == "float" else "i64")
    return b.compare("slt", bits, b.like(0, bits))


def fmod(b: Builder, x: Reg, y: Reg) -> Reg:
    """The exact remainder with the dividend's sign: what a fused multiply-add leaves of the truncated quotient, which
    may be one too large. Of a quotient that is no exact integer the library takes it, in double, since SLEEF's float
    one fails on denormal divisors.
    """
    size, divisor = b.intrinsic("fabs", x), b.intrinsic("fabs", y)
    quotient = b.intrinsic("trunc", b.div(size, divisor))
    rest = b.fma(b.neg(quotient), divisor, size)
    rest = b.select(b.compare("olt", rest, b.like(0.0, x)), b.add(rest, divisor), rest)
    rest = b.select(b.compare("olt", size, divisor), size, rest)  # also where the divisor is infinite
    far = b.compare("oge", quotient, b.like(2.0 ** (24 if x.elem == "float" else 53), x))
    for finite in (b.compare("olt", size, b.like(math.inf, x)), b.compare("ogt", divisor, b.like(0.0, x))):
        far = b.bit_and(far, finite)
    rest = b.intrinsic("copysign", rest, x)
    return b.guarded(b.any_lane(far), [rest], lambda: [_through_double(b, "fmod", x, y)])[0]


def _through_double(b: Builder, name: str, *args: Reg) -> Reg:
    result = function(b, name, *(b.convert("fpext", arg, "double") for arg in args))
    return b.convert("fptrunc", result, args[0].elem)


def asinh(b: Builder, x: Reg) -> Reg:
    """Of doubles, or in double: as log(2 |x|) where the library's square overflows."""
    return _hyperbolic(b, "asinh", x)


def acosh(b: Builder, x: Reg) -> Reg:
    return _hyperbolic(b, "acosh", x)


def acosh_float64(b: Builder, x: Reg) -> Reg:
    """Of doubles, in vectors."""
    return maths_float32.acosh(b, x, lambda b, value: function(b, "log", value), 1e9)


def _hyperbolic(b: Builder, name: str, x: Reg) -> Reg:
    if x.elem == "float":
        return _through_double(b, name, x)
    large = b.compare("ogt", b.intrinsic("fabs", x) if name == "asinh" else x, b.like(1e150, x))
    result = function(b, name, x)

    def far() -> list[Reg]:
        logarithm = b.add(function(b, "log", b.intrinsic("fabs", x)), b.like(math.log(2), x))
        return [b.select(large, b.intrinsic("copysign", logarithm, x), result)]

    return b.guarded(b.any_lane(large), [result], far)[0]


def cosh(b: Builder, x: Reg) -> Reg:
    """Of doubles: by the square of a smaller power where the library overflows too early."""
    return _exponential(b, "cosh", x)


def sinh(b: Builder, x: Reg) -> Reg:
    return _exponential(b, "sinh", x)


def _exponential(b: Builder, name: str, x: Reg) -> Reg:
    size, result = b.intrinsic("fabs", x), function(b, name, x)
    large = b.compare("ogt", size, b.like(709.0, x))

    def far() -> list[Reg]:
        root = function(b, "exp", b.mul(size, b.like(0.5, x)))
        power = b.mul(b.mul(root, b.like(0.5, x)), root)
        return [b.select(large, b.intrinsic("copysign", power, x) if name == "sinh" else power, result)]

    return b.guarded(b.any_lane(large), [result], far)[0]


def remainder(b: Builder, x: Reg, y: Reg) -> Reg:
    """The exact remainder with the divisor's sign."""
    rest = fmod(b, x, y)
    zero = b.like(0.0, x)
    signs_differ = b.bit_xor(b.compare("olt", y, zero), b.compare("olt", rest, zero))
    wrong = b.bit_and(b.compare("une", rest, zero), signs_differ)
    return b.select(wrong, b.add(rest, y), rest)


def floordiv(b: Builder, x: Reg, y: Reg) -> Reg:
    """The floor of the quotient by way of the exact remainder, as torch.floor_divide and Python define it."""
    zero = b.like(0.0, x)
    rest, exact = fmod(b, x, y), b.div(x, y)
    size = b.like(math.inf, x)
    overflows = b.compare("oeq", b.intrinsic("fabs", exact), size)  # then the library has no remainder
    overflows = b.bit_and(overflows, b.compare("one", b.intrinsic("fabs", x), size))
    quotient = b.div(b.select(overflows, x, b.sub(x, rest)), y)
    signs_differ = b.bit_xor(b.compare("olt", y, zero), b.compare("olt", rest, zero))
    wrong = b.bit_and(b.compare("une", rest, zero), signs_differ)
    quotient = b.select(wrong, b.sub(quotient, b.like(1.0, x)), quotient)
    floor = b.intrinsic("floor", quotient)
    above = b.compare("ogt", b.sub(quotient, floor), b.like(0.5, x))
    floor = b.select(above, b.add(floor, b.like(1.0, x)), floor)
    floor = b.select(b.compare("oeq", quotient, zero), b.intrinsic("copysign", zero, exact), floor)
    return b.select(b.compare("oeq", y, zero), exact, floor)


def _called(name: str, b: Builder, x: Reg) -> Reg:
    return function(b, name, x)


def _unary(name: str) -> Callable[[Builder, Reg], Reg]:
    return lambda b, x: b.intrinsic(name, x)


# ordered predicate of floats, signed and unsigned predicates of integers
COMPARISONS = {
    "eq": ("oeq", "eq", "eq"),
    "ne": ("une", "ne", "ne"),
    "lt": ("olt", "slt", "ult"),
    "le": ("ole", "sle", "ule"),
    "gt": ("ogt", "sgt", "ugt"),
    "ge": ("oge", "sge", "uge"),
}
FLOAT: dict[str, Callable[..., Reg]] = {
    "add": Builder.add,
    "sub": Builder.sub,
    "mul": Builder.mul,
    "div": Builder.div,
    "fma": Builder.fma,
    "neg": Builder.neg,
    "isnan": Builder.is_nan,
    "abs": _unary("fabs"),
    "sqrt": _unary("sqrt"),
    "floor": _unary("floor"),
    "ceil": _unary("ceil"),
    "trunc": _unary("trunc"),
    "round": _unary("roundeven"),
    "copysign": lambda b, x, y: b.intrinsic("copysign", x, y),
    "reciprocal": lambda b, x: b.div(b.like(1.0, x), x),
    "rsqrt": lambda b, x: b.div(b.like(1.0, x), b.intrinsic("sqrt", x)),
    "maximum": maximum,
    "minimum": minimum,
    "fmax": fmax,
    "fmin": fmin,
    "sign": sign,
    "signbit": signbit,
    "fmod": fmod,
    "remainder": remainder,
    "floordiv": floordiv,
    "digamma": maths_float64.digamma,
}
FLOAT32: dict[str, Callable[..., Reg]] = {
    name: getattr(maths_float32, name)
    for name in (
        "exp", "exp2", "expm1", "log", "log2", "log10", "log1p", "sin", "cos", "tanh", "sinh", "cosh", "asinh", "acosh",
        "erf", "sigmoid",
    )
}  # fmt: skip
FLOAT32 |= {"erfc": error_functions.erfc, "erfinv": error_functions.erfinv_float32}
FLOAT64: dict[str, Callable[..., Reg]] = {
    "sigmoid": maths_float64.sigmoid,
    "sinh": sinh,
    "cosh": cosh,
    "asinh": asinh,
    "acosh": acosh_float64,
    "erfinv": error_functions.erfinv_float64,
}
# Rows where eager's vectors call another function than ours.
EXACT: dict[str, Callable[..., Reg]] = {
    "asinh": asinh,
    "acosh": acosh,
    "sigmoid": lambda b, x: b.div(b.like(1.0, x), b.add(b.like(1.0, x), function(b, "exp", b.neg(x)))),
    **{
        name: partial(_called, name)
        for name in (
            "exp", "exp2", "expm1", "log", "log2", "log10", "log1p", "tanh", "erf", "erfc", "sin", "cos", "sinh",
            "cosh",
        )
    },
}  # fmt: skip
# Rows that a library function computes, with its name in C.
LIBRARY = {
    name: name
    for name in (
        "exp", "exp2", "expm1", "log", "log2", "log10", "log1p", "sin", "cos", "tan", "tanh", "erf",
        "erfc", "atan", "asin", "acos", "atanh", "atan2", "hypot", "pow",
        "nextafter", "lgamma",
    )
}  # fmt: skip
