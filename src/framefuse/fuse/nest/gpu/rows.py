"""Turns work along rows into one program for each of them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import ExitStack

from framefuse.fuse.nest.forms import Runs, is_along, is_plain
from framefuse.fuse.nest.gpu.decode import joined
from framefuse.fuse.nest.nest import Built, Nest
from framefuse.fuse.nest.sweeps import Sweep
from framefuse.ir import costs
from framefuse.ir.loops import LoopKind
from framefuse.ir.numbers import Expr, Symbol, expr, product


def rows_kernel(
    nest: Nest,
    sweeps: Sequence[Sweep],
    rows: Sequence[Symbol],
    runs: Runs,
    title: str,
    work: Expr,
) -> Built:
    """Passes over each row: the rows are the parallel axis, the loops of a sweep vector loops."""

    def row() -> None:
        for current in sweeps:
            run = runs.get(current.inner, [])
            if goes_over_windows(nest, sweeps, rows, run):
                _windows(nest, current, run)
            else:
                sweep(nest, current, run)

    return by_rows(nest, rows, row, title, work)


def goes_over_windows(nest: Nest, sweeps: Sequence[Sweep], rows: Sequence[Symbol], run: Sequence[Symbol]) -> bool:
    """Whether the loops over a row are few turns, of which all that is large is read at neighbouring places for
    neighbouring rows, and some of it along both: windows that have elements in common.
    """
    turns = product(nest.loops.extents[axis] for axis in run).constant
    if not rows or not run or turns is None or turns > costs.GPU_WINDOWED or not all(map(is_plain, sweeps)):
        return False
    inner, lane = frozenset(run), rows[-1]
    written = any(current.saved or (current.inner and current.roots) for current in sweeps)
    if written or nest.hinted()[lane] < costs.GPU_LANES:
        return False
    read = [access.address for access in nest.accesses if access.weight and access.address.symbols & inner]
    large = [address for address in read if not address.symbols.isdisjoint(rows)]
    return all(is_along(address, lane) for address in large) and any(is_along(address, run[-1]) for address in large)


def _windows(nest: Nest, current: Sweep, run: Sequence[Symbol]) -> None:
    """A sweep in which a thread takes all elements of its row, one after the other: what its neighbours read is in the
    nearest cache.
    """
    names = [nest.declare(reduce, nest.emitter.fresh("a")) for reduce in current.reduces]
    nest.emitter.scopes[-1].body.extend(names)
    with ExitStack() as loops:
        for axis in run:
            loops.enter_context(nest.axis(axis, LoopKind.SERIAL))
        nest.point(current, names)
    nest.finish(current, names)


def by_rows(nest: Nest, rows: Sequence[Symbol], row: Callable[[], None], title: str, work: Expr) -> Built:
    """The kernel in which a program does what ``row`` does, for each point of ``rows``."""
    with nest.scope() as top:
        if not rows:
            row()
            return nest.built(title, top.body, expr(1), work, False)
        nest.emitter.floor = 1
        extent = product(nest.loops.extents[axis] for axis in rows)
        with joined(nest, rows, LoopKind.PARALLEL):
            row()
    return nest.built(title, top.body, extent, work, True)


def sweep(nest: Nest, current: Sweep, run: Sequence[Symbol]) -> None:
    names = [nest.declare(reduce, nest.emitter.fresh("a")) for reduce in current.reduces]
    nest.emitter.scopes[-1].body.extend(names)

    def walk(run: Sequence[Symbol]) -> None:
        if len(run) > 1 and nest.hinted()[run[-1]] >= costs.GPU_JOINED_BELOW:
            with nest.axis(run[0], LoopKind.SERIAL):
                walk(run[1:])
        else:
            with joined(nest, run, LoopKind.VECTOR):
                nest.point(current, names)

    if run:
        walk(run)
    else:
        with nest.scope() as scope:
            nest.point(current, names)
        nest.emitter.scopes[-1].body.extend(scope.body)
    nest.finish(current, names)
