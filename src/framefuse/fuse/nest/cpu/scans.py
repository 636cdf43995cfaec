"""Turns a scan into a serial loop for each row; rows that are neighbours in memory are lanes."""

from __future__ import annotations

from collections.abc import Sequence

from framefuse.fuse.nest.cpu.loops import around
from framefuse.fuse.nest.forms import primary
from framefuse.fuse.nest.loop_order import memory_order, vector_axis
from framefuse.fuse.nest.nest import Built, Nest
from framefuse.fuse.nest.sweeps import Sweep
from framefuse.ir.loops import LoopKind
from framefuse.ir.numbers import Expr, Symbol, expr


def scan_kernel(nest: Nest, only: Sweep, title: str, work: Expr) -> Built:
    group, scanned = nest.group, nest.group.scans[0].inner
    order = memory_order(group.domain, primary(nest), group.hints)
    rows = [axis for axis in order if axis not in scanned]
    lane = vector_axis(order, nest.accesses, nest.hinted()) if order else None  # of one element, there is no axis
    if lane is not None and lane in rows:
        rows = [*(axis for axis in rows if axis is not lane), lane]
    rows, line = nest.join(rows), nest.join(scanned)

    def turns(axes: Sequence[Symbol]) -> None:
        if not axes:
            nest.point(only, ())
            return
        with nest.axis(axes[0], LoopKind.SERIAL, group.backwards):
            turns(axes[1:])

    def row() -> None:
        nest.begin_scans()
        turns(line)

    if not rows:
        with nest.scope() as top:
            row()
        return nest.built(title, top.body, expr(1), work, False)
    outer, vector = (rows[:-1], lane) if lane in rows else (rows, None)
    return nest.built(title, *around(nest, outer, vector, row), work, True)
