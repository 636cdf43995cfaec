"""Leaves out the names that nothing reads."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from framefuse.codegen.optimise.nest import Optimised
from framefuse.ir.loops import Apply, Let, Local, Loop, Statement
from framefuse.ir.loops.walk import position, values_of
from framefuse.ir.numbers import Symbol


def without_unused(nest: Optimised) -> Optimised:
    """The nest without values that are named and not read; what may fail stays."""
    return replace(nest, kernel=replace(nest.kernel, body=_read(nest.kernel.body, set(), set())))


def _read(body: Sequence[Statement], names: set[str], symbols: set[Symbol]) -> tuple[Statement, ...]:
    """The statements that are needed where ``names`` and ``symbols`` are read behind them; both are told what these
    read.
    """
    kept: list[Statement] = []
    for statement in reversed(body):
        if isinstance(statement, Loop):
            statement = replace(statement, body=_read(statement.body, names, symbols))
            symbols |= statement.extent.symbols
        else:
            parts = values_of((statement,))
            if isinstance(statement, Let) and statement.name not in names and Symbol(statement.name) not in symbols:
                if not any(isinstance(part, Apply) and part.may_fail for part in parts):
                    continue
            for node in (statement, *parts):
                if isinstance(node, Local):
                    names.add(node.name)
                    continue
                place = position(node)
                if place is not None:
                    symbols |= place.symbols
        kept.append(statement)
    return tuple(reversed(kept))
