"""Turns values of known classes into a list of records, which is marshalled, and back.

A record is the number of a row and the numbers of its parts: records that stand before it, from 0 on, and constants
from -1 down. Reading makes objects of the rows below and of nothing else, and calls no code of theirs but their makers;
those of most dataclasses native code makes, which fills their slots. It trusts what it reads, which was signed
(:mod:`framefuse.codegen.disk_cache`).
"""

from __future__ import annotations

import marshal
import math
import operator
import struct
from collections.abc import Callable, Iterable, Sequence
from dataclasses import fields
from enum import Enum
from types import EllipsisType, MemberDescriptorType, NoneType

import torch

from framefuse import _native
from framefuse.driver.programs.storable import CLASSES, IDENTITY, class_of
from framefuse.ir.dtypes import BY_NAME, DType
from framefuse.ir.frozen_classes import dataclass
from framefuse.ir.kernel import Kernel, kept_kernel
from framefuse.ir.numbers import Expr, Symbol
from framefuse.ir.values import Value

VERSION = 2  # of marshal: from 3 on its bytes tell which strings are interned, which is no part of a value
ATOMS = frozenset((int, float, bool, str, bytes, complex, NoneType, EllipsisType))

Record = tuple[int, ...]
Stranger = Callable[[Value], Sequence[Value]]


class Unstorable(Exception):
    """A value that no row below can write."""


@dataclass(frozen=True, slots=True)
class Row:
    """How values of one class are written: ``parts`` gives what ``make`` takes. ``shared``: equal ones are one.
    ``how`` it takes them: None as one list, True one by one; slots, where filling these is all that it does.
    """

    parts: Callable[[Value], Iterable[Value]]
    make: Callable[..., Value]
    shared: bool = True
    how: bool | tuple[Value, ...] | None = None


def _items(value: dict[Value, Value]) -> list[Value]:
    return [*value, *value.values()]


def _dict(parts: list[Value]) -> dict[Value, Value]:
    half = len(parts) // 2
    return dict(zip(parts[:half], parts[half:], strict=True))


def _operator(value: Value) -> tuple[str, str, str]:
    if value.namespace not in ("aten", "prims"):  # what others register may be another thing in the next process
        raise Unstorable(f"an operator of {value.namespace}")
    schema = value._schema
    return value.namespace, schema.name.partition("::")[2], schema.overload_name or "default"


def _class(value: type) -> Row:
    if value is Kernel:
        return Row(_kernel_parts, _kernel, shared=False, how=True)
    if issubclass(value, Enum):
        return Row(lambda each: (each.name,), lambda parts: value[parts[0]])
    parts_of: Value = value
    names = [each.name for each in fields(parts_of) if each.init]
    read = operator.attrgetter(*names)
    parts = read if len(names) > 1 else lambda found: (read(found),)
    return Row(parts, value, value.__name__ not in IDENTITY, _slots(value, names) or True)


def _kernel_parts(kernel: Kernel) -> tuple[Value, ...]:
    before, behind = ("title", "buffers", "numbers"), ("extent", "lines", "exact", "product", "ones")
    body = written(kernel.body, _refused)
    return *(getattr(kernel, name) for name in before), body, *(getattr(kernel, name) for name in behind)


def _kernel(title: str, buffers: Value, numbers: Value, body: bytes, *rest: Value) -> Kernel:
    """The body stays bytes until somebody wants it, which is nobody where the machine code is there."""
    return kept_kernel(title, buffers, numbers, lambda: read(body, _refused), *rest)


def _refused(value: Value) -> Value:
    raise Unstorable(f"a body of a kernel with {value!r:.80}")


def _slots(value: type, names: Sequence[str]) -> tuple[Value, ...] | None:
    """The slots of a dataclass whose maker fills them with what it is given, and does nothing else."""
    slots = tuple([getattr(value, name, None) for name in names])
    written: Value = getattr(value, "__init__")  # noqa: B009
    plain = written.__code__.co_filename == "<string>" and not hasattr(value, "__post_init__")
    whole = len(names) == len(fields(value)) and all(type(slot) is MemberDescriptorType for slot in slots)
    return slots if plain and whole and getattr(value, "__new__") is object.__new__ else None  # noqa: B009


def _text(value: Value) -> tuple[str]:
    return (str(value).removeprefix("torch."),)


ROWS: dict[type, Row] = {
    tuple: Row(lambda value: value, tuple),
    list: Row(lambda value: value, list, shared=False),
    dict: Row(_items, _dict, shared=False),
    frozenset: Row(lambda value: sorted(value, key=repr) if _plain(value) else value, frozenset),
    slice: Row(lambda value: (value.start, value.stop, value.step), lambda parts: slice(*parts)),
    range: Row(lambda value: (value.start, value.stop, value.step), lambda parts: range(*parts)),
    torch.Size: Row(lambda value: value, torch.Size),
    torch.dtype: Row(_text, lambda parts: getattr(torch, parts[0])),
    torch.layout: Row(_text, lambda parts: getattr(torch, parts[0])),
    torch.memory_format: Row(_text, lambda parts: getattr(torch, parts[0])),
    torch.device: Row(lambda value: (str(value),), lambda parts: torch.device(parts[0])),
    DType: Row(lambda value: (value.name,), lambda parts: BY_NAME[parts[0]]),
    Symbol: Row(lambda value: (value.name,), lambda parts: Symbol(parts[0])),
    Expr: Row(lambda value: (value.terms,), lambda parts: Expr(parts[0])),
    torch._ops.OpOverload: Row(
        _operator, lambda parts: operator.attrgetter(".".join(parts))(torch.ops)
    ),
}  # fmt: skip
_NUMBERS = {kind: number for number, kind in enumerate(ROWS)}
# Rows of the classes that are imported when the first object is made of one, or written.
_PLACES = [(module, name) for module, names in CLASSES.items() for name in names]
_LATE = {place: len(ROWS) + number for number, place in enumerate(_PLACES)}
Maker = tuple[Callable[..., Value], bool | tuple[Value, ...] | None]
_NOT_YET: Maker = (type, None)
_MAKERS = [*((row.make, row.how) for row in ROWS.values()), *(_NOT_YET for _ in _LATE)]
STRANGER = len(_MAKERS)  # the row of what belongs to the program: its number among them, then how it is described


