"""Turns work along rows into one program for each of them."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from framefuse.fuse.nest.forms import Runs
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
            sweep(nest, current, runs.get(current.inner, []))

    return by_rows(nest, rows, row, title, work)


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
