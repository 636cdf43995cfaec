"""Writes calls of mathematical functions that are not inlined: SLEEF for vectors, the C library for scalars."""

from __future__ import annotations

from framefuse.codegen.llvm.addresses import address
from framefuse.codegen.llvm.builder import Builder, Reg

# Accuracy suffixes of SLEEF's names; functions not listed are u10 (1.0 ulp).
SUFFIX = {"hypot": "_u05", "erfc": "_u15", "fmod": "", "nextafter": ""}
# What eager's vectors take less accurately (3.5 ulp).
ROUGH = frozenset(("sin", "cos"))
# Vector length as SLEEF names it: 16 floats or 8 doubles of AVX-512, and so on down.
LETTER = {"float": "f", "double": "d"}


def function(b: Builder, name: str, *args: Reg) -> Reg:
    """``name`` (as in C: sin, pow, lgamma...) of floats or doubles, lane by lane: at most 1.5 ulp."""
    operands = b.match(*args)
    first = operands[0]
    if not first.lanes:
        symbol = name + ("f" if first.elem == "float" else "")
        b.imports.add(symbol)
        return b.call(symbol, operands)
    suffix = "_u35" if b.exact and name in ROUGH else SUFFIX.get(name, "_u10")
    symbol = f"Sleef_{name}{LETTER[first.elem]}{first.lanes}{suffix}"
    size = first.lanes * (4 if first.elem == "float" else 8)
    if b.target.sleef and size <= b.target.vector_bytes and address(symbol):
        b.imports.add(symbol)
        b.calls_vectors = True
        return b.call(symbol, operands)
    halves = [function(b, name, *(b.half_of(x, upper) for x in operands)) for upper in (False, True)]
    if first.lanes > 2:
        return b.join(*halves)
    pair = Reg("poison", first.elem, first.lanes)
    for lane, half in enumerate(halves):
        pair = b.op(first.elem, first.lanes, f"insertelement {pair}, {half}, i32 {lane}")
    return pair
