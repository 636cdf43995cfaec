"""Counts how many points of a kernel's axes are neighbours in memory."""

from __future__ import annotations

from collections.abc import Mapping

from framefuse.fuse.addressing.layout import estimate
from framefuse.ir.numbers import Expr, Symbol


def run_of(where: Expr, axes: Mapping[Symbol, int], hints: Mapping[Symbol, int]) -> int:
    """How many points of ``axes``, of these sizes, are neighbours at an address."""
    steps = {axis: step for axis in axes if (step := where.coefficient(axis)) is not None and axes[axis] > 1}
    left, run = {axis: estimate(step, hints) for axis, step in steps.items()}, 1
    while next_ := next((axis for axis, step in left.items() if step == run), None):
        run *= axes[next_]
        del left[next_]
    return run
