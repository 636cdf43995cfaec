"""Writes conversions between element types with eager's rules for rounding, NaN and values out of range."""

from __future__ import annotations

from framefuse.codegen.llvm.builder import Builder, Reg
from framefuse.ir.dtypes import DType

# How values of each dtype are held in registers. The 16-bit floats are bits until they are widened: LLVM has no
# vector selects of them on most machines, and its truncation to bfloat calls a function a lane. Complex numbers are
# only moved: arithmetic is that of their parts.
HELD = {
    "bool": "i1", "uint8": "i8", "int8": "i8", "int16": "i16", "int32": "i32", "int64": "i64", "float16": "i16",
    "bfloat16": "i16", "float32": "float", "float64": "double",
    "complex64": "i64", "complex128": "i128",
}  # fmt: skip
DENORMAL = 0x20  # in the classes of vfpclassps


def cast(b: Builder, x: Reg, source: DType, target: DType) -> Reg:
    """``x.to(target)``: floats to integers truncate, to bool compare with zero; 16-bit floats round from float32."""
    if source is target:
        return x
    if source.is_float and source.size == 2:
        return _from_float(b, widened(b, x, source), target)
    if source.is_float:
        return _from_float(b, x, target)
    if target.is_float:
        elem = "double" if target.size == 8 else "float"
        return narrowed(b, b.convert("uitofp" if source.kind != "int" else "sitofp", x, elem), target)
    if target.kind == "bool":
        return b.compare("ne", x, b.like(0, x))
    held = HELD[target.name]
    if source.kind == "bool" or source.size < target.size:
        return b.convert("sext" if source.kind == "int" else "zext", x, held)
    return b.convert("trunc", x, held)


# A double that holds whole numbers of fewer than 52 bits in its own last bits, and its bits.
WHOLE, WHOLE_BITS = 2.0**52 + 2.0**51, 0x4338000000000000


def place(b: Builder, x: Reg, target: DType) -> Reg:
    """``cast`` of int64 positions to floats, by the bits of a double: AVX2 converts such vectors a lane at a time."""
    bits = b.add(x, b.const(WHOLE_BITS, "i64", x.lanes))
    wide = b.sub(b.convert("bitcast", bits, "double"), b.const(WHOLE, "double", x.lanes))
    return wide if target.size == 8 else narrowed(b, b.convert("fptrunc", wide, "float"), target)


def _from_float(b: Builder, x: Reg, target: DType) -> Reg:
    if target.kind == "bool":
        return b.compare("une", x, b.like(0.0, x))
    if target.is_float:
        if target.size == 8:
            return b.convert("fpext", x, "double")
        return narrowed(b, b.convert("fptrunc", x, "float"), target)
    # Out of range the machine's own conversion decides, as it does in eager: wide first, then the low bits.
    wide = "i64" if target.size == 8 or target.kind == "uint" else "i32"
    return b.convert("trunc", b.convert("fptosi", x, wide), HELD[target.name])


def widened(b: Builder, x: Reg, dtype: DType) -> Reg:
    """A float of any size as float32 (float64 stays)."""
    if dtype.name == "bfloat16":
        bits = b.binary("shl", b.convert("zext", x, "i32"), b.const(16, "i32", x.lanes))
        return b.convert("bitcast", bits, "float")
    if dtype.name == "float16":
        return b.convert("fpext", b.convert("bitcast", x if x.lanes else _apart(b, x), "half"), "float")
    return x


def _apart(b: Builder, x: Reg) -> Reg:
    """An element of 16 bits by way of a register for integers. What is converted from memory x86 inserts into any
    vector register, LLVM takes one that a sum grows in, and each term waits for the one before: a cumsum of float16
    took twice as long.
    """
    if not b.target.triple.startswith("x86_64"):
        return x
    zero = b.convert("trunc", b.binary("lshr", Reg("%begin", "i64"), b.const(63, "i64")), "i16")  # none begins below 0
    return b.binary("or", x, zero)


def narrowed(b: Builder, x: Reg, dtype: DType) -> Reg:
    """A float32 rounded to a 16-bit float's bits; other dtypes pass.

    To bfloat16 by integers where a lane is denormal: the machine's instruction makes zeros of these, which eager keeps.
    """
    if dtype.name == "bfloat16":
        if not b.target.bfloats or x.lanes not in (8, 16):
            return _to_bfloat(b, x)
        bits = 32 * x.lanes
        rounded = b.call(f"llvm.x86.avx512bf16.cvtneps2bf16.{bits}", [x], Reg("", "bfloat", x.lanes))
        denormal = b.call(f"llvm.x86.avx512.fpclass.ps.{bits}", [x], Reg("", "i1", x.lanes), extra=f"i32 {DENORMAL}")
        return b.guarded(b.any_lane(denormal), [b.convert("bitcast", rounded, "i16")], lambda: [_to_bfloat(b, x)])[0]
    if dtype.name == "float16":
        return b.convert("bitcast", b.convert("fptrunc", x, "half"), "i16")
    return x


def with_sign(b: Builder, op: str, bits: Reg) -> Reg:
    """``neg`` or ``abs`` of a 16-bit float by its one bit that they change, NaN's too, as eager does."""
    sign = b.like(-0x8000, bits)
    return b.bit_xor(bits, sign) if op == "neg" else b.bit_and(bits, b.like(0x7FFF, bits))


def _to_bfloat(b: Builder, x: Reg) -> Reg:
    """By integers, the even one of two equally near; NaN must not round up to infinity."""
    bits = b.convert("bitcast", x, "i32")
    odd = b.bit_and(b.binary("lshr", bits, b.like(16, bits)), b.like(1, bits))
    rounded = b.binary("lshr", b.add(bits, b.add(odd, b.like(0x7FFF, bits))), b.like(16, bits))
    kept = b.select(b.is_nan(x), b.like(0x7FC0, bits), rounded)
    return b.convert("trunc", kept, "i16")
