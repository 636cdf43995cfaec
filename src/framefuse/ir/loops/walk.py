"""Lists the statements and values of a loop nest, for emitters that look at a kernel before they write it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from framefuse.ir.loops.nodes import Accumulate, Apply, AtomicAdd, Check, Let, Load, Loop, Statement, Store, Value


def statements(body: Sequence[Statement]) -> Iterator[Statement]:
    """Every statement, those of inner loops too."""
    for statement in body:
        yield statement
        if isinstance(statement, Loop):
            yield from statements(statement.body)


def values_of(body: Sequence[Statement]) -> Iterator[Value]:
    """Every value computed in the statements, shared ones once."""
    seen: set[int] = set()
    for statement in statements(body):
        roots: list[Value] = []
        if isinstance(statement, (Let, Accumulate, Store)):
            roots = [statement.value]
        elif isinstance(statement, AtomicAdd):
            roots = [statement.value] if statement.mask is None else [statement.value, statement.mask]
        elif isinstance(statement, Check):
            roots = [statement.ok]
        while roots:
            value = roots.pop()
            if id(value) in seen:
                continue
            seen.add(id(value))
            yield value
            if isinstance(value, Apply):
                roots += value.args
            elif isinstance(value, Load) and value.mask is not None:
                roots.append(value.mask)
