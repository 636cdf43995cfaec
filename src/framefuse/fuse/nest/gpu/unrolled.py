"""Writes the pieces of a cat, a few of one size, by one kernel over the points of a piece.

What two of them read is loaded once, no point asks in which piece it lies, and pieces that alternate (the last axis of
a stack) are neighbours that codegen moves together.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from framefuse.fuse.addressing.ranges import ONE, ZERO
from framefuse.fuse.grouping.cells import is_of_pieces
from framefuse.fuse.nest.nest import Nest
from framefuse.fuse.nest.piece import Piece
from framefuse.fuse.nest.stores import stores_last
from framefuse.ir.loops import Statement
from framefuse.ir.numbers import Symbol, expr


def unrolled_axis(nest: Nest, order: Sequence[Symbol]) -> Symbol | None:
    """The axis of ``order`` that counts the pieces of cats, where it alone says which of them is meant, all that the
    kernel writes has a place for each, and there are other axes.
    """
    tests = [test for cell in nest.shape.order for tests in (cell.mask, *cell.tests) for test in tests]
    for axis in order:
        asked = [test for test in tests if axis in test.symbols]
        if len(order) == 1 or not asked or not is_of_pieces(nest.loops.extents[axis]):
            continue
        decided = all(test.symbols == {axis} for test in asked)
        if decided and all(axis in nest.shape.axes[cell] for cell in nest.group.roots.values()):
            return axis
    return None


def each_piece(nest: Nest, axis: Symbol, inside: Callable[[], None]) -> None:
    """The statements of ``inside`` for each piece, in the innermost scope: all are read before any is written."""
    count, outer = nest.loops.extents[axis].constant or 0, nest.emitter.scopes[-1].body
    tests = {test for cell in nest.shape.order for tests in (cell.mask, *cell.tests) for test in tests}
    body: list[Statement] = []
    for number in range(count):
        places = {test: test.substitute({axis: number}).constant for test in tests if test.symbols == {axis}}
        outcomes = {test: place >= 0 for test, place in places.items() if place is not None}
        nest.emitter.parameters.name(axis, expr(number))
        start = len(outer)
        with nest.settled(Piece(ZERO, ONE, ONE, outcomes)), nest.scope((axis,)) as scope:
            inside()
        body += [*outer[start:], *scope.body]  # what all pieces share was written outside of this one
        del outer[start:]
    outer.extend(stores_last(nest.emitter, body))
