"""Keeps which classes have numbers that programs assign while they run, such as a count of calls."""

from __future__ import annotations

import weakref
from collections.abc import Iterator

from torch.utils.hooks import RemovableHandle

from framefuse.capture.program.lookups import type_get
from framefuse.ir.classes import immutable
from framefuse.ir.values import Value

NUMBERS = (int, float)
_assigned: weakref.WeakKeyDictionary[type, set[str]] = weakref.WeakKeyDictionary()
_assigned[RemovableHandle] = {"next_id"}  # every hook that is registered anywhere counts there


def note_assigned(holder: Value, name: str, value: Value) -> None:
    """A recorded program assigned ``value`` to an attribute of a class, as far as ``holder`` is one."""
    kind = type(holder)
    if issubclass(kind, type) and kind.__hash__ is type.__hash__ and kind.__eq__ is type.__eq__:
        if type(value) in NUMBERS:
            _assigned.setdefault(holder, set()).add(name)


def is_assigned(kind: type, name: str) -> bool:
    """Whether programs assigned a number by this name to the class itself, and one lies there."""
    meta = type(kind)
    plain = meta.__hash__ is type.__hash__ and meta.__eq__ is type.__eq__ and not immutable(kind)
    return plain and name in _assigned.get(kind, ()) and type(vars(kind).get(name)) in NUMBERS


def assigned_numbers(kind: type) -> Iterator[tuple[type, str, Value]]:
    """The numbers that lie on the classes of a type and were assigned by programs: class, name and value."""
    for base in kind.__mro__:
        meta = type(base)
        if immutable(base) or meta.__hash__ is not type.__hash__ or meta.__eq__ is not type.__eq__:
            continue
        for name in sorted(_assigned.get(base, ())):
            value = vars(base).get(name)
            if type(value) in NUMBERS and type_get(kind, name) is value:
                yield base, name, value
