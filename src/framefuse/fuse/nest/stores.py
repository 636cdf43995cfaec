"""Puts the stores of statements behind what they read."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import replace

from framefuse.fuse.nest.emitter import Emitter
from framefuse.ir.loops import Let, Local, Statement, Store


def stores_last(emitter: Emitter, body: Sequence[Statement]) -> list[Statement]:
    """The statements with the values of stores named, and the stores behind them, those to one buffer in order."""
    before: list[Statement] = []
    stores: dict[str, list[Statement]] = {}
    for statement in body:
        if isinstance(statement, Store):
            name = emitter.fresh("v")
            before.append(Let(name, statement.value))
            statement = replace(statement, value=Local(name, statement.value.dtype))
            stores.setdefault(statement.buffer, []).append(statement)
        else:
            before.append(statement)
    return [*before, *itertools.chain(*stores.values())]
