"""Finds the number that only says where the last tile of a long array ends, so that full tiles move whole vectors."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from framefuse.codegen.triton.blocks import Blocks
from framefuse.ir.loops import Kernel, Loop
from framefuse.ir.numbers import Expr, Minimum, Symbol

LEAST = 1 << 20  # elements below which a second copy of the code does not repay
STEP = 16  # of which a size must be a multiple for rows to begin at multiples of 16 bytes, whatever their dtype


@dataclass(frozen=True, slots=True)
class End:
    """The ``number`` at which the elements end that programs share among them in equal parts. Where the ``test`` holds,
    a part is full: then any number that is not below the part's end gives the same, so also the multiple of 16 that is
    next below, for which Triton sees that a mask is the same for all elements of a vector.
    """

    number: Symbol
    test: str


def end_of(
    kernel: Kernel, blocks: Blocks, names: Mapping[Symbol, str], words: Mapping[str, int], integer: str,
    hints: Mapping[Symbol, int],
) -> End | None:  # fmt: skip
    """Such a number of a kernel whose lines have these words so many times; None where there is none, or it is read
    for something else.
    """
    loop = kernel.body[0] if len(kernel.body) == 1 else None
    if not isinstance(loop, Loop) or not loop.kind.parallel or blocks.rank != 1:
        return None
    program = "tl.program_id(0)" if integer == "tl.int32" else f"tl.program_id(0).to({integer})"
    for symbol, name in names.items():
        if hints.get(symbol, 0) < LEAST or words.get(name, 0) != 1:
            continue
        if id(loop) in blocks.loops:
            if loop.extent is symbol.expr and blocks.points % STEP == 0:
                return End(symbol, f"({program} * BLOCK0 + BLOCK0 <= {name})")
            continue
        for part in (statement for statement in loop.body if isinstance(statement, Loop)):
            size = _part(part.extent, symbol, loop.axis)
            if size and size % STEP == 0:
                return End(symbol, f"({program} * {size} + {size} <= {name})")
    return None


def _part(extent: Expr, number: Symbol, axis: Symbol) -> int:
    """``size`` of ``min(size, number - size * axis)``; 0 of other extents."""
    atoms = extent.terms[0][0] if len(extent.terms) == 1 and extent.terms[0][1] == 1 else ()
    if len(atoms) == 1 and isinstance(atoms[0], Minimum):
        for bound, rest in ((atoms[0].left, atoms[0].right), (atoms[0].right, atoms[0].left)):
            size = bound.constant
            if size is not None and rest is number.expr - axis.expr * size:
                return size
    return 0
