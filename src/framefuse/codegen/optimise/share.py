"""Computes equal values of a loop nest once: names that stand for one value become one, loops over one range too."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

from framefuse.codegen.optimise.nest import Optimised
from framefuse.ir.dtypes import INT64
from framefuse.ir.loops import (
    Accumulate,
    Accumulator,
    Apply,
    AtomicAdd,
    Index,
    Kernel,
    Let,
    Load,
    Local,
    Loop,
    Scratch,
    Statement,
    Store,
    Value,
)
from framefuse.ir.loops.key import key_of_value
from framefuse.ir.loops.rewrite import with_parts, with_values
from framefuse.ir.loops.walk import in_order, operands, position, statements, values
from framefuse.ir.numbers import Expr, Symbol


def share(nest: Optimised) -> Optimised:
    """The nest with each value named once in its scope and read by that name, and with the numbers of its values.

    Loops over one range, one after the other, have one axis, so that what depends on it is equal in both.
    """
    numbering = _Numbering(nest.kernel)
    return Optimised(replace(nest.kernel, body=numbering.body(nest.kernel.body)), numbering.numbers)


class _Numbering:
    """Numbers the values of a kernel in the order of its statements. ``numbers`` has the number of each value object of
    the statements that :meth:`body` gives.

    A load counts the stores before it, and an accumulator the terms: what is read later has another number.
    """

    def __init__(self, kernel: Kernel) -> None:
        self.numbers: dict[int, int] = {}
        self._kept: list[Value] = []  # an object that is dropped would leave its id to another
        self._keys: dict[Any, int] = {}
        self._aliases = {buffer.name: buffer.aliases for buffer in kernel.buffers if buffer.aliases}
        self._versions: dict[str, int] = {}
        self._locals: dict[str, int] = {}  # the numbers of names that are known here
        self._named: dict[int, str] = {}  # and the names of numbers
        self._renamed: dict[Symbol, Expr] = {}
        self._first: dict[int, str] = {}  # the name that a number was given first, maybe in another scope
        self._owners: dict[str, Any] = {}  # what each name stands for wherever it is given
        self._axes: dict[Any, Symbol] = {}
        self._depth = 0
        for number in kernel.numbers:
            self._owners[number.symbol.name] = number
        for statement in statements(kernel.body):
            if isinstance(statement, Accumulator):
                self._owners[statement.name] = statement.op

    # ---- statements

    def body(self, body: Sequence[Statement]) -> tuple[Statement, ...]:
        """The statements with one name for each value; ``numbers`` gets those of their values."""
        renumbered = (self._statement(statement) for statement in body)
        return tuple(statement for statement in renumbered if statement is not None)

    def _statement(self, statement: Statement) -> Statement | None:
        """The new statement; None for a name of what has one."""
        if isinstance(statement, Let):
            return self._let(statement)
        if isinstance(statement, Loop):
            return self._loop(statement)
        parts = [self._value(value)[0] for value in values(statement)]
        place = position(statement)
        rewritten = with_values(statement, parts, None if place is None else self._index(place))
        if isinstance(statement, (Store, AtomicAdd)):
            self._stored(statement.buffer)
        elif isinstance(statement, Scratch):
            self._stored(statement.name)
        elif isinstance(statement, (Accumulator, Accumulate)):
            self._locals[statement.name] = self._fresh()
        return rewritten

    def _let(self, statement: Let) -> Let | None:
        value, number = self._value(statement.value)
        known = self._named.get(number)
        let = None
        if known is None:
            known = self._first.get(number) or self._name(statement.name, number)
            self._first[number] = self._named[number] = known
            let = statement if known == statement.name and value is statement.value else Let(known, value)
        self._locals[statement.name] = self._locals[known] = number
        if value.dtype is INT64:
            self._rename(statement.name, known)
        return let

    def _loop(self, statement: Loop) -> Loop:
        extent = self._index(statement.extent)
        stored = {s.buffer for s in statements(statement.body) if isinstance(s, (Store, AtomicAdd))}
        fed = {s.name for s in statements(statement.body) if isinstance(s, Accumulate)}
        # Turns of other loops are independent of each other: none reads what another one stores.
        self._changed(set() if statement.kind.vector or statement.kind.parallel else stored, fed)
        with self._scope():
            axis = self._axis(statement, extent)
            self._rename(statement.axis.name, axis.name)
            body = self.body(statement.body)
        self._changed(stored, fed)
        return Loop(axis, extent, body, statement.kind)

    def _changed(self, stored: set[str], fed: set[str]) -> None:
        """Buffers and accumulators that the turns of a loop change."""
        for buffer in stored:
            self._stored(buffer)
        for name in fed & self._locals.keys():
            self._locals[name] = self._fresh()

    @contextmanager
    def _scope(self) -> Iterator[None]:
        saved = dict(self._locals), dict(self._named), dict(self._renamed)
        self._depth += 1
        yield
        self._depth -= 1
        self._locals, self._named, self._renamed = saved

    def _axis(self, statement: Loop, extent: Expr) -> Symbol:
        """The axis of a loop: one for all loops of one length and kind inside as many others."""
        key = self._depth, extent, statement.kind
        axis = self._axes.get(key)
        if axis is None:
            axis = self._axes[key] = Symbol(self._name(statement.axis.name, key))
        return axis

    # ---- names

    def _name(self, wanted: str, owner: Any) -> str:
        """``wanted`` itself unless it stands for something else somewhere."""
        name = wanted
        count = 0
        while self._owners.setdefault(name, owner) != owner:
            count += 1
            name = f"{wanted}_{count}"
        return name

    def _rename(self, name: str, known: str) -> None:
        if name == known:
            self._renamed.pop(Symbol(name), None)
        else:
            self._renamed[Symbol(name)] = Symbol(known).expr

    def _index(self, index: Expr) -> Expr:
        return index.substitute(self._renamed) if self._renamed else index

    def _single(self, index: Expr) -> str | None:
        """The name whose value an index expression is, if it is nothing else."""
        if len(index.terms) == 1 and index.terms[0][1] == 1 and len(index.terms[0][0]) == 1:
            atom = index.terms[0][0][0]
            if isinstance(atom, Symbol) and atom.name in self._locals:
                return atom.name
        return None

    def _fresh(self) -> int:
        return self._keys.setdefault(("fresh", len(self._keys)), len(self._keys))

    def _stored(self, buffer: str) -> None:
        """Memory that a buffer shares with another changes with it."""
        self._versions[buffer] = self._versions.get(buffer, 0) + 1
        for name, other in self._aliases.items():
            if buffer in (name, other):
                both = name if buffer == other else other
                self._versions[both] = self._versions.get(both, 0) + 1

    # ---- values

    def _value(self, root: Value) -> tuple[Value, int]:
        """The value as it stands in the new statements, and its number."""
        if not operands(root):
            return self._number(root, ())
        done: dict[int, tuple[Value, int]] = {}
        for value in in_order(root, done):
            done[id(value)] = self._number(value, [done[id(part)] for part in operands(value)])
        return done[id(root)]

    def _number(self, value: Value, parts: Sequence[tuple[Value, int]]) -> tuple[Value, int]:
        if isinstance(value, Local):
            number = self._locals[value.name]
            name = self._named.get(number, value.name)
            return (value if name == value.name else Local(name, value.dtype)), number
        numbers, index = [number for _, number in parts], None
        if isinstance(value, Apply):
            key = key_of_value(value, numbers)
        elif isinstance(value, Load):
            index = self._index(value.index)
            key = *key_of_value(value, numbers, index), self._versions.get(value.buffer, 0)
        elif isinstance(value, Index):
            index = self._index(value.index)
            single = self._single(index) if value.dtype is INT64 else None
            if single is not None:
                return Local(single, INT64), self._locals[single]
            key = key_of_value(value, numbers, index)
        else:
            key = key_of_value(value, ())
        number = self._keys.setdefault(key, len(self._keys))
        if parts or isinstance(value, Load):
            known = self._named.get(number)
            if known is not None:
                return Local(known, value.dtype), number
        return self._noted(with_parts(value, [part for part, _ in parts], index), number), number

    def _noted(self, value: Value, number: int) -> Value:
        """The object that has this number; one that had another elsewhere is made anew."""
        if self.numbers.setdefault(id(value), number) != number:
            value = replace(value)
            self.numbers[id(value)] = number
        self._kept.append(value)
        return value
