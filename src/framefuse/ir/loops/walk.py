"""Lists the statements, values and index expressions of a loop nest, and the operands of each value."""

from __future__ import annotations

from collections.abc import Container, Iterator, Sequence

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
from framefuse.ir.numbers import Expr

# The field of a node that is an index expression.
POSITIONS = {
    Load: "index", Index: "index", Store: "index", AtomicAdd: "index", Accumulate: "index", Loop: "extent",
    Scratch: "size",
}  # fmt: skip


def operands(value: Value) -> tuple[Value, ...]:
    """The values that a value is computed from."""
    kind = type(value)
    if kind is Apply:
        return value.args  # type: ignore[union-attr]
    if kind is Load and value.mask is not None:  # type: ignore[union-attr]
        return (value.mask,)  # type: ignore[union-attr]
    return ()


def values(statement: Statement) -> tuple[Value, ...]:
    """The values that a statement itself computes; those of a loop are its body's."""
    if isinstance(statement, (Let, Accumulate, Store)):
        return (statement.value,)
    if isinstance(statement, AtomicAdd):
        return (statement.value,) if statement.mask is None else (statement.value, statement.mask)
    return (statement.ok,) if isinstance(statement, Check) else ()


def position(node: Statement | Value) -> Expr | None:
    """The index expression of a statement or value itself: a place, an extent or a size."""
    field = POSITIONS.get(type(node))
    return None if field is None else getattr(node, field)


def statements(body: Sequence[Statement]) -> Iterator[Statement]:
    """Every statement, those of inner loops too."""
    for statement in body:
        yield statement
        if isinstance(statement, Loop):
            yield from statements(statement.body)


def values_of(body: Sequence[Statement]) -> list[Value]:
    """Every value computed in the statements, shared ones once."""
    by_identity: dict[int, Value] = {}
    for statement in statements(body):
        waiting = list(values(statement))
        while waiting:
            value = waiting.pop()
            if id(value) not in by_identity:
                by_identity[id(value)] = value
                waiting += operands(value)
    return list(by_identity.values())


def positions(body: Sequence[Statement]) -> Iterator[Expr]:
    """Every index expression of the statements and of their values."""
    for node in (*statements(body), *values_of(body)):
        index = position(node)
        if index is not None:
            yield index


def in_order(value: Value, known: Container[int]) -> Iterator[Value]:
    """What a value is computed from and itself, operands first, each object once; those whose id is ``known`` by the
    time they are met are left out. A long chain does not become a deep recursion.
    """
    met: set[int] = set()
    waiting: list[Value | None] = [value]
    ready: list[Value] = []  # what waits for its operands: a None says that they were met
    while waiting:
        top = waiting.pop()
        if top is None:
            yield ready.pop()
        elif id(top) not in met and id(top) not in known:
            met.add(id(top))
            parts = operands(top)
            if parts:
                ready.append(top)
                waiting.append(None)
                waiting += reversed(parts)
            else:
                yield top
