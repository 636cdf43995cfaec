"""Writes a cat along short inner loops point by point, each as a vector loop over the rows around it."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from contextlib import nullcontext

from framefuse.fuse.addressing.ranges import ONE, ZERO
from framefuse.fuse.nest.cpu.loops import outer_loops
from framefuse.fuse.nest.cpu.pieces import pieces
from framefuse.fuse.nest.nest import Nest
from framefuse.fuse.nest.piece import Piece
from framefuse.fuse.nest.stores import stores_last
from framefuse.ir import costs
from framefuse.ir.dtypes import INT64
from framefuse.ir.loops import Index, Let, Loop, LoopKind, Statement
from framefuse.ir.numbers import Expr, Symbol, ceildiv, expr, minimum

Split = tuple[Sequence[Symbol], Symbol, Sequence[Symbol], Sequence[Symbol]]


def is_short_cat(nest: Nest, axes: Sequence[Symbol]) -> bool:
    """Whether the innermost of ``axes`` have a few points, cut into pieces in whose vectors most lanes would be empty,
    and the loop around them is long enough for vectors.
    """
    return _split(nest, axes) is not None


def _split(nest: Nest, axes: Sequence[Symbol]) -> Split | None:
    """``axes`` as those outside, that of vectors, one of few points between if it is, and the innermost one, or two of
    cats of cats, that are taken point by point.
    """
    hints, extents = nest.hinted(), [nest.loops.extents[axis].constant for axis in axes]
    if len(axes) < 2 or extents[-1] is None or extents[-1] > costs.CPU_SHORT_CAT:
        return None
    found = pieces(nest, axes[-1])
    cats = [cell for cell in nest.shape.order if cell.node.op == "cat" and cell.kind == "op" and cell.tests]
    if len(found) < 2 and not any(axes[-1] in test.symbols for cell in cats for tests in cell.tests for test in tests):
        return None
    if all(piece.inside is ONE for piece in found):
        lengths = [piece.length.constant for piece in found]
        if any(length is None or length >= costs.CPU_LEAST for length in lengths):
            return None
        if hints[axes[-2]] >= costs.CPU_LEAST:
            return axes[:-2], axes[-2], (), axes[-1:]
        many = len(axes) > 2 and hints[axes[-3]] >= costs.CPU_LEAST
        return (axes[:-3], axes[-3], axes[-2:-1], axes[-1:]) if many else None
    if len(axes) < 3 or extents[-2] is None or hints[axes[-3]] < costs.CPU_LEAST:
        return None
    known = nest.loops.absorbed.union(axes[-2:])
    decided = all(test.symbols <= known for cell in cats for tests in cell.tests for test in tests)
    few = extents[-2] * extents[-1] <= costs.CPU_SHORT_CAT
    return (axes[:-3], axes[-3], (), axes[-2:]) if decided and few else None


def by_points(nest: Nest, axes: Sequence[Symbol], inside: Callable[[], None]) -> tuple[list[Statement], Expr]:
    """The loops over ``axes``, of which the outermost is parallel; returns the statements and its extent."""
    split = _split(nest, axes)
    assert split is not None
    outer, rows, between, inner = split
    extents, index = nest.loops.extents, nest.emitter.parameters.index
    places = list(itertools.product(*(range(extents[axis].constant or 0) for axis in inner)))

    def walk(low: Expr, high: Expr) -> None:
        each = [dict(zip(inner, place, strict=True)) for place in places]
        with nest.axis(between[0], LoopKind.SERIAL) if between else nullcontext():
            for taken in [each] if _are_neighbours(nest, rows, inner) else [[point] for point in each]:
                points(nest, rows, taken, (low, high), inside)

    with nest.scope() as top:
        nest.emitter.floor = 1
        if outer:
            return top.body, outer_loops(nest, outer, rows, lambda: walk(ZERO, index(extents[rows])))
        size, tile = costs.CPU_PIECES_TILE, nest.new_axis()
        count = ceildiv(extents[rows], size)
        with nest.loop((), tile, count, LoopKind.PARALLEL):
            low = tile.expr * size
            walk(low, minimum(low + size, index(extents[rows])))
        return top.body, count


def _are_neighbours(nest: Nest, rows: Symbol, inner: Sequence[Symbol]) -> bool:
    """Whether a turn along ``rows`` writes all points of the one inner loop, a few, as neighbours in memory."""
    count = nest.loops.extents[inner[0]].constant
    return len(inner) == 1 and count is not None and count <= costs.CPU_NEIGHBOURS and neighbours(nest, rows, inner[0])


def neighbours(nest: Nest, rows: Symbol, inner: Symbol) -> bool:
    """Whether what a turn along ``rows`` writes at the points of the inner loop is a whole row of neighbours."""
    written = [access.address for access in nest.accesses if access.weight == 2]
    step = nest.loops.extents[inner]
    return not nest.group.adds and all((at.coefficient(inner), at.coefficient(rows)) == (ONE, step) for at in written)


def points(
    nest: Nest, rows: Symbol, taken: Sequence[dict[Symbol, int]], ends: tuple[Expr, Expr], inside: Callable[[], None]
) -> None:
    """The vector loop over rows, from the first to the last of ``ends``, at a few places of the inner loops: all that
    is written there is written behind what is read.
    """
    parameters, outer = nest.emitter.parameters, nest.emitter.scopes[-1].body
    low, high = ends
    start, step = nest.new_axis(), nest.new_axis()
    outer.append(Let(start.name, Index(low, INT64)))
    parameters.name(rows, start.expr + step.expr)
    body: list[Statement] = []
    for point in taken:
        for axis, place in point.items():
            parameters.name(axis, expr(place))
        with nest.settled(Piece(ZERO, ONE, ONE, _outcomes(nest, point))), nest.scope((rows, *point)) as scope:
            inside()
        body += scope.body
    body = body if len(taken) == 1 else stores_last(nest.emitter, body)
    outer.append(Loop(step, high - low, tuple(body), LoopKind.VECTOR))


def _outcomes(nest: Nest, point: dict[Symbol, int]) -> dict[Expr, bool]:
    """What the tests come to that one point of the inner loops decides."""
    places = {**dict.fromkeys(nest.loops.absorbed, 0), **point}
    tests = {test for cell in nest.shape.order for tests in (cell.mask, *cell.tests) for test in tests}
    found = {}
    for test in tests:
        value = test.substitute({axis: place for axis, place in places.items() if axis in test.symbols}).constant
        if value is not None:
            found[test] = value >= 0
    return found
