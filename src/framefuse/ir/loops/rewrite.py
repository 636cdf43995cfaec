"""Makes nodes of a loop nest anew with other parts; a node whose parts stay is the same object."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from framefuse.errors import CompilerBug
from framefuse.ir.loops.nodes import (
    Accumulate,
    Apply,
    AtomicAdd,
    Check,
    Index,
    Let,
    Load,
    Loop,
    Scratch,
    Statement,
    Store,
    Value,
)
from framefuse.ir.loops.walk import in_order, operands, position, values
from framefuse.ir.numbers import Expr


def with_parts(value: Value, parts: Sequence[Value], index: Expr | None) -> Value:
    """A value with other operands, in the order of :func:`framefuse.ir.loops.walk.operands`, and at another place."""
    if all(new is old for new, old in zip(parts, operands(value), strict=True)) and index is position(value):
        return value
    match value:
        case Apply(op, _, dtype):
            return Apply(op, tuple(parts), dtype)
        case Load(buffer, _, dtype, mask) if index is not None:
            return Load(buffer, index, dtype, parts[0] if mask is not None else None)
        case Index(_, dtype) if index is not None:
            return Index(index, dtype)
    raise CompilerBug(f"{value!r} has no parts")


def with_values(statement: Statement, parts: Sequence[Value], index: Expr | None) -> Statement:
    """A statement, other than a loop, with other values, in the order of :func:`framefuse.ir.loops.walk.values`, and at
    another place.
    """
    if all(new is old for new, old in zip(parts, values(statement), strict=True)) and index is position(statement):
        return statement
    match statement:
        case Let(name, _):
            return Let(name, parts[0])
        case Check(_):
            return Check(parts[0])
        case Accumulate(name, _, _):
            return Accumulate(name, parts[0], index)
        case Store(buffer, _, _) if index is not None:
            return Store(buffer, index, parts[0])
        case AtomicAdd(buffer, _, _, mask) if index is not None:
            return AtomicAdd(buffer, index, parts[0], parts[1] if mask is not None else None)
        case Scratch(_, _, _) if index is not None:
            return replace(statement, size=index)
    raise CompilerBug(f"{statement!r} has no parts")


def with_positions(body: Sequence[Statement], known: Mapping[Expr, Expr]) -> tuple[Statement, ...]:
    """Statements with other index expressions: ``known`` has the new one for each. A value that is shared stays so."""
    made: dict[int, Value] = {}

    def computed(value: Value) -> Value:
        for part in in_order(value, made):
            index = position(part)
            parts = [made[id(operand)] for operand in operands(part)]
            made[id(part)] = with_parts(part, parts, None if index is None else known[index])
        return made[id(value)]

    def changed(statement: Statement) -> Statement:
        if isinstance(statement, Loop):
            return replace(statement, extent=known[statement.extent], body=tuple(map(changed, statement.body)))
        index = position(statement)
        parts = [computed(value) for value in values(statement)]
        return with_values(statement, parts, None if index is None else known[index])

    return tuple(map(changed, body))
