"""Turns a scan into one program for each row, which goes along it in turns and carries what it has come to."""

from __future__ import annotations

from framefuse.fuse.nest.forms import primary
from framefuse.fuse.nest.gpu.decode import joined
from framefuse.fuse.nest.gpu.rows import by_rows
from framefuse.fuse.nest.loop_order import memory_order
from framefuse.fuse.nest.nest import Built, Nest
from framefuse.fuse.nest.sweeps import Sweep
from framefuse.ir.loops import LoopKind
from framefuse.ir.numbers import Expr


def scan_kernel(nest: Nest, only: Sweep, title: str, work: Expr) -> Built:
    group, scanned = nest.group, nest.group.scans[0].inner
    rows = [axis for axis in memory_order(group.domain, primary(nest), group.hints) if axis not in scanned]
    rows, line = nest.join(rows), nest.join(scanned)

    def row() -> None:
        nest.begin_scans()
        with joined(nest, line, LoopKind.VECTOR):
            nest.point(only, ())

    return by_rows(nest, rows, row, title, work)
