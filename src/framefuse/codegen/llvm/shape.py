"""Chooses how a vector loop runs: lanes of a vector, vectors a turn, and the kind of tail."""

from __future__ import annotations

from dataclasses import dataclass

from framefuse.codegen.llvm.line_tests import computed_in_lanes, narrow_copies
from framefuse.codegen.llvm.target import Target
from framefuse.ir.dtypes import DType
from framefuse.ir.loops import Accumulator, Apply, Load, Loop, LoopKind, Store, Value
from framefuse.ir.loops.walk import statements

HALF = 2  # bytes

# Instructions of a row in a vector loop where they are not one; functions that are called count as many.
INSTRUCTIONS = {
    "exp": 12, "exp2": 12, "expm1": 18, "log": 24, "log2": 26, "log10": 26, "log1p": 32, "sin": 16, "cos": 16,
    "tan": 22, "tanh": 26, "erf": 20, "sigmoid": 15, "maximum": 2, "minimum": 2, "floordiv": 12,
    "remainder": 12, "fmod": 10, "sinh": 26, "cosh": 26, "erfc": 50, "erfinv": 70,
    "asinh": 55, "acosh": 50,
}  # fmt: skip
CALLED = 40
# Measured on AVX-512. A main loop without masks pays for light bodies, with four vectors a turn up to FOUR instructions
# and two beyond. From MASKED instructions on, a masked loop alone costs less to compile than it loses in running; its
# vectors a turn hide the latency of long chains (30 operations: 1.6 times as fast with two, 2.3 with four), which code
# generation pays for with some 7 ms a vector there: hence fewer for longer bodies, by the rows (instructions, vectors).
FOUR, MASKED = 10, 40
FOUR_NARROW = 32  # the first where results are rounded to 16-bit floats, in long chains of integer instructions
MASKED_UNROLL = ((100, 4), (150, 3), (400, 2))
# A loop in another one may have rows shorter than those vectors, of which each takes the time of all: up to so many
# instructions it has a main loop too, and a tail of single vectors. softplus of 200 rows of 13: 2.5 times as fast, of
# long rows 1.0. Likewise what calls functions, whose code does not grow and whose latency nothing hides.
SPLIT = 150
# Where the machine masks no elements of a size, a mask is a branch a lane, and a masked store of AVX2 takes as long as
# 20 plain ones: from so many instructions on that takes less than computing what is left of a row one by one (AVX2,
# softmax of float16 in rows of 29: 2.5 to 3 times as fast; below it, a scaled row of 17 float32 2.5 times as slow).
BRANCHES = 12


@dataclass(frozen=True, slots=True)
class Shape:
    """``lanes`` of a vector, ``unroll`` vectors a turn of the main loop (which exists if ``main``), tail ``masked``;
    ``singles`` are vectors without a mask between the two.
    """

    lanes: int
    unroll: int
    main: bool
    masked: bool
    singles: bool = False


def vector_shape(loop: Loop, target: Target, repeated: bool) -> Shape:
    """The shape for one vector loop of a kernel; ``repeated`` says that it is inside of another loop."""
    values = list(computed_in_lanes(loop.body, loop.axis))
    dtypes = {value.dtype for value in values} | {
        part for s in statements(loop.body) if isinstance(s, Accumulator) for part in (s.dtype, s.of) if part
    }
    moved = target.masked_bytes <= HALF and narrow_copies(values)
    lanes = max(2, target.vector_bytes // _element(dtypes, HALF if moved else 4))
    work = sum(_instructions(value) for value in values)
    stored = [value.dtype for value in values if isinstance(value, Load)]
    written = [s.value.dtype for s in statements(loop.body) if isinstance(s, Store)]
    fits = target.masked_bytes > 0 and all(dtype.size >= target.masked_bytes for dtype in (*stored, *written))
    masked = fits or (target.masked_bytes > 0 and work >= BRANCHES)
    constant = loop.extent.constant if loop.kind is LoopKind.VECTOR else None
    if masked and constant is not None and constant <= lanes:
        return Shape(lanes, 1, False, True)
    if written and not target.stores_masked and work < BRANCHES:
        masked = fits = False
    if fits and work >= MASKED:
        if any(map(_called, values)) or (repeated and work <= SPLIT):
            return Shape(lanes, 2, True, True)
        unroll = next((count for most, count in MASKED_UNROLL if work <= most), 1)
        return Shape(lanes, unroll, False, True)
    narrow = any(dtype.is_float and dtype.size == 2 for dtype in stored)
    unroll = 4 if work <= (FOUR_NARROW if narrow else FOUR) else 2
    if constant is not None:
        while unroll > 1 and constant < lanes * unroll:
            unroll //= 2
    return Shape(lanes, unroll, True, masked, unroll > 1 and (not fits or (repeated and _writes_apart(loop))))


def _writes_apart(loop: Loop) -> bool:
    """Whether lanes write elements that lie apart: without a mask neighbours among these are a row, with one each is
    written by itself: rotations of 16 complex numbers each 0.7 of eager and 1.6.
    """
    slopes = (each.index.coefficient(loop.axis) for each in statements(loop.body) if isinstance(each, Store))
    return any(slope is None or slope.constant not in (0, 1) for slope in slopes)


def _element(dtypes: set[DType], half: int) -> int:
    """The element size that fills a register; that of 16-bit floats is ``half``: 4 where they are widened."""
    sizes = {half if dtype.is_float and dtype.size == 2 else dtype.size for dtype in dtypes}
    floats = {dtype.size for dtype in dtypes if dtype.is_float}
    if 8 in floats:
        return 8
    if 4 in sizes:
        return 4
    return 8 if 8 in sizes else HALF


def _instructions(value: Value) -> int:
    if not isinstance(value, Apply):
        return 1 if isinstance(value, Load) else 0
    if _called(value):
        return CALLED
    return INSTRUCTIONS.get(value.op, 1)


def _called(value: Value) -> bool:
    """Whether the element is computed by a function of a library, or by as many instructions."""
    if not isinstance(value, Apply):
        return False
    return value.op in RARE or (value.op in INSTRUCTIONS and value.dtype.size > 4)


RARE = {
    "pow", "atan2", "hypot", "nextafter", "asin", "acos", "atan", "atanh", "lgamma", "digamma",
}  # fmt: skip
