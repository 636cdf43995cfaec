"""Turns a kernel into a list of what is wrong with it: names that nothing gave, foreign memory, types that differ."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace

from framefuse.ir.dtypes import BOOL, INT64, DType
from framefuse.ir.kernel import Kernel
from framefuse.ir.loops.nodes import (
    Accumulate,
    Accumulator,
    Apply,
    AtomicAdd,
    Check,
    Let,
    Load,
    Local,
    Loop,
    Scalar,
    Scratch,
    Statement,
    Store,
    Value,
)
from framefuse.ir.loops.walk import position, values, values_of
from framefuse.ir.numbers import Expr, Symbol
from framefuse.ir.ops import TABLE


def problems(kernel: Kernel) -> list[str]:
    """One sentence for each broken rule; empty for a kernel that an emitter may take."""
    scope = _Scope()
    for buffer in kernel.buffers:
        scope.memory[buffer.name] = (buffer.dtype, buffer.written)
    for buffer in kernel.buffers:
        if buffer.aliases is not None and scope.memory.get(buffer.aliases, (None, True))[1]:
            scope.wrong.append(f"{buffer.name} is the memory of {buffer.aliases}, which is no buffer that is read")
    for number in kernel.numbers:
        scope.reals[number.symbol] = number.real
        if not number.real:
            scope.symbols.add(number.symbol)
    _statements(kernel.body, scope, 0)
    return scope.wrong


@dataclass(slots=True)
class _Scope:
    """What is known at a point of the nest; ``wrong`` is that of all scopes."""

    wrong: list[str] = field(default_factory=list)
    memory: dict[str, tuple[DType, bool]] = field(default_factory=dict)
    locals: dict[str, DType] = field(default_factory=dict)
    symbols: set[Symbol] = field(default_factory=set)
    reals: dict[Symbol, bool] = field(default_factory=dict)
    open: set[str] = field(default_factory=set)  # accumulators

    def inner(self) -> _Scope:
        return replace(
            self, memory=dict(self.memory), locals=dict(self.locals), symbols=set(self.symbols), open=set(self.open)
        )


def _statements(body: Sequence[Statement], scope: _Scope, depth: int) -> None:
    for statement in body:
        scope.wrong += _of_statement(statement, scope, depth)
        match statement:
            case Let(name, value):
                scope.locals[name] = value.dtype
                if value.dtype is INT64:
                    scope.symbols.add(Symbol(name))
            case Accumulator(name, _, dtype, _):
                scope.locals[name] = dtype
                scope.open.add(name)
            case Scratch(name, dtype, _):
                scope.memory[name] = (dtype, True)
            case Loop(axis, _, inside, _):
                inner = scope.inner()
                inner.symbols.add(axis)
                _statements(inside, inner, depth + 1)


def _of_statement(statement: Statement, scope: _Scope, depth: int) -> Iterator[str]:
    place = position(statement)
    if place is not None:
        yield from _of_place(place, scope)
    for value in values_of([replace(statement, body=())] if isinstance(statement, Loop) else [statement]):
        yield from _of_value(value, scope)
    match statement:
        case Loop(axis, _, _, kind) if kind.parallel and depth:
            yield f"the parallel loop over {axis} is inside another loop"
        case Accumulate(name, _, _) if name not in scope.open:
            yield f"{name} is no accumulator"
        case Check(ok) if ok.dtype is not BOOL:
            yield f"a check of {ok.dtype.name}"
        case Store(buffer, _, _) | AtomicAdd(buffer, _, _, _):
            dtype, written = scope.memory.get(buffer, (None, False))
            if not written or dtype is not values(statement)[0].dtype:
                yield f"{values(statement)[0].dtype.name} is stored to {buffer}"


def _of_value(value: Value, scope: _Scope) -> Iterator[str]:
    place = position(value)
    if place is not None:
        yield from _of_place(place, scope)
    match value:
        case Local(name, dtype) if scope.locals.get(name) is not dtype:
            yield f"{name} is not known as {dtype.name}"
        case Load(buffer, _, dtype, mask):
            if scope.memory.get(buffer, (None, False))[0] is not dtype:
                yield f"{dtype.name} is loaded from {buffer}"
            if mask is not None and mask.dtype is not BOOL:
                yield f"a load is masked by {mask.dtype.name}"
        case Scalar(symbol, _, real) if scope.reals.get(symbol) is not real:
            yield f"{symbol} is no such number"
        case Apply(op, args, _) if op not in TABLE or len(args) != TABLE[op].arity:
            yield f"{op} of {len(args)} operands"


def _of_place(place: Expr, scope: _Scope) -> Iterator[str]:
    for symbol in sorted(place.symbols - scope.symbols, key=str):
        yield f"{symbol} has no value here"
