"""Finds the elements of one operand that each point reads at fixed distances, as those of a window: their addresses are
one and a number, which is part of an instruction where code is for the recorded sizes alone.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

from framefuse.codegen.triton.blocks import Blocks
from framefuse.codegen.triton.estimates import estimate
from framefuse.ir.loops import Kernel, Load
from framefuse.ir.loops.walk import values_of
from framefuse.ir.numbers import Expr, Symbol, expr

PLACES = 4  # of one buffer, from which they are a window
LEAST = 1 << 20  # elements below which no code of its own repays
Windows = dict[tuple[str, Expr], tuple[Expr, Expr]]


def windows_of(kernel: Kernel) -> Windows:
    """The loads of windows, by buffer and place: what moves with the point, and the distance from there."""
    numbers = {number.symbol for number in kernel.numbers if not number.real}
    groups: dict[tuple[str, Expr], dict[Expr, Expr]] = {}
    for value in values_of(kernel.body):
        if isinstance(value, Load):
            fixed = expr(0)
            for term in value.index.terms:
                fixed = fixed + Expr((term,)) if Expr((term,)).symbols <= numbers else fixed
            groups.setdefault((value.buffer, value.index - fixed), {})[value.index] = fixed
    return {
        (buffer, index): (moving, fixed)
        for (buffer, moving), places in groups.items()
        if len(places) >= PLACES and moving.constant is None
        for index, fixed in places.items()
    }


def known_distances(kernel: Kernel, blocks: Blocks, hints: Mapping[Symbol, int]) -> dict[Symbol, int]:
    """The recorded values of the numbers that distances in windows are made of, in a kernel of many points."""
    if blocks.form not in ("tile", "points", "rows"):
        return {}
    turns = {"tile": math.prod(blocks.shape), "rows": max(1, blocks.longest)}
    points = turns.get(blocks.form, 1)  # of one turn of the parallel axis
    if max(1, estimate(kernel.extent, hints)) * points < LEAST:
        return {}
    symbols = {symbol for _, fixed in windows_of(kernel).values() for symbol in fixed.symbols}
    return {symbol: hints[symbol] for symbol in sorted(symbols, key=lambda symbol: symbol.name) if symbol in hints}
