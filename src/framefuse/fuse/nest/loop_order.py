"""Turns the axes of a kernel into an order of loops: memory order, neighbours joined, a contiguous axis innermost."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from framefuse.fuse.addressing.layout import estimate
from framefuse.ir import costs
from framefuse.ir.numbers import Expr, Symbol


@dataclass(frozen=True, slots=True)
class Access:
    """One address that the kernel computes, over the group's axes; ``weight`` 2 for a store, 1 for a load, 0 for
    expressions that are no address but must stay right when axes are joined.
    """

    address: Expr
    weight: int


def memory_order(axes: Sequence[Symbol], primary: Expr, hints: Mapping[Symbol, int]) -> list[Symbol]:
    """``axes`` from the widest to the narrowest step of the address ``primary``; those it does not hold stay first."""

    def step(axis: Symbol) -> int:
        slope = primary.coefficient(axis)
        size = 0 if slope is None else abs(estimate(slope, hints))
        return size if size else 1 << 62

    return sorted(axes, key=step, reverse=True)


def vector_axis(axes: Sequence[Symbol], accesses: Sequence[Access], extents: Mapping[Symbol, int]) -> Symbol:
    """The axis along which most accesses are contiguous, or else nearly so; the innermost of several."""

    def score(axis: Symbol) -> tuple[int, int, int]:
        total = near = 0
        for access in accesses:
            slope = access.address.coefficient(axis) if access.weight else None
            if slope is None:
                total -= access.weight
            elif slope.constant == 1:
                total += access.weight
            elif slope.constant != 0:
                total -= access.weight
                near += access.weight * (slope.constant is not None and abs(slope.constant) <= costs.NEAR)
        # A loop of a single point fills one lane of a vector, however contiguous it is.
        return total if extents[axis] > 1 else min(total, 0) - 1, near, list(axes).index(axis)

    return max(axes, key=score)


def joinable(outer: Symbol, inner: Symbol, extent: Expr, expressions: Sequence[Expr]) -> bool:
    """Whether ``outer * extent + inner`` is all that any expression needs of two neighbouring axes."""
    for value in expressions:
        symbols = value.symbols
        if outer not in symbols and inner not in symbols:
            continue
        wide, narrow = value.coefficient(outer), value.coefficient(inner)
        if wide is None or narrow is None or wide is not narrow * extent:
            return False
    return True


@dataclass(slots=True)
class Loops:
    """Axes in order, outermost first, with their extents; ``absorbed`` are axes that became part of a neighbour and
    are 0 in every expression.
    """

    axes: list[Symbol]
    extents: dict[Symbol, Expr]
    absorbed: set[Symbol]

    def extent(self, axis: Symbol) -> Expr:
        """The number of points of one loop."""
        return self.extents[axis]


def join_neighbours(loops: Loops, run: Sequence[Symbol], expressions: list[Expr]) -> list[Symbol]:
    """Joins neighbours of ``run`` where every expression allows it; the outer one of a pair is absorbed by the inner.
    ``expressions`` and ``loops`` change with it; returns what is left of the run.
    """
    left = list(run)
    place = len(left) - 1
    while place > 0:
        outer, inner = left[place - 1], left[place]
        if joinable(outer, inner, loops.extents[inner], expressions):
            loops.extents[inner] = loops.extents[outer] * loops.extents[inner]
            loops.absorbed.add(outer)
            expressions[:] = [value.without(outer) if outer in value.symbols else value for value in expressions]
            del left[place - 1]
        place -= 1
    return left
