"""Turns the cells of a kernel into sweeps: loops over a row, each of which needs only results of earlier ones."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from framefuse.fuse.grouping.cells import Cell, Group
from framefuse.fuse.grouping.work import loop_time, op_time
from framefuse.ir import costs
from framefuse.ir.numbers import Symbol

Axes = frozenset[Symbol]


@dataclass(slots=True)
class Sweep:
    """One loop over the axes ``inner`` (none: work that is done once a row) that feeds ``reduces``, stores ``roots``
    and keeps ``saved``.
    """

    inner: Axes
    level: int
    reduces: list[Cell] = field(default_factory=list)
    roots: list[Cell] = field(default_factory=list)
    saved: list[Cell] = field(default_factory=list)

    @property
    def targets(self) -> list[Cell]:
        """The cells whose values the loop needs."""
        return [*(reduce.kids[0] for reduce in self.reduces), *self.roots]


@dataclass(slots=True)
class Shape:
    """What each cell depends on: its axes, and its level, the number of sweeps that must have ended before it."""

    group: Group
    order: list[Cell]
    axes: dict[Cell, Axes]
    levels: dict[Cell, int]
    positions: dict[Symbol, Cell]


def needed_cells(group: Group) -> list[Cell]:
    """All cells that the roots need, operands first."""
    order: list[Cell] = []
    seen: set[Cell] = set()
    stack = [(root, False) for root in reversed(list(group.roots.values()))]
    while stack:
        cell, done = stack.pop()
        if done:
            order.append(cell)
        elif cell not in seen:
            seen.add(cell)
            stack.append((cell, True))
            if cell.kind != "load":
                stack.extend((kid, False) for kid in reversed(cell.kids) if kid not in seen)
    return order


def shape_of(group: Group) -> Shape:
    """Dependencies of all cells that the roots need."""
    order = needed_cells(group)
    shape = Shape(group, order, {}, {}, {cell.position: cell for cell in order if cell.position is not None})
    for cell in order:
        kids = cell.kids if cell.kind != "load" else ()
        used = shape_axes(shape, {s for e in (*cell.mask, *(t for ts in cell.tests for t in ts)) for s in e.symbols})
        level = 0
        if cell.kind in ("load", "scan") or cell.node.op == "iota":
            used |= shape_axes(shape, {symbol for position in cell.index for symbol in position.symbols})
        for kid in kids:
            used |= shape.axes[kid]
            level = max(level, shape.levels[kid])
        if cell.kind == "reduce":
            # The loop runs once a row, whichever of the row's axes the operand varies over.
            used = group.rows or frozenset()
            level += 1
        shape.axes[cell] = used
        shape.levels[cell] = level
    return shape


def shape_axes(shape: Shape, symbols: set[Symbol]) -> Axes:
    """The axes behind the symbols of an index: themselves, and those on which an indirect position depends."""
    axes: Axes = frozenset()
    for symbol in symbols:
        if symbol in shape.group.axes:
            axes |= {symbol}
        elif symbol in shape.positions:
            taker = shape.positions[symbol]
            axes |= shape.axes.get(taker.kids[0], frozenset())
            axes |= shape_axes(shape, {s for e in taker.mask for s in e.symbols})
    return axes


def sweeps_of(shape: Shape) -> list[Sweep]:
    """The loops over a row in order; reductions and stores that need the same earlier results share one."""
    group = shape.group
    rows = group.rows if group.rows is not None else frozenset()
    by_axes: dict[tuple[int, Axes], Sweep] = {}

    def at(level: int, inner: Axes) -> Sweep:
        return by_axes.setdefault((level, inner), Sweep(inner, level))

    for cell in shape.order:
        if cell.kind == "reduce":
            at(shape.levels[cell] - 1, frozenset(cell.inner)).reduces.append(cell)
    for cell in group.roots.values():
        covered = frozenset(s for position in cell.index for s in position.symbols if s in group.axes)
        inner = covered - rows if group.rows is not None else frozenset(group.domain)
        at(shape.levels[cell], inner).roots.append(cell)
    # Within a level loops come before what is done once a row, which may need nothing of them but costs nothing late.
    return sorted(by_axes.values(), key=lambda p: (p.level, not p.inner))


def choose_saved(shape: Shape, sweeps: list[Sweep], rows: Axes) -> None:
    """Notes in each sweep the cells that a later sweep over the same axes would compute again at a high price."""
    owner: dict[tuple[Cell, Axes], Sweep] = {}
    kept: set[tuple[Cell, Axes]] = set()
    stored: set[Cell] = set()
    for current in sweeps:
        if not current.inner:
            continue
        new: list[Cell] = []
        stack, seen = list(current.targets), set(current.targets)
        while stack:
            cell = stack.pop()
            if shape.axes[cell] <= rows or cell.kind in ("load", "reduce"):
                continue
            key = (cell, current.inner)
            if key in kept:
                continue
            earlier = owner.get(key)
            if earlier is not None and cell in stored:
                kept.add(key)
                continue
            # What varies along a part of the row alone is computed once for many points of it.
            whole = current.inner <= shape.axes[cell]
            if earlier is not None and whole and _time(shape, cell, rows, stored) > costs.SAVED_ABOVE:
                kept.add(key)
                earlier.saved.append(cell)
                stored.add(cell)
                continue
            new.append(cell)
            fresh = [kid for kid in cell.kids if kid not in seen]
            seen.update(fresh)
            stack.extend(fresh)
        for cell in new:
            owner.setdefault((cell, current.inner), current)
        stored.update(current.roots)


def _time(shape: Shape, cell: Cell, rows: Axes, stored: set[Cell] | frozenset[Cell] = frozenset()) -> float:
    """Nanoseconds to compute one element of a cell from memory, ``stored`` cells and what is known once a row."""
    total, stack, seen = 0.0, [cell], {cell}
    while stack:
        current = stack.pop()
        if shape.axes[current] <= rows:
            continue
        if current.kind in ("load", "reduce") or (current in stored and current is not cell):
            total += costs.LOADED
            continue
        total += op_time(current.node)
        fresh = [kid for kid in current.kids if kid not in seen]
        seen.update(fresh)
        stack.extend(fresh)
    return total


def per_point_times(shape: Shape, sweeps: list[Sweep]) -> Mapping[int, float]:
    """For each sweep (by position) the nanoseconds of one point of its loop, loads and stores included."""
    times: dict[int, float] = {}
    for number, current in enumerate(sweeps):
        total = sum(cell.node.dtype.size for cell in current.roots) * costs.NANOSECONDS_PER_BYTE
        for cell in at_points(shape, current):
            known = cell.kind in ("load", "reduce")
            total += cell.node.dtype.size * costs.NANOSECONDS_PER_BYTE if known else loop_time(cell.node)
        times[number] = total
    return times


def at_points(shape: Shape, current: Sweep) -> Iterator[Cell]:
    """The cells that a sweep computes or loads at each point of its loop."""
    rows = shape.group.rows or frozenset()
    stack, seen = list(current.targets), set(current.targets)
    while stack:
        cell = stack.pop()
        if current.inner and shape.axes[cell] <= rows:
            continue
        yield cell
        if cell.kind not in ("load", "reduce"):
            fresh = [kid for kid in cell.kids if kid not in seen]
            seen.update(fresh)
            stack.extend(fresh)