def _row(kind: type) -> Row | None:
    """The row of a class, if it has one."""
    row = ROWS.get(kind)
    if row is None and (number := _LATE.get((kind.__module__, kind.__name__))) is not None:
        if kind is class_of(kind.__module__, kind.__name__):
            _NUMBERS[kind] = number
            row = ROWS[kind] = _class(kind)
    return row


def _maker(number: int) -> Maker:
    """How the row of a class that nothing was made of yet makes one."""
    row = _row(class_of(*_PLACES[number - STRANGER]))
    assert row is not None, "it is among the rows"
    return row.make, row.how


def _plain(value: frozenset[Value]) -> bool:
    """Whether the order in which a set is read is nothing that a process decides."""
    return all(type(part) in ATOMS or type(part) is Symbol for part in value)


class Writer:
    """Collects the records of several values, of which parts are shared.

    What has no row of its own is a stranger: ``describe`` gives atoms for it, and may raise Unstorable. ``strangers``
    are those met, in order.
    """

    def __init__(self, describe: Stranger) -> None:
        self.describe = describe
        self.constants: list[Value] = []
        self.records: list[Record] = []
        self.strangers: list[Value] = []
        self._numbers: dict[int, int] = {}  # of values by their address; ``_alive`` keeps them
        self._alive: list[Value] = []
        self._constants: dict[tuple[type, Value], int] = {}
        self._shared: dict[Record, int] = {}

    def write(self, root: Value) -> int:
        """The number of a value, whose parts are written before it."""
        numbers = self._numbers
        self._alive.append(root)
        if type(root) in ATOMS:
            return self._constant(root)
        waiting, opened = [root], dict[int, Iterable[Value]]()
        while waiting:
            value = waiting[-1]
            if id(value) in numbers:
                waiting.pop()
                continue
            kind = type(value)
            row = _row(kind)
            if row is None:
                numbers[id(value)] = self._stranger(value)
                waiting.pop()
                continue
            record, missing = [_NUMBERS[kind]], []
            parts = opened.get(id(value)) or row.parts(value)
            for part in parts:
                number = numbers.get(id(part))
                if number is None:
                    if type(part) in ATOMS:
                        number = self._constant(part)
                    else:
                        missing.append(part)
                        continue
                record.append(number)
            if missing:
                if id(value) in opened:
                    raise Unstorable(f"a {kind.__name__} that holds itself")
                opened[id(value)] = parts
                missing.reverse()
                waiting += missing
                continue
            waiting.pop()
            if kind is frozenset:
                record[1:] = sorted(record[1:])
            numbers[id(value)] = self._record(tuple(record), row.shared)
        return numbers[id(root)]

    def _record(self, record: Record, shared: bool) -> int:
        found = self._shared.get(record) if shared else None
        if found is None:
            found = len(self.records)
            self.records.append(record)
            if shared:
                self._shared[record] = found
        return found

    def _stranger(self, value: Value) -> int:
        described = [self._constant(part) for part in self.describe(value)]
        self._alive.append(value)
        record = (STRANGER, self._constant(len(self.strangers)), *described)
        self.strangers.append(value)
        self.records.append(record)
        return len(self.records) - 1

    def _constant(self, value: Value) -> int:
        kind = type(value)
        key = (kind, value)
        if kind is float and (value == 0 or math.isnan(value)):  # zeros differ, and no NaN equals itself
            key = (kind, struct.pack("<d", value))
        elif kind is complex:
            key = (kind, repr(value))
        found = self._constants.get(key)
        if found is None:
            self.constants.append(value)
            found = self._constants[key] = -len(self.constants)
        return found

    def data(self) -> bytes:
        """All that was written; equal values give equal bytes."""
        return marshal.dumps((self.constants, self.records), VERSION)


def written(value: Value, describe: Stranger) -> bytes:
    """One value as bytes."""
    writer = Writer(describe)
    root = writer.write(value)
    return marshal.dumps((root, writer.constants, writer.records), VERSION)


def read(data: bytes, strangers: Callable[[Sequence[Value]], Value]) -> Value:
    """The value of ``written``; ``strangers`` finds one by its description."""
    root, constants, records = marshal.loads(data)
    for number in {record[0] for record in records}:
        if number < STRANGER and _MAKERS[number] is _NOT_YET:
            _MAKERS[number] = _maker(number)
    stranger = (lambda parts: strangers(parts[1:]), None)  # the row STRANGER
    return _native.read_records((*_MAKERS, stranger), records, constants, root)
