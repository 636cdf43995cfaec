"""Writes running reductions: the registers that a loop carries, how terms join, and how lanes fold into one result."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch

from framefuse.codegen.llvm.builder import FLOATS, Builder, Reg
from framefuse.codegen.llvm.casts import HELD, narrowed, widened
from framefuse.ir.dtypes import DType
from framefuse.ir.loops import Accumulator

Parts = list[Reg]
NO_POSITION = (1 << 63) - 1
MASKED = 64  # bytes of the vectors of machines that have registers of masks


@dataclass(eq=False, slots=True)
class Running:
    """An accumulator at this point of the nest: its ``parts`` for each group of lanes.

    Parts are one register, or for float ``max``/``min`` (extreme, whether NaN was seen) and for ``argmax``/``argmin``
    (extreme, its position). ``lanes`` is 0 for a scalar, ``own`` is true when it was declared inside the vector loop:
    lanes that are off then do not matter.
    """

    accumulator: Accumulator
    groups: list[Parts]
    lanes: int
    own: bool
    level: int
    version: int = 0

    @property
    def op(self) -> str:
        return self.accumulator.op

    @property
    def compared(self) -> DType:
        """The dtype of the terms."""
        return (self.accumulator.of or self.accumulator.dtype) if self.op.startswith("arg") else self.accumulator.dtype


def element(dtype: DType) -> str:
    """The register type in which terms of ``dtype`` are joined: 16-bit floats as float."""
    return "float" if dtype.is_float and dtype.size == 2 else HELD[dtype.name]


def identity(b: Builder, op: str, dtype: DType, lanes: int) -> Parts:
    """The parts of a reduction over nothing."""
    elem = element(dtype)
    if op in ("sum", "any"):
        return [b.const(0, elem, lanes)]
    if op in ("prod", "all"):
        return [b.const(1, elem, lanes)]
    lowest = op in ("max", "argmax")
    if dtype.is_float:
        start = b.const(-math.inf if lowest else math.inf, elem, lanes)
    elif dtype.kind == "bool":
        start = b.const(not lowest, elem, lanes)
    else:
        limits = torch.iinfo(dtype.torch)
        start = b.const(limits.min if lowest else limits.max, elem, lanes)
    if op.startswith("arg"):
        return [start, b.const(NO_POSITION, "i64", lanes)]
    return [start, b.const(0, _flag(b, elem), lanes)] if dtype.is_float else [start]


def _flag(b: Builder, elem: str) -> str:
    """The register type of whether NaN was seen: where masks have no registers of their own, as wide as elements."""
    return "i1" if b.target.vector_bytes >= MASKED else {"float": "i32", "double": "i64"}[elem]


def term(b: Builder, op: str, dtype: DType, value: Reg, position: Reg | None) -> Parts:
    """One term as parts."""
    value = widened(b, value, dtype)
    if position is not None:
        return [value, b.splat(position, value.lanes)]
    if op in ("max", "min") and dtype.is_float:
        return [value, b.convert("sext", b.is_nan(value), _flag(b, value.elem))]
    return [value]


def joined(b: Builder, op: str, dtype: DType, left: Parts, right: Parts) -> Parts:
    """Two reductions made one; ``left`` comes first in memory order only as far as positions say so."""
    if op in ("argmax", "argmin"):
        return _first_extreme(b, op, dtype, left, right)
    (x, *nan), (y, *other) = left, right
    if op in ("max", "min"):
        greater, less = ("ogt", "olt") if dtype.is_float else ("sgt", "slt") if dtype.kind == "int" else ("ugt", "ult")
        # x86 has this as one instruction; a NaN of y is lost in it, hence the flag.
        best = b.select(b.compare(greater if op == "max" else less, y, x), y, x)
        return [best, b.bit_or(nan[0], other[0])] if nan else [best]
    if op in ("any", "all"):
        return [b.bit_or(x, y) if op == "any" else b.bit_and(x, y)]
    if x.elem == "i1":
        return [b.bit_or(x, y) if op == "sum" else b.bit_and(x, y)]
    return [b.add(x, y) if op == "sum" else b.mul(x, y)]


def _first_extreme(b: Builder, op: str, dtype: DType, left: Parts, right: Parts) -> Parts:
    """The better of two; of equal ones (NaN equals NaN and beats all) that with the smaller position."""
    (x, at_x), (y, at_y) = left, right
    order = "gt" if op == "argmax" else "lt"
    earlier = b.compare("slt", at_y, at_x)
    if not dtype.is_float:
        better = b.compare(("s" if dtype.kind == "int" else "u") + order, y, x)
        take = b.bit_or(better, b.bit_and(b.compare("eq", y, x), earlier))
    else:
        nan_x, nan_y = b.is_nan(x), b.is_nan(y)
        better = b.bit_or(b.compare("o" + order, y, x), b.bit_and(nan_y, b.bit_not(nan_x)))
        equal = b.bit_or(b.compare("oeq", y, x), b.bit_and(nan_x, nan_y))
        take = b.bit_or(better, b.bit_and(equal, earlier))
    return [b.select(take, y, x), b.select(take, at_y, at_x)]


def _has_flag(op: str, parts: Parts) -> bool:
    """Whether the second part is a mask of the lanes in which NaN was seen."""
    return op in ("max", "min") and len(parts) > 1 and parts[1].elem == "i1"


def accumulate(b: Builder, op: str, dtype: DType, parts: Parts, more: Parts, mask: Reg | None) -> Parts:
    """``parts`` with one term a lane joined, in the lanes of ``mask``."""
    if mask is not None and _has_flag(op, parts):  # a flag is set where its lane is on: one instruction, not four
        best, seen = joined(b, op, dtype, parts, [more[0], b.bit_and(more[1], mask)])
        return [b.select(mask, best, parts[0]), seen]
    result = joined(b, op, dtype, parts, more)
    if mask is None:
        return result
    return [b.select(mask, new, old) for new, old in zip(result, parts, strict=True)]


def tree(b: Builder, op: str, dtype: DType, groups: list[Parts]) -> Parts:
    """Several reductions made one, pair by pair."""
    while len(groups) > 1:
        paired = [joined(b, op, dtype, *groups[k : k + 2]) for k in range(0, len(groups) - 1, 2)]
        groups = paired + groups[len(paired) * 2 :]
    return groups[0]


def folded(b: Builder, op: str, dtype: DType, parts: Parts) -> Parts:
    """The lanes made one scalar, half by half, always in the same order."""
    if _has_flag(op, parts):  # one test of a register of masks, beside the folding of the lanes
        return [*folded(b, op, dtype, parts[:1]), b.any_lane(parts[1])]
    while parts[0].lanes:
        halves = [[b.half_of(part, upper) for part in parts] for upper in (False, True)]
        parts = joined(b, op, dtype, *halves)
    return parts


def result(b: Builder, op: str, dtype: DType, parts: Parts) -> Reg:
    """The value of a finished reduction: the position for argmax and argmin."""
    if op.startswith("arg"):
        return parts[1]
    value = parts[0]
    if len(parts) > 1:
        seen = parts[1] if parts[1].elem == "i1" else b.compare("ne", parts[1], b.like(0, parts[1]))
        value = b.select(seen, b.like(math.nan, value), value)
    return narrowed(b, value, dtype) if value.elem in FLOATS else value
