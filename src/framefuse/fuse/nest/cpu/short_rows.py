"""Decides whether rows that are too short for a vector are taken side by side, a lane each."""

from __future__ import annotations

from collections.abc import Sequence

from framefuse.fuse.addressing.ranges import address
from framefuse.fuse.grouping.cells import Cell
from framefuse.fuse.grouping.work import loop_time
from framefuse.fuse.nest.loop_order import Loops, join_neighbours, memory_order
from framefuse.fuse.nest.nest import Nest
from framefuse.fuse.nest.sweeps import Sweep, at_points
from framefuse.ir import costs
from framefuse.ir.numbers import Expr, Symbol, product


def side_by_side(nest: Nest, sweeps: Sequence[Sweep], rows: Sequence[Symbol]) -> bool:
    """Whether vectors over the innermost of ``rows``, which reach the elements of their rows across memory, cost less
    than vectors along each row, whose lanes are added up at its end.
    """
    if not rows:
        return False
    lane, shape = rows[-1], nest.shape
    lanes = costs.CPU_VECTOR // max(4, *(cell.node.dtype.size for cell in shape.order))
    count = max(1, nest.hinted()[lane])
    filled = count / (-(-count // lanes) * lanes)
    along = across = 0.0
    for cell in shape.order:  # what is computed once for each row
        if cell.kind == "op" and shape.axes[cell] and shape.axes[cell] <= (shape.group.rows or frozenset()):
            along += costs.CPU_ALONE * lanes * loop_time(cell.node)
            across += loop_time(cell.node)
    for current in sweeps:
        if not current.inner:
            continue
        points = nest.hint(product(nest.group.axes[axis] for axis in current.inner))
        found = list(at_points(shape, current))
        arithmetic = sum(loop_time(cell.node) for cell in found if cell.kind not in ("load", "reduce"))
        loads = {_address(nest, cell) for cell in found if cell.kind == "load"}
        moved = costs.CPU_LANE_LOAD * sum(_is_apart(where, lane) for where in loads)
        moved += costs.CPU_LANE_STORE * sum(_is_apart(_address(nest, root), lane) for root in current.roots)
        turn = max(1, _turn(nest, current))
        along += max(1, points // turn) * max(costs.CPU_ROW, -(-turn // lanes) * lanes * arithmetic)
        along += sum(costs.CPU_FOLD.get(reduce.node.op, costs.CPU_FOLD["sum"]) for reduce in current.reduces)
        across += points * (arithmetic + moved)
    return across / max(filled, 1 / lanes) < along


def _turn(nest: Nest, current: Sweep) -> int:
    """How many points of a row lie in one loop, when neighbouring axes are joined."""
    loops = Loops(nest.loops.axes, dict(nest.loops.extents), set())
    axes = [axis for axis in nest.group.axes if axis in current.inner]
    widest = max(nest.expressions, key=lambda where: len(where.symbols & current.inner))
    left = join_neighbours(loops, memory_order(axes, widest, nest.group.hints), list(nest.expressions))
    return nest.hint(loops.extents[left[-1]])


def _address(nest: Nest, cell: Cell) -> Expr:
    return address(cell.index, nest.strides_of(cell.node))


def _is_apart(where: Expr, lane: Symbol) -> bool:
    """Whether neighbouring lanes find their elements elsewhere than side by side or in one place."""
    slope = where.coefficient(lane)
    return slope is None or slope.constant not in (0, 1)
