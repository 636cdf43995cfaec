"""Turns a group of cells into kernels: pointwise loops, rows with passes, or the forms for long sums."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from framefuse.fuse.addressing.ranges import ZERO, address, never_negative
from framefuse.fuse.addressing.strided import Strides
from framefuse.fuse.grouping.cells import Group, Mask
from framefuse.fuse.nest.cpu.tiles import column_tiles, crossing_axis, may_stage, may_tile, square_tiles, two_stages
from framefuse.fuse.nest.loop_order import memory_order, vector_axis
from framefuse.fuse.nest.nest import BLOCK, CHUNK, Built, Nest
from framefuse.fuse.nest.sweeps import Pass, choose_saved, passes_of, per_point_times, shape_of
from framefuse.ir.graph import Node
from framefuse.ir.loops import LoopKind
from framefuse.ir.numbers import Expr, Symbol, expr, maximum, minimum, product
from framefuse.ir.target import CPU, Target

WIDE = 64  # points in the inner loop below which decoding joined outer axes by division would show
PIECES = 3  # ends between pieces of a cat up to which each piece has a vector loop of its own
MANY = 8  # iterations of the outermost axis that share well between threads


def build_kernels(
    group: Group, strides_of: Callable[[Node], Strides], threads: bool, target: Target = CPU
) -> list[Built]:
    """The kernels of a group in the order in which they run: one, or two for a large sum over everything."""
    shape = shape_of(group)
    nest = Nest(group, shape, strides_of)
    title = title_of(group)
    if group.rows is None:
        return [_pointwise(nest, title)]
    passes = passes_of(shape)
    rows, vector = rows_of(nest, passes)
    runs = runs_of(nest, passes, vector)
    work = work_of(nest, passes)
    if vector is None and threads and may_stage(nest, passes, rows, work):
        return two_stages(nest, passes, runs, title, work)
    choose_saved(shape, passes, frozenset(group.rows))
    if vector is not None and may_tile(nest, passes, runs):
        return [column_tiles(nest, passes, rows, vector, runs, title, work)]
    return [_row_kernel(nest, passes, rows, vector, runs, title, work, target)]


def title_of(group: Group) -> str:
    """A short name from the operations that tell most."""
    names: dict[str, int] = {}
    for cell in group.cells.values():
        if cell.kind in ("op", "reduce") and cell.node.op not in ("full", "cast", "expand", "reshape", "permute"):
            names[cell.node.op] = names.get(cell.node.op, 0) + 1
    reduces = [cell.node.op for cell in reversed(group.reduces)]
    rest = [name for name in reversed(names) if name not in reduces][: 5 - min(3, len(reduces))]
    if group.adds:
        rest = [*(name for name in rest[:4] if name != "scatter_add"), "scatter_add"]
    return "_".join(dict.fromkeys([*reduces[:3], *rest])) or "copy"


def work_of(nest: Nest, passes: Sequence[Pass]) -> Expr:
    """Nanoseconds on one thread: arithmetic and memory traffic of every pass."""
    group = nest.group
    rows = product(group.axes[axis] for axis in group.axes if axis in (group.rows or ()))
    total = expr(0)
    times = per_point_times(nest.shape, list(passes))
    for number, current in enumerate(passes):
        points = rows * product(group.axes[axis] for axis in group.axes if axis in current.inner)
        total = total + points * max(1, int(1000 * times[number]))
    return total // 1000


def primary(nest: Nest) -> Expr:
    """The address that decides the order of loops: the first root over most axes, else the load over most axes."""
    roots = [address(cell.index, nest.strides_of(cell.node)) for cell in nest.group.roots.values()]
    loads = [access.address for access in nest.accesses if access.weight == 1]
    axes = nest.group.axes.keys()
    return max([*roots, *loads], key=lambda value: len(value.symbols & axes))


def _pointwise(nest: Nest, title: str) -> Built:
    group = nest.group
    passes = passes_of(nest.shape)
    work = work_of(nest, passes)
    order = memory_order(group.domain, primary(nest), group.hints)
    if not order:
        with nest.scope() as scope:
            nest.point(passes[0], ())
        return nest.built(title, scope.body, expr(1), work, False)
    lane = vector_axis(order, nest.accesses, nest.hinted())
    axes = nest.join([*(axis for axis in order if axis is not lane), lane])
    across = crossing_axis(nest, axes)
    if across is not None:
        return square_tiles(nest, axes, across, passes[0], title, work)
    return nest.built(title, *_outer(nest, axes[:-1], axes[-1], lambda: nest.point(passes[0], ())), work, True)


def _outer(nest: Nest, outer: Sequence[Symbol], vector: Symbol | None, inside: Callable[[], None]) -> tuple[list, Expr]:
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
    tests of a point against the ends of the pieces hold there. The whole loop where there is no such cat.
    """
    total = nest.loops.extents[lane]
    whole: list[tuple[Expr, Expr, dict[Expr, bool]]] = [(ZERO, total, {})]
    cats = [cell for cell in nest.shape.order if cell.node.op == "cat" and cell.kind == "op" and cell.tests]
    ends = [_end(nest, tests, lane) for tests in cats[0].tests] if cats else []
    found = [end for end in ends if end is not None]
    if not 0 < len(found) == len(ends) <= PIECES or nest.shape.group.rows is not None:
        return whole
    cuts = [ZERO, *(_within(nest, end, total) for end in found), total]
    return [
        (
            cuts[number],
            cuts[number + 1] - cuts[number],
            {lane.expr - end: place < number for place, end in enumerate(found)}
            | {end - 1 - lane.expr: place >= number for place, end in enumerate(found)},
        )
        for number in range(len(cuts) - 1)
    ]


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
    return vector is not None and hints[vector] < WIDE and hints[outer[0]] >= MANY


