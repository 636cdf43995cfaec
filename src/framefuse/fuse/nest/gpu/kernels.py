"""Turns a group of cells into kernels for a GPU: programs of one tile each, rows as tiles, long sums in two stages."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from framefuse.fuse.addressing.strided import Strides
from framefuse.fuse.grouping.cells import Group
from framefuse.fuse.nest.forms import columns_of, rows_of, runs_of, title_of, work_of
from framefuse.fuse.nest.gpu.decode import gpu_nest, lanes_of
from framefuse.fuse.nest.gpu.pointwise import pointwise
from framefuse.fuse.nest.gpu.rows import rows_kernel
from framefuse.fuse.nest.gpu.scans import scan_kernels
from framefuse.fuse.nest.gpu.two_stages import chunk_of, two_stages
from framefuse.fuse.nest.nest import Built
from framefuse.fuse.nest.sweeps import sweeps_of
from framefuse.ir.graph import Node
from framefuse.ir.target import Target


def build_kernels(group: Group, strides_of: Callable[[Node], Strides], target: Target) -> list[Built]:
    """The kernels of a group in the order in which they run: one, or several for a reduction to few
    results and for scans of few rows.
    """
    nest = gpu_nest(group, strides_of)
    title = title_of(group)
    sweeps = sweeps_of(nest.shape)
    if group.scans:
        return scan_kernels(nest, sweeps[0], title, work_of(nest, sweeps), target.units)
    if group.rows is None:
        return [pointwise(nest, sweeps[0], title, work_of(nest, sweeps))]
    rows, vector = rows_of(nest, sweeps)
    if vector is None and len([current for current in sweeps if current.inner]) == 1:
        rows, vector = columns_of(nest, rows, partial(lanes_of, nest))
    runs = runs_of(nest, sweeps, vector)
    work = work_of(nest, sweeps)
    chunk = chunk_of(nest, sweeps, rows, vector, target.units)
    if chunk is not None:
        return two_stages(nest, sweeps, rows, runs, chunk, title, work)
    return [rows_kernel(nest, sweeps, rows, runs, title, work)]
