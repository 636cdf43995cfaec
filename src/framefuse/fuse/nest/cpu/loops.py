"""Opens the loops around a kernel's statements: the outermost parallel, the innermost a vector loop."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence

from framefuse.fuse import costs
from framefuse.fuse.addressing.ranges import ZERO, never_negative
from framefuse.fuse.grouping.cells import Mask
from framefuse.fuse.nest.nest import Nest
from framefuse.ir.loops import LoopKind, Statement
from framefuse.ir.numbers import Expr, Symbol, expr, maximum, minimum, product


def around(
    nest: Nest, outer: Sequence[Symbol], vector: Symbol | None, inside: Callable[[], None]
) -> tuple[list[Statement], Expr]:
    """The loops over ``outer`` and then the vector axis, of which the outermost is parallel, around a body; returns
    the statements and the extent of the parallel loop.
    """
    with nest.scope() as top:
        nest.emitter.floor = 1
        extents = nest.loops.extents
        if not outer:
            assert vector is not None
            extent = extents[vector]
            with nest.axis(vector, LoopKind.PARALLEL_VECTOR):
                inside()
            return top.body, extent
        if len(outer) > 1 and not _nest_outer(nest, outer, vector):
            extent = product(extents[axis] for axis in outer)
            with nest.many(outer, LoopKind.PARALLEL):
                _lanes(nest, vector, inside)
        else:
            extent = extents[outer[0]]
            with nest.axis(outer[0], LoopKind.PARALLEL):
                _serial(nest, outer[1:], lambda: _lanes(nest, vector, inside))
        return top.body, extent


def _serial(nest: Nest, axes: Sequence[Symbol], inside: Callable[[], None]) -> None:
    if not axes:
        inside()
        return
    with nest.axis(axes[0], LoopKind.SERIAL):
        _serial(nest, axes[1:], inside)


def _lanes(nest: Nest, vector: Symbol | None, inside: Callable[[], None]) -> None:
    if vector is None:
        inside()
        return
    settled = nest.emitter.settled
    for start, extent, outcomes in _segments(nest, vector):
        symbol = nest.new_axis()
        settled.update(outcomes)
        with nest.loop((vector,), symbol, extent, LoopKind.VECTOR):
            nest.emitter.parameters.name(vector, symbol.expr + nest.emitter.parameters.index(start))
            inside()
        for test in outcomes:
            del settled[test]


def _segments(nest: Nest, lane: Symbol) -> list[tuple[Expr, Expr, dict[Expr, bool]]]:
    """The parts of a vector loop, one for each piece of the cat along it: start, number of points and which of the
    tests of a point against the ends of the pieces hold there. For a cat along a loop around it each part is all of it,
    or has no point where that loop is in another piece. The whole loop where there is no such cat.
    """
    total = nest.loops.extents[lane]
    whole: list[tuple[Expr, Expr, dict[Expr, bool]]] = [(ZERO, total, {})]
    cats = [cell for cell in nest.shape.order if cell.node.op == "cat" and cell.kind == "op" and cell.tests]
    if not cats or len(cats[0].tests) > costs.CPU_CAT_PIECES or nest.shape.group.rows is not None:
        return whole
    around = [axis for axis in nest.loops.axes if axis is not lane and axis not in nest.loops.absorbed]
    for axis in (lane, *around):
        ends = [end for tests in cats[0].tests if (end := _end(nest, tests, axis)) is not None]
        if len(ends) < len(cats[0].tests):
            continue
        if axis is not lane and not _decided_inside(nest, lane, axis, ends):
            continue
        length = nest.loops.extents[axis]
        cuts = [ZERO, *(_within(nest, end, length) for end in ends), length]
        found: list[tuple[Expr, Expr, dict[Expr, bool]]] = []
        for number, (first, last) in enumerate(itertools.pairwise(cuts)):
            outcomes = {axis.expr - end: place < number for place, end in enumerate(ends)}
            outcomes |= {end - 1 - axis.expr: place >= number for place, end in enumerate(ends)}
            if axis is lane:
                found.append((first, last - first, outcomes))
                continue
            inside = minimum(axis.expr - first + 1, last - axis.expr)  # above zero in this piece
            found.append((ZERO, total * maximum(ZERO, minimum(expr(1), inside)), outcomes))
        return found
    return whole


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
    if slope is None or slope.constant != -1 or end.symbols & (nest.group.axes.keys() | nest.shape.positions.keys()):
        return None
    return end


def _within(nest: Nest, end: Expr, total: Expr) -> Expr:
    """The end of a piece, or the nearer end of the loop where it lies outside (of a slice of a cat)."""
    end = end if never_negative(end, nest.group.axes) else maximum(ZERO, end)
    return end if never_negative(total - end, nest.group.axes) else minimum(total, end)


def _nest_outer(nest: Nest, outer: Sequence[Symbol], vector: Symbol | None) -> bool:
    """Whether to loop over the outer axes one inside the other, which splits only the outermost between threads."""
    hints = nest.hinted()
    return vector is not None and hints[vector] < costs.CPU_NARROW and hints[outer[0]] >= costs.CPU_MANY
