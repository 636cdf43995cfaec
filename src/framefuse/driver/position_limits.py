"""Turns the code of kernels that count positions in 32 bits into what must hold of sizes."""

from __future__ import annotations

from framefuse.ir.code import LaunchedCode
from framefuse.ir.comparisons import Relation
from framefuse.ir.compiled import GraphCode
from framefuse.ir.numbers import expr
from framefuse.ir.schedule import RunKernel

POSITIONS = 2**31 - 2**20  # below it the kernels of a GPU count positions in 32 bits


def limits(code: GraphCode) -> tuple[Relation, ...]:
    """What must hold of sizes where kernels count positions in 32 bits."""
    found: dict[Relation, None] = {}
    named = {symbol: values[0] for symbol, values in code.schedule.largest if len(values) == 1}
    for index, compiled in code.kernels.items():
        item = code.schedule.items[index]
        if not isinstance(item, RunKernel) or not isinstance(compiled, LaunchedCode):
            continue
        sizes = {symbol: size.substitute(named) for symbol, size in item.sizes.items()}
        if all(size.constant is not None for size in sizes.values()):
            continue  # the code was chosen by them
        for limit in compiled.code.limits:
            last = limit.substitute(sizes)
            if last.constant is not None:
                continue  # the code was chosen by it
            found[Relation("<", last, expr(POSITIONS), "positions of 32 bits")] = None
            found[Relation("<=", expr(0), last, "positions of 32 bits")] = None
    return tuple(found)
