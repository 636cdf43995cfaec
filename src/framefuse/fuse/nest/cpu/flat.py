"""Turns a short inner loop and those around it into one vector loop, whose lanes find their positions by division."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence

from framefuse.fuse.nest.forms import is_along
from framefuse.fuse.nest.loop_order import joinable
from framefuse.fuse.nest.nest import Nest
from framefuse.ir import costs
from framefuse.ir.loops import LoopKind, Statement
from framefuse.ir.numbers import Expr, Symbol, expr, product


def may_flatten(nest: Nest, axes: Sequence[Symbol], time: float) -> bool:
    """Whether vectors along the inner loop, whose points take ``time`` ns each, would cost more than positions."""
    if len(axes) < 2 or any(access.address.symbols and not access.weight for access in nest.accesses):
        return False
    group, count = nest.group, nest.hinted()[axes[-1]]
    moved = [*group.roots.values(), *(cell for cell in nest.shape.order if cell.kind == "load")]
    arithmetic = time - sum(cell.node.dtype.size for cell in moved) * costs.NANOSECONDS_PER_BYTE
    lanes = costs.CPU_VECTOR // max(4, *(cell.node.dtype.size for cell in nest.shape.order))
    if count >= 2 * lanes:
        return False
    gathers = {access.address for access in nest.accesses if not _is_one_run(nest, axes, access.address)}
    row = max(costs.CPU_ROW, -(-count // lanes) * lanes * arithmetic)
    return count * max(arithmetic, costs.CPU_FLAT + costs.CPU_GATHER * len(gathers)) < row


def _is_one_run(nest: Nest, axes: Sequence[Symbol], address: Expr) -> bool:
    """Whether all points in order read one run of memory, or all of them one element."""
    if address.symbols.isdisjoint(axes):
        return True
    return is_along(address, axes[-1]) and all(
        joinable(outer, inner, nest.loops.extents[inner], (address,)) for outer, inner in itertools.pairwise(axes)
    )


def flat_loop(
    nest: Nest, axes: Sequence[Symbol], inside: Callable[[], None]
) -> tuple[list[Statement], Expr, list[Expr]]:
    """One loop over all of ``axes``, outermost first; returns its statements, its extent and what positions are divided
    by. An address that is row after row in memory is that of the loop itself.
    """
    parameters = nest.emitter.parameters
    extents = [nest.loops.extents[axis] for axis in axes]
    position, whole = Symbol("@flat"), expr(0)
    radices = [product(extents[number + 1 :]) for number in range(len(axes))]
    for axis, after, size in zip(axes, radices, extents, strict=True):
        upto = position.expr // (expr(1) if after.constant == 0 else after)
        parameters.place(axis, upto - whole * size)
        whole = upto
    extent = product(extents)
    with nest.scope() as top:
        nest.emitter.floor = 1
        symbol = nest.new_axis()
        parameters.name(position, symbol.expr)
        with nest.loop(tuple(axes), symbol, extent, LoopKind.PARALLEL_VECTOR):
            inside()
    return top.body, extent, radices
