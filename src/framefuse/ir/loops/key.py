"""Turns a kernel into a key that is equal for equal kernels, in time linear in its size."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from framefuse.ir.loops.nodes import (
    Accumulate,
    Accumulator,
    Apply,
    AtomicAdd,
    Buffer,
    Check,
    Const,
    Index,
    Kernel,
    Let,
    Load,
    Local,
    Loop,
    Scalar,
    Statement,
    Store,
    Value,
)
from framefuse.ir.source import Line


class Key:
    """What decides the machine code of a kernel, hashed once."""

    __slots__ = ("parts", "hash")

    def __init__(self, parts: tuple[Any, ...]) -> None:
        self.parts = parts
        self.hash = hash(parts)

    def __hash__(self) -> int:
        return self.hash

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Key) and self.hash == other.hash and self.parts == other.parts


def key_of(kernel: Kernel) -> Key:
    """A hashable key of what decides the machine code, made once for each kernel.

    Hashing a kernel walks its values as trees: a value shared at every level of a chain would take time exponential in
    the chain. Here each value object is visited once.
    """
    if not kernel.known:
        body = _Keys().statements(kernel.body)
        kernel.known.append(Key((kernel.buffers, kernel.numbers, kernel.extent, body, kernel.exact, kernel.product)))
    found: Key = kernel.known[0]
    return found


def with_lines(kernel: Kernel, lines: tuple[Line, ...]) -> Kernel:
    """The kernel for other lines of the user's, which are no part of its key."""
    if lines == kernel.lines:
        return kernel
    found = replace(kernel, lines=lines)
    found.known.append(key_of(kernel))
    return found


def with_buffers(kernel: Kernel, buffers: tuple[Buffer, ...]) -> Kernel:
    """The kernel on other buffers of the same names."""
    found = replace(kernel, buffers=buffers)
    found.known.append(Key((buffers, *key_of(kernel).parts[1:])))
    return found


class _Keys:
    def __init__(self) -> None:
        self.numbers: dict[Any, int] = {}
        self.seen: dict[int, int] = {}

    def statements(self, body: tuple[Statement, ...]) -> tuple[Any, ...]:
        return tuple(self.statement(statement) for statement in body)

    def statement(self, statement: Statement) -> Any:
        match statement:
            case Let(name, value):
                return ("let", name, self.value(value))
            case Accumulator():
                return statement
            case Accumulate(name, value, index):
                return ("accumulate", name, self.value(value), index)
            case Store(buffer, index, value):
                return ("store", buffer, index, self.value(value))
            case AtomicAdd(buffer, index, value, mask):
                return ("add", buffer, index, self.value(value), None if mask is None else self.value(mask))
            case Check(ok):
                return ("check", self.value(ok))
            case Loop(axis, extent, body, kind):
                return ("loop", axis, extent, kind, self.statements(body))
        return statement

    def value(self, value: Value) -> tuple[Any, ...]:
        """The parts not met before, then the number of the value itself."""
        fresh: list[Any] = []
        stack = [value]
        while stack:
            top = stack[-1]
            if id(top) in self.seen:
                stack.pop()
                continue
            parts = top.args if isinstance(top, Apply) else (top.mask,) if isinstance(top, Load) and top.mask else ()
            missing = [part for part in parts if part is not None and id(part) not in self.seen]
            if missing:
                stack += missing
                continue
            key = self._key(top, tuple(self.seen[id(part)] for part in parts if part is not None))
            if key not in self.numbers:
                self.numbers[key] = len(self.numbers)
                fresh.append(key)
            self.seen[id(top)] = self.numbers[key]
            stack.pop()
        return (tuple(fresh), self.seen[id(value)])

    def _key(self, value: Value, parts: tuple[int, ...]) -> tuple[Any, ...]:
        match value:
            case Apply(op, _, dtype):
                return ("apply", op, parts, dtype.name)
            case Load(buffer, index, dtype, _):
                return ("load", buffer, index, parts, dtype.name)
            case Const(constant, dtype):
                # repr tells 0.0 from -0.0 and True from 1, and equals itself for NaN
                return ("const", type(constant).__name__, repr(constant), dtype.name)
            case Scalar(symbol, dtype, real):
                return ("scalar", symbol, dtype.name, real)
            case Index(index, dtype):
                return ("index", index, dtype.name)
            case Local(name, dtype):
                return ("local", name, dtype.name)
