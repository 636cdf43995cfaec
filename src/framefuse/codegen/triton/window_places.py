"""Finds the elements of one operand that each point reads at fixed distances, as those of a window: their addresses are
one and a number, which is part of an instruction where code is for the recorded sizes alone. There the borders of what
is read are known as well, and most of a padded window is seen to lie within.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

from framefuse.codegen.triton.blocks import Blocks
from framefuse.codegen.triton.estimates import estimate
from framefuse.ir.loops import Index, Kernel, Let, Load
from framefuse.ir.loops.once import once
from framefuse.ir.loops.walk import statements, values_of
from framefuse.ir.numbers import Expr, Symbol, expr

PLACES = 4  # of one buffer, from which they are a window
BESIDE = 8  # elements between a point of a window and the next one along a row, at most
LEAST = 1 << 20  # elements below which no code of its own repays
Windows = dict[tuple[str, Expr], tuple[Expr, Expr]]


@once
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


def known_sizes(kernel: Kernel, blocks: Blocks, hints: Mapping[Symbol, int]) -> dict[Symbol, int]:
    """The recorded values of numbers in a kernel of many points: those that distances in windows are made of, and of
    windows of pictures all but those that only say how many tiles there are. Instructions of max_pool2d(3, 2, 1) for
    sm_90, 4 points: 422, with all of them known 214; of avg_pool2d 528 and 300, of max_pool2d(2) 187 and 83.
    """
    if blocks.form not in ("tile", "points", "rows"):
        return {}
    turns = {"tile": math.prod(blocks.shape), "rows": max(1, blocks.longest)}
    points = turns.get(blocks.form, 1)  # of one turn of the parallel axis
    if max(1, estimate(kernel.extent, hints)) * points < LEAST:
        return {}
    windows = windows_of(kernel)
    symbols = {symbol for _, fixed in windows.values() for symbol in fixed.symbols}
    if _are_of_pictures(kernel, windows):
        symbols = {number.symbol for number in kernel.numbers if not number.real} - kernel.extent.symbols
    return {symbol: hints[symbol] for symbol in sorted(symbols, key=lambda symbol: symbol.name) if symbol in hints}


def _are_of_pictures(kernel: Kernel, windows: Windows) -> bool:
    """Whether windows have two sides, or reach beyond what they lie in, or points are weighed that lie where values
    say, as in interpolation.
    """
    steps = [fixed for _, fixed in windows.values()]
    near = any(0 < abs(step.constant) <= BESIDE for step in steps if step.constant is not None)
    sides = near and any(step.symbols for step in steps)
    loads = [value for value in values_of(kernel.body) if isinstance(value, Load)]
    padded = any(load.mask is not None and (load.buffer, load.index) in windows for load in loads)
    made = {s.name for s in statements(kernel.body) if isinstance(s, Let) and not isinstance(s.value, Index)}
    places: dict[str, set[Expr]] = {}
    for load in loads:
        if any(symbol.name in made for symbol in load.index.symbols):
            places.setdefault(load.buffer, set()).add(load.index)
    return sides or padded or any(len(each) >= PLACES for each in places.values())
