"""Names the positions of axes in the count of a loop over several of them."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import pairwise

from framefuse.fuse.addressing.strided import Strides
from framefuse.fuse.grouping.cells import Group
from framefuse.fuse.nest.loop_order import joinable
from framefuse.fuse.nest.nest import Nest
from framefuse.fuse.nest.sweeps import shape_of
from framefuse.ir import costs
from framefuse.ir.dtypes import INT64
from framefuse.ir.graph import Node
from framefuse.ir.loops import Index, Let, LoopKind
from framefuse.ir.numbers import Expr, Symbol, expr, product


def gpu_nest(group: Group, strides_of: Callable[[Node], Strides]) -> Nest:
    """A kernel under construction, which loads nothing that it has stored: another thread of the program did that."""
    return Nest(group, shape_of(group), strides_of, reads_stored=False)


@contextmanager
def joined(nest: Nest, axes: Sequence[Symbol], kind: LoopKind) -> Iterator[None]:
    """One loop over all points of several axes."""
    symbol = nest.new_axis()
    extents = [nest.loops.extents[axis] for axis in axes]
    with nest.loop(axes, symbol, product(extents), kind):
        (decode if kind is LoopKind.PARALLEL else decode_elements)(nest, symbol.expr, axes, extents)
        yield


def decode(nest: Nest, place: Expr, axes: Sequence[Symbol], extents: Sequence[Expr]) -> None:
    """Names the positions of ``axes`` in a row-major count ``place``. Neighbours that are one axis of what is read at
    each point (groups and the channels of each, in a channels-last picture) are counted together first, so that
    points of the tile are seen to be neighbours in memory beyond the end of a group.
    """
    counts = dict(zip(axes, extents, strict=True))
    parts = neighbours(nest, axes, counts)
    if len(axes) == 1:
        nest.emitter.parameters.name(axes[0], place)
        return
    names = [part[0] if len(part) == 1 else Symbol(f"@j{number}") for number, part in enumerate(parts)]
    sizes = [product(counts[axis] for axis in part) for part in parts]
    nest.decode(nest.emitter.scopes[-1], place, names, sizes)
    for name, part in zip(names, parts, strict=True):
        if len(part) > 1:
            _divide(nest, name.expr, part, counts)


def _divide(nest: Nest, whole: Expr, axes: Sequence[Symbol], counts: Mapping[Symbol, Expr]) -> None:
    """Names the positions of ``axes`` in a position ``whole``, so that the address of what they are one axis of is that
    position itself again.
    """
    parameters, outer = nest.emitter.parameters, expr(0)
    for number, axis in enumerate(axes):
        points = product(counts[inner] for inner in axes[number + 1 :])
        if number + 1 < len(axes):
            name, divisor = nest.new_axis(), parameters.index(points)
            value = parameters.index(whole) // (expr(1) if points.constant == 0 else divisor)
            nest.emitter.scopes[-1].body.append(Let(name.name, Index(value, INT64)))
            up_to = Symbol(f"@u{name.name}")
            parameters.name(up_to, name.expr)
            parameters.place(axis, up_to.expr - outer * counts[axis])
            outer = up_to.expr
        else:
            parameters.place(axis, whole - outer * counts[axis])


def neighbours(nest: Nest, axes: Sequence[Symbol], counts: Mapping[Symbol, Expr]) -> list[list[Symbol]]:
    """Runs of ``axes`` in which each but the outermost is short, and a step of the one before it goes where all of its
    own points end, in all that is read and written at each point of a row.
    """
    along = nest.group.axes.keys() - (nest.group.rows or ())
    wide = [access.address for access in nest.accesses if access.weight and access.address.symbols & along]
    parts = [[axes[0]]]
    for outer, inner in pairwise(axes):
        both = [address for address in wide if {outer, inner} & address.symbols]
        if nest.hint(counts[inner]) < costs.GPU_LANES and both and joinable(outer, inner, counts[inner], both):
            parts[-1].append(inner)
        else:
            parts.append([inner])
    return parts


def lanes_of(nest: Nest, rows: Sequence[Symbol]) -> int:
    """How many of the last of ``rows`` are neighbours."""
    return math.prod(nest.hint(nest.loops.extents[axis]) for axis in neighbours(nest, rows, nest.loops.extents)[-1])


def decode_elements(nest: Nest, place: Expr, axes: Sequence[Symbol], extents: Sequence[Expr]) -> None:
    """The same for a count that runs along memory: a position is what a division leaves, so that the address of a dense
    operand is the count itself again.
    """
    parameters = nest.emitter.parameters
    outer = expr(0)
    for number, axis in enumerate(axes):
        whole = place
        if number + 1 < len(axes):
            name = nest.new_axis()
            points = product(extents[number + 1 :])
            divisor = expr(1) if points.constant == 0 else parameters.index(points)
            nest.emitter.scopes[-1].body.append(Let(name.name, Index(place // divisor, INT64)))
            whole = name.expr
        parameters.name(axis, whole - outer * parameters.index(extents[number]))
        outer = whole
