"""Tells between which numbers the value of a pointwise primitive lies, from what its operands lie between."""

from __future__ import annotations

import math
from collections.abc import Sequence

from framefuse.codegen.triton.builder import UNBOUNDED, Tile

ALWAYS = {"sin": (-1.0, 1.0), "cos": (-1.0, 1.0), "tanh": (-1.0, 1.0), "erf": (-1.0, 1.0), "sigmoid": (0.0, 1.0)}


def limits(tile: Tile) -> tuple[float, float]:
    """What a float lies between where it is not NaN, but for the rounding of its steps."""
    if tile.constant is not None and math.isfinite(tile.constant):
        return float(tile.constant), float(tile.constant)
    return tile.bounds


def bounds(op: str, args: Sequence[Tile]) -> tuple[float, float]:
    """The least and the largest value of ``op`` on floats where it is not NaN; unbounded where nothing is known."""
    if op in ALWAYS:
        return ALWAYS[op]
    if not all(arg.dtype.is_float for arg in args):
        return UNBOUNDED
    known = [limits(arg) for arg in args]
    match op, known:
        case "cast", [source]:
            return source
        case "neg", [(low, high)]:
            return -high, -low
        case "add", [(a, b), (c, d)]:
            return a + c, b + d
        case "sub", [(a, b), (c, d)]:
            return a - d, b - c
        case "maximum", [(a, b), (c, d)]:
            return max(a, c), max(b, d)
        case "minimum", [(a, b), (c, d)]:
            return min(a, c), min(b, d)
        case "mul", [(a, b), (c, d)] if max(map(abs, (a, b, c, d))) < math.inf:
            corners = a * c, a * d, b * c, b * d
            return min(corners), max(corners)
    return UNBOUNDED
