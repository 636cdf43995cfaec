"""Loops over the rows of a kernel, of which one axis is gone along some at a time."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

from framefuse.fuse.nest.nest import Nest
from framefuse.ir.dtypes import INT64
from framefuse.ir.loops import Index, Let, LoopKind, Statement
from framefuse.ir.numbers import Expr, Symbol, ceildiv, expr, minimum, product


@dataclass(frozen=True, slots=True)
class Block:
    """The ``body`` that is run for each block, which begins at ``start`` and has ``height`` points; the ``loops``
    around it, and how many blocks there are.
    """

    body: list[Statement]
    start: Symbol
    height: Expr
    loops: list[Statement]
    extent: Expr


@contextmanager
def blocked(nest: Nest, outer: Sequence[Symbol], axis: Symbol, size: int) -> Iterator[Block]:
    """A parallel loop over the ``outer`` axes and over blocks of ``size`` points of ``axis``."""
    extents, parameters = nest.loops.extents, nest.emitter.parameters
    counts = [*(extents[each] for each in outer), ceildiv(extents[axis], size)]
    with nest.scope() as top:
        nest.emitter.floor = 1
        symbol = nest.new_axis()
        with nest.loop(tuple(outer), symbol, product(counts), LoopKind.PARALLEL) as scope:
            high = parameters.index(counts[-1])
            nest.decode(scope, symbol.expr // high, outer, counts[:-1])
            start = nest.new_axis()
            scope.body.append(Let(start.name, Index((symbol.expr % high if outer else symbol.expr) * size, INT64)))
            height = minimum(expr(size), parameters.index(extents[axis]) - start.expr)
            yield Block(scope.body, start, height, top.body, product(counts))
