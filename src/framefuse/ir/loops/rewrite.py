"""Makes nodes of a loop nest anew with other parts; a node whose parts stay is the same object."""

from __future__ import annotations

from collections.abc import Sequence
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
    Scratch,
    Statement,
    Store,
    Value,
)
from framefuse.ir.loops.walk import operands, position, values
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
