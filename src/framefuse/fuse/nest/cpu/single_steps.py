"""Says which numbers of a kernel were 1 and are steps through memory, where the kernel is much simpler if they are."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from framefuse.fuse.addressing.layout import estimate
from framefuse.fuse.nest.nest import Built
from framefuse.ir.loops import Load, Loop, Store
from framefuse.ir.loops.walk import statements, values_of
from framefuse.ir.numbers import Expr, Symbol


def with_single_steps(built: Built, hints: Mapping[Symbol, int]) -> Built:
    """The kernel, to be written once more for steps of 1 where vector loops went by such a step when it was recorded:
    that of rows of one element, as ``(n, 1) * (1,)`` has them.
    """
    kernel = built.kernel
    were = dict.fromkeys(
        number.symbol
        for number, value in zip(kernel.numbers, built.numbers, strict=True)
        if isinstance(value, Expr) and estimate(value, hints) == 1
    )
    if not were:
        return built
    steps: set[Symbol] = set()
    for loop in statements(kernel.body):
        if isinstance(loop, Loop) and loop.kind.vector:
            stores = [part.index for part in statements(loop.body) if isinstance(part, Store)]
            loads = [part.index for part in values_of(loop.body) if isinstance(part, Load)]
            for slope in (index.coefficient(loop.axis) for index in (*stores, *loads)):
                if slope is not None and slope.constant is None and slope.symbols <= were.keys():
                    steps |= slope.symbols
    ones = dict.fromkeys((*kernel.ones, *(symbol for symbol in were if symbol in steps)))
    return replace(built, kernel=replace(kernel, ones=tuple(ones))) if steps else built
