"""Chooses what the forms of a kernel on all devices have in common: its title, work, rows and runs of loops."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence

from framefuse.fuse.addressing.ranges import address
from framefuse.fuse.grouping.cells import Group
from framefuse.fuse.nest.loop_order import memory_order, vector_axis
from framefuse.fuse.nest.nest import Nest
from framefuse.fuse.nest.sweeps import Sweep, per_point_times
from framefuse.ir import costs
from framefuse.ir.numbers import Expr, Symbol, expr, product

# The loops over each set of axes, outermost first.
Runs = dict[frozenset[Symbol], list[Symbol]]


def title_of(group: Group) -> str:
    """A short name from the operations that tell most."""
    names: dict[str, int] = {}
    for cell in group.cells.values():
        moved = cell.node.op in ("full", "cast", "expand", "reshape", "permute")
        if cell.kind in ("op", "reduce", "scan") and not moved:
            names[cell.node.op] = names.get(cell.node.op, 0) + 1
    reduces = [cell.node.op for cell in reversed(group.reduces)]
    rest = [name for name in reversed(names) if name not in reduces][: 5 - min(3, len(reduces))]
    if group.adds:
        rest = [*(name for name in rest[:4] if name != "scatter_add"), "scatter_add"]
    return "_".join(dict.fromkeys([*reduces[:3], *rest])) or "copy"


def work_of(nest: Nest, sweeps: Sequence[Sweep]) -> Expr:
    """Nanoseconds on one thread: arithmetic and memory traffic of every sweep."""
    group = nest.group
    rows = product(group.axes[axis] for axis in group.axes if axis in (group.rows or ()))
    total = expr(0)
    times = per_point_times(nest.shape, list(sweeps))
    for number, current in enumerate(sweeps):
        points = rows * product(group.axes[axis] for axis in group.axes if axis in current.inner)
        total = total + points * max(1, int(1000 * times[number]))
    return total // 1000


def primary(nest: Nest) -> Expr:
    """The address that decides the order of loops: the first root over most axes, else the load over most axes."""
    roots = [address(cell.index, nest.strides_of(cell.node)) for cell in nest.group.roots.values()]
    loads = [access.address for access in nest.accesses if access.weight == 1]
    axes = nest.group.axes.keys()
    return max([*roots, *loads], key=lambda value: len(value.symbols & axes))


def rows_of(nest: Nest, sweeps: Sequence[Sweep], written: bool = False) -> tuple[list[Symbol], Symbol | None]:
    """The axes of the rows, outermost first and joined, and the one of them that is contiguous in memory (last of the
    list) if the sweeps do not run along memory. Where no axis is among what is read, with ``written`` that decides
    along which the results lie, if it is long enough.
    """
    group = nest.group
    inner = frozenset().union(*(p.inner for p in sweeps))
    order = memory_order([axis for axis in group.axes if axis in (group.rows or ())], primary(nest), group.hints)
    order = nest.join(order)
    if not order:
        return [], None
    reading = [access for access in nest.accesses if access.address.symbols & inner] or nest.accesses
    axes = [*order, *(axis for axis in group.axes if axis in inner)]
    best = vector_axis(axes, reading, nest.hinted())
    if written and best in inner and not any(access.weight and is_near(access.address, best) for access in reading):
        stored = vector_axis(axes, nest.accesses, nest.hinted())
        best = stored if nest.hinted()[stored] >= costs.CPU_FEW_LANES else best
    if best in inner:
        return order, None
    return nest.join([*(axis for axis in order if axis is not best), best]), best


def columns_of(
    nest: Nest, rows: list[Symbol], lanes: Callable[[Sequence[Symbol]], int]
) -> tuple[list[Symbol], Symbol | None]:
    """Rows that an operand crosses: those that lie along its memory, last of the list, though others lie along the
    loops over a row. A tile with two sides reads both as they lie. ``lanes`` says how many of the last ones are
    neighbours. What is one number for many elements of a row (the mean of each picture) does not count.
    """
    inner, extents = nest.group.axes.keys() - (nest.group.rows or ()), nest.hinted()
    length = math.prod(extents[axis] for axis in inner)

    def is_long(address: Expr) -> bool:
        own = math.prod(extents[axis] for axis in inner & address.symbols)
        return 1 < own * costs.GPU_COLUMN_SHARE >= length

    reading = [a.address for a in nest.accesses if a.weight == 1 and is_long(a.address)]
    for axis in reversed(rows):
        if any(is_along(address, axis) for address in reading):
            order = [*(other for other in rows if other is not axis), axis]
            if lanes(order) >= costs.GPU_COLUMNS:
                return nest.join(order), axis
    return rows, None


def runs_of(nest: Nest, sweeps: Sequence[Sweep], vector: Symbol | None) -> Runs:
    """For each set of inner axes their loops, outermost first and joined; the last one is contiguous in most accesses,
    but in the order of positions for argmax, where the first of equal values wins.
    """
    runs: Runs = {}
    sets = list(dict.fromkeys(p.inner for p in sweeps if p.inner))
    for inner in sets:
        axes = [axis for axis in nest.group.axes if axis in inner]
        ordered = any(r.node.op in ("argmax", "argmin") for p in sweeps if p.inner == inner for r in p.reduces)
        if not ordered:
            relevant = [a for a in nest.accesses if a.weight and a.address.symbols & inner]
            if relevant:
                widest = max(relevant, key=lambda a: len(a.address.symbols & inner)).address
                axes = memory_order(axes, widest, nest.group.hints)
                if vector is None:
                    lane = vector_axis(axes, relevant, nest.hinted())
                    axes = [*(axis for axis in axes if axis is not lane), lane]
        alone = all(inner == other or not inner & other for other in sets)
        axes = nest.join(axes) if alone else axes
        runs[inner] = axes if ordered or vector is not None else _single_outside(axes, nest.hinted())
    return runs


def _single_outside(axes: list[Symbol], hints: Mapping[Symbol, int]) -> list[Symbol]:
    """The loops with one innermost that has more than one turn: measured, the least of 33 x 64 x 1 elements that lie
    apart 0.5 of eager's speed without this, 2.2 with it.
    """
    many = [axis for axis in axes if hints[axis] > 1]
    if not many or many[-1] is axes[-1]:
        return axes
    return [*(axis for axis in axes if axis is not many[-1]), many[-1]]


def is_plain(current: Sweep) -> bool:
    return all(reduce.node.op not in ("argmax", "argmin") for reduce in current.reduces)


def is_along(address: Expr, axis: Symbol) -> bool:
    """Whether neighbours along the axis are neighbours in memory."""
    slope = address.coefficient(axis)
    return slope is not None and slope.constant == 1


def is_near(address: Expr, axis: Symbol) -> bool:
    """Whether neighbours along the axis are so near in memory that vectors take what lies between them, too."""
    slope = address.coefficient(axis)
    return slope is not None and slope.constant is not None and 0 < slope.constant <= costs.NEAR


def crossing_axis(nest: Nest, axes: Sequence[Symbol], least: int, written: bool = False) -> Symbol | None:
    """The axis along which a load, or what is ``written``, is contiguous while the vector loop, over the last axis,
    goes across it, with ``least`` points along both.
    """
    lane = axes[-1]
    hints = nest.hinted()
    for access in nest.accesses:
        if access.weight != (2 if written else 1):
            continue
        step = access.address.coefficient(lane)
        if step is None or step.constant in (0, 1) or hints[lane] < least:
            continue
        for axis in axes[:-1]:
            slope = access.address.coefficient(axis)
            if slope is not None and slope.constant == 1 and hints[axis] >= least:
                return axis
    return None
