"""Turns a kernel into a key that is equal for equal kernels, in time linear in its size."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from framefuse.errors import CompilerBug
from framefuse.ir.kernel import Buffer, Kernel
from framefuse.ir.loops.nodes import (
    Accumulate,
    Apply,
    AtomicAdd,
    Check,
    Const,
    Index,
    Let,
    Load,
    Local,
    Loop,
    Scalar,
    Statement,
    Store,
    Value,
)
from framefuse.ir.loops.walk import in_order, operands, values
from framefuse.ir.numbers import Expr
from framefuse.ir.source import Line


class Key:
    """What decides the machine code of a kernel, hashed once."""

    __slots__ = ("parts", "hash")

    def __init__(self, parts: tuple[object, ...]) -> None:
        self.parts = parts
        self.hash = hash(parts)

    def __hash__(self) -> int:
        return self.hash

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Key) and self.hash == other.hash and self.parts == other.parts


def key_of(kernel: Kernel) -> Key:
    """A hashable key of what decides the machine code, made once for each kernel: the only sense in which kernels are
    equal.

    A value may be shared at every level of a chain; each value object is visited once.
    """
    key: Key | None = kernel.known.get("key")
    if key is None:
        body = _Keys().statements(kernel.body)
        key = Key((kernel.buffers, kernel.numbers, kernel.extent, body, kernel.exact, kernel.product, kernel.ones))
        kernel.known["key"] = key
    return key


def with_lines(kernel: Kernel, lines: tuple[Line, ...]) -> Kernel:
    """The kernel for other lines of the user's, which are no part of its key."""
    if lines == kernel.lines:
        return kernel
    key_of(kernel)
    copy = replace(kernel, lines=lines)
    object.__setattr__(copy, "known", kernel.known)
    return copy


def with_buffers(kernel: Kernel, buffers: tuple[Buffer, ...]) -> Kernel:
    """The kernel on other buffers of the same names."""
    copy = replace(kernel, buffers=buffers)
    copy.known["key"] = Key((buffers, *key_of(kernel).parts[1:]))
    return copy


def key_of_value(value: Value, parts: Sequence[int], index: Expr | None = None) -> tuple[object, ...]:
    """What makes a value equal to another: its own fields, with numbers that stand for its operands. ``index`` is
    where it is read, if not at its own index expression.
    """
    match value:
        case Apply(op, _, dtype):
            return ("apply", op, dtype.name, *parts)
        case Load(buffer, place, dtype, _):
            return ("load", buffer, place if index is None else index, dtype.name, *parts)
        case Const(constant, dtype):
            # repr tells 0.0 from -0.0 and True from 1, and equals itself for NaN
            return ("const", type(constant).__name__, repr(constant), dtype.name)
        case Scalar(symbol, dtype, real):
            return ("scalar", symbol, dtype.name, real)
        case Index(place, dtype):
            return ("index", place if index is None else index, dtype.name)
        case Local(name, dtype):
            return ("local", name, dtype.name)
    raise CompilerBug(f"no key for the value {value!r}")


class _Keys:
    def __init__(self) -> None:
        self.numbers: dict[tuple[object, ...], int] = {}
        self.seen: dict[int, int] = {}

    def statements(self, body: tuple[Statement, ...]) -> tuple[object, ...]:
        return tuple(self.statement(statement) for statement in body)

    def statement(self, statement: Statement) -> object:
        parts = tuple(self.value(value) for value in values(statement))
        match statement:
            case Let(name, _):
                return ("let", name, *parts)
            case Accumulate(name, _, index):
                return ("accumulate", name, index, *parts)
            case Store(buffer, index, _):
                return ("store", buffer, index, *parts)
            case AtomicAdd(buffer, index, _, _):
                return ("add", buffer, index, *parts)
            case Check(_):
                return ("check", *parts)
            case Loop(axis, extent, body, kind):
                return ("loop", axis, extent, kind.word, self.statements(body))
        return statement

    def value(self, value: Value) -> tuple[object, ...]:
        """The parts not met before, then the number of the value itself."""
        fresh: list[tuple[object, ...]] = []
        for part in in_order(value, self.seen):
            key = key_of_value(part, [self.seen[id(operand)] for operand in operands(part)])
            if key not in self.numbers:
                self.numbers[key] = len(self.numbers)
                fresh.append(key)
            self.seen[id(part)] = self.numbers[key]
        return (tuple(fresh), self.seen[id(value)])
