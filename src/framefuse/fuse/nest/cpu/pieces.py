"""Cuts a vector loop where the pieces of joined values end, so that no element asks in which piece it lies."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field

from framefuse.fuse import costs
from framefuse.fuse.addressing.ranges import ONE, ZERO, never_negative
from framefuse.fuse.grouping.cells import Cell, Mask
from framefuse.fuse.nest.nest import Nest
from framefuse.ir.dtypes import INT64
from framefuse.ir.loops import Index, Let, Loop, LoopKind
from framefuse.ir.numbers import Expr, Symbol, expr, maximum, minimum


@dataclass(frozen=True, slots=True)
class Piece:
    """Points ``first`` to ``last`` of a vector loop, where ``outcomes`` are those of the tests that are asked of
    points; ``inside`` is 1, or 0 where a loop around it is at no point of the piece.
    """

    first: Expr
    last: Expr
    inside: Expr = ONE
    outcomes: dict[Expr, bool] = field(default_factory=dict)

    @property
    def length(self) -> Expr:
        """How many points the loop has."""
        return (self.last - self.first) * self.inside


def pieces(nest: Nest, lane: Symbol) -> list[Piece]:
    """The parts of a vector loop: one for each piece of a cat along it, or along a loop around it, where each part is
    all of it or has no point. Those of several cats (a roll of two dimensions) are cut by each other. The whole loop
    where there is no such cat; the loops of a scan are inside of it.
    """
    found = [Piece(ZERO, nest.loops.extents[lane])]
    if nest.shape.group.rows is not None:
        return found
    within = nest.loops.absorbed.union([lane], *(scan.inner for scan in nest.group.scans))
    around = [axis for axis in nest.loops.axes if axis not in within]
    cats = [cell for cell in nest.shape.order if cell.node.op == "cat" and cell.kind == "op" and cell.tests]
    cuts = dict.fromkeys(cut for cell in cats if (cut := _cut(nest, cell, lane, around)) is not None)
    for axis, ends in sorted(cuts, key=lambda cut: cut[0] is not lane):  # along the loop first: these decide the most
        if len(found) * (len(ends) + 1) <= costs.CPU_CAT_PIECES + 1:
            parts = _parts(nest, axis, ends)
            found = [_both(nest, lane, axis, one, other) for one in found for other in parts]
    return found


def _cut(nest: Nest, cell: Cell, lane: Symbol, around: Sequence[Symbol]) -> tuple[Symbol, tuple[Expr, ...]] | None:
    """The loop that a cat runs along and where its pieces end there, all but the last."""
    for axis in (lane, *around):
        ends = tuple(end for tests in cell.tests if (end := _end(nest, tests, axis)) is not None)
        if len(ends) == len(cell.tests) and (axis is lane or _decided_inside(nest, lane, axis, ends)):
            return axis, ends
    return None


def _parts(nest: Nest, axis: Symbol, ends: Sequence[Expr]) -> list[Piece]:
    """The points of the loop over ``axis`` in each piece."""
    length = nest.loops.extents[axis]
    cuts = [ZERO, *(_within(nest, _alone(nest, end), length) for end in ends), length]
    found = []
    for number, (first, last) in enumerate(itertools.pairwise(cuts)):
        outcomes = {axis.expr - end: place < number for place, end in enumerate(ends)}
        outcomes |= {end - 1 - axis.expr: place >= number for place, end in enumerate(ends)}
        found.append(Piece(first, last, ONE, outcomes))
    return found


def _both(nest: Nest, lane: Symbol, axis: Symbol, one: Piece, other: Piece) -> Piece:
    """The part of a vector loop in which the loop over ``axis``, itself or one around it, is in a piece of its own."""
    outcomes = one.outcomes | other.outcomes
    if axis is not lane:
        inside = minimum(axis.expr - other.first + 1, other.last - axis.expr)  # above zero in this piece
        return Piece(one.first, one.last, one.inside * maximum(ZERO, minimum(expr(1), inside)), outcomes)
    if one.first is ZERO and one.last is nest.loops.extents[lane]:
        return Piece(other.first, other.last, one.inside, outcomes)
    first = maximum(one.first, other.first)
    return Piece(first, maximum(first, minimum(one.last, other.last)), one.inside, outcomes)


@contextmanager
def settled(nest: Nest, piece: Piece) -> Iterator[None]:
    """What the tests of points are known to be while the loop of a piece is written."""
    nest.emitter.settled.update(piece.outcomes)
    yield
    for test in piece.outcomes:
        del nest.emitter.settled[test]


def part(nest: Nest, lane: Symbol, piece: Piece, low: Expr, high: Expr, inside: Callable[[], None]) -> None:
    """The vector loop over the points of a piece from ``low`` to ``high``, expressions over the kernel's axes, at the
    end of the innermost scope.
    """
    parameters, outer = nest.emitter.parameters, nest.emitter.scopes[-1].body
    start, step = nest.new_axis(), nest.new_axis()
    outer.append(Let(start.name, Index(maximum(low, parameters.index(piece.first)), INT64)))
    parameters.name(lane, start.expr + step.expr)
    with settled(nest, piece), nest.scope((lane,)) as scope:
        inside()
    length = maximum(ZERO, minimum(high, parameters.index(piece.last)) - start.expr)
    outer.append(Loop(step, length * parameters.index(piece.inside), tuple(scope.body), LoopKind.VECTOR))


def _decided_inside(nest: Nest, lane: Symbol, axis: Symbol, ends: Sequence[Expr]) -> bool:
    """Whether all that these ends along a loop around it decide is computed in the vector loop: a value computed before
    it is one for all of its parts.
    """
    tests = {test for end in ends for test in (axis.expr - end, end - 1 - axis.expr)}
    for cell in nest.shape.order:
        asked = cell.mask if cell.kind == "load" else itertools.chain(*cell.tests)
        if not tests.isdisjoint(asked) and lane not in nest.shape.axes[cell]:
            return False
    return True


def _end(nest: Nest, tests: Mask, lane: Symbol) -> Expr | None:
    """Where along ``lane`` a piece ends, if that is all that its tests say."""
    if len(tests) != 1:
        return None
    slope = tests[0].coefficient(lane)
    end = tests[0] + lane.expr + 1
    left = _alone(nest, end).symbols
    if slope is None or slope.constant != -1 or left & (nest.group.axes.keys() | nest.shape.positions.keys()):
        return None
    return end


def _alone(nest: Nest, value: Expr) -> Expr:
    """The value without the axes that are part of others."""
    return value.substitute(dict.fromkeys(nest.loops.absorbed & value.symbols, 0))


def _within(nest: Nest, end: Expr, total: Expr) -> Expr:
    """The end of a piece, or the nearer end of the loop where it lies outside (of a slice of a cat)."""
    end = end if never_negative(end, nest.group.axes) else maximum(ZERO, end)
    return end if never_negative(total - end, nest.group.axes) else minimum(total, end)
