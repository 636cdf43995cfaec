"""Finds the numbers by which a long kernel divides at each element, so that code for the recorded ones multiplies."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from framefuse.codegen.triton.blocks import Blocks
from framefuse.codegen.triton.estimates import estimate
from framefuse.codegen.triton.window_places import windows_of
from framefuse.ir.loops import Kernel, Loop, LoopKind
from framefuse.ir.loops.walk import positions, statements
from framefuse.ir.numbers import Expr, Floordiv, Modulo, Symbol

LEAST = 1 << 20  # elements below which no code of its own repays


def known_divisors(kernel: Kernel, blocks: Blocks, hints: Mapping[Symbol, int]) -> dict[Symbol, int]:
    """The recorded values of such numbers, by which a GPU takes some twenty instructions to divide where it does not
    know them: pixel_shuffle by a number that is an argument took five times eager's time.
    """
    rows = blocks.form == "rows" and bool(windows_of(kernel))
    elements = estimate(kernel.extent, hints) * (max(1, blocks.longest) if rows else 1)
    if (blocks.form != "points" and not rows) or elements < LEAST:
        return {}
    numbers = {number.symbol for number in kernel.numbers if not number.real and hints.get(number.symbol, 0) > 0}
    kind = LoopKind.VECTOR if rows else LoopKind.PARALLEL_VECTOR
    loops = (s for s in statements(kernel.body) if isinstance(s, Loop) and s.kind is kind)
    found = (divisor for loop in loops for index in positions(loop.body) for divisor in _divisors(index))
    symbols = {symbol for divisor in found for symbol in divisor.symbols} & numbers
    return {symbol: hints[symbol] for symbol in sorted(symbols, key=lambda symbol: symbol.name)}


def _divisors(index: Expr) -> Iterator[Expr]:
    for atoms, _ in index.terms:
        for atom in atoms:
            if isinstance(atom, (Floordiv, Modulo)):
                yield atom.right
            if not isinstance(atom, Symbol):
                yield from _divisors(atom.left)  # type: ignore[attr-defined]
                yield from _divisors(atom.right)  # type: ignore[attr-defined]
