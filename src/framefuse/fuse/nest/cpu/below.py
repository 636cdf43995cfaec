"""Says by the place in memory where pieces that lie below each other end, so that rows and columns are one loop."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

from framefuse.fuse.grouping.cells import Group
from framefuse.fuse.nest.loop_order import joinable
from framefuse.fuse.nest.nest import Nest
from framefuse.ir import costs
from framefuse.ir.numbers import Expr, Symbol, expr, product


def along_memory(nest: Nest, order: Sequence[Symbol]) -> bool:
    """Rewrites the nest's group where nothing but the ends of joined pieces keeps their axis apart from those inside of
    it: ``row < end`` becomes ``row * columns + column < end * columns``. Says whether it did: the group is then another
    one. Each row would ask of each piece whether it lies there. Ends along loops around these stay as they are.
    """
    ends = {test for cell in nest.shape.order if cell.node.op == "cat" for tests in cell.tests for test in tests}
    axes = {symbol for end in ends for symbol in end.symbols if symbol in order}
    if not axes or len(ends) > costs.CPU_CAT_PIECES:
        return False
    axis = max(axes, key=order.index)
    inside = order[order.index(axis) :]
    tests = {access.address for access in nest.accesses if not access.weight}
    ends = {end for end in ends if axis in end.symbols}
    asked = {test for test in tests if test in ends or -test - 1 in ends}
    if len(inside) < 2 or any(not end.symbols.isdisjoint(axes - {axis}) for end in ends):
        return False
    slopes = {test: test.coefficient(axis) for test in asked}
    addresses = [access.address for access in nest.accesses if access.weight or access.address not in asked]
    extents = nest.loops.extents
    if any(slope is None or slope.constant not in (1, -1) for slope in slopes.values()) or not all(
        joinable(outer, inner, extents[inner], addresses) for outer, inner in itertools.pairwise(inside)
    ):
        return False
    _rewrite(nest.group, axis, inside[1:])
    return True


def _rewrite(group: Group, axis: Symbol, inner: Sequence[Symbol]) -> None:
    sizes = [group.axes[each] for each in inner]
    count = product(sizes)
    place = axis.expr * count
    for number, each in enumerate(inner, 1):
        place = place + each.expr * product(sizes[number:])

    def said(test: Expr) -> Expr:
        if axis not in test.symbols:
            return test
        if test.coefficient(axis) is expr(1):
            return place + (test - axis.expr) * count
        return (test + axis.expr + 1) * count - 1 - place

    for cell in group.cells.values():
        cell.mask = tuple(said(test) for test in cell.mask)
        cell.tests = tuple(tuple(said(test) for test in tests) for tests in cell.tests)
    group.cells = {(cell.node, cell.index, cell.mask): cell for cell in group.cells.values()}
