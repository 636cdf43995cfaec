"""Names the positions of axes in the count of a loop over several of them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

from framefuse.fuse.addressing.strided import Strides
from framefuse.fuse.grouping.cells import Group
from framefuse.fuse.nest.nest import Nest
from framefuse.fuse.nest.sweeps import shape_of
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
    """Names the positions of ``axes`` in a row-major count ``place``."""
    if len(axes) == 1:
        nest.emitter.parameters.name(axes[0], place)
    else:
        nest.decode(nest.emitter.scopes[-1], place, axes, extents)


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