# ---- rows


def rows_of(nest: Nest, passes: Sequence[Pass]) -> tuple[list[Symbol], Symbol | None]:
    """The axes of the rows, outermost first and joined, and the one of them that is contiguous in memory (last of the
    list) if the passes do not run along memory.
    """
    group = nest.group
    inner = frozenset().union(*(p.inner for p in passes))
    order = memory_order([axis for axis in group.axes if axis in (group.rows or ())], primary(nest), group.hints)
    if not order:
        return [], None
    reading = [access for access in nest.accesses if access.address.symbols & inner] or nest.accesses
    axes = [*order, *(axis for axis in group.axes if axis in inner)]
    best = vector_axis(axes, reading, nest.hinted())
    if best in inner:
        return nest.join(order), None
    return nest.join([*(axis for axis in order if axis is not best), best]), best


def runs_of(nest: Nest, passes: Sequence[Pass], vector: Symbol | None) -> dict[frozenset[Symbol], list[Symbol]]:
    """For each set of inner axes their loops, outermost first and joined; the last one is contiguous in most accesses,
    but in the order of positions for argmax, where the first of equal values wins.
    """
    found: dict[frozenset[Symbol], list[Symbol]] = {}
    sets = list(dict.fromkeys(p.inner for p in passes if p.inner))
    for inner in sets:
        axes = [axis for axis in nest.group.axes if axis in inner]
        ordered = any(r.node.op in ("argmax", "argmin") for p in passes if p.inner == inner for r in p.reduces)
        if not ordered:
            relevant = [a for a in nest.accesses if a.weight and a.address.symbols & inner]
            if relevant:
                widest = max(relevant, key=lambda a: len(a.address.symbols & inner)).address
                axes = memory_order(axes, widest, nest.group.hints)
                if vector is None:
                    lane = vector_axis(axes, relevant, nest.hinted())
                    axes = [*(axis for axis in axes if axis is not lane), lane]
        alone = all(inner == other or not inner & other for other in sets)
        found[inner] = nest.join(axes) if alone else axes
    return found


def _row_kernel(
    nest: Nest,
    passes: list[Pass],
    rows: list[Symbol],
    vector: Symbol | None,
    runs: dict[frozenset[Symbol], list[Symbol]],
    title: str,
    work: Expr,
    target: Target,
) -> Built:
    chunk = BLOCK if vector is not None else (0 if rows else CHUNK)

    def row() -> None:
        nest.keep_rows(passes, may_scratch=vector is None and target.scratch)
        for current in passes:
            nest.run_pass(current, runs.get(current.inner, ()), chunk, vector is None)

    if not rows:
        with nest.scope() as top:
            row()
        return nest.built(title, top.body, expr(1), work, False)
    outer = rows if vector is None else rows[:-1]
    body, extent = _outer(nest, outer, vector, row)
    return nest.built(title, body, extent, work, True)
