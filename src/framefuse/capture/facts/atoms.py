"""Names the classes of the program's objects that facts know by value, and those that hold others."""

from __future__ import annotations

import enum
import types
import typing
from collections import deque

import torch

from framefuse.ir.own_class import is_a
from framefuse.ir.values import Value

# How a number that is read may be known: by its value (False), as a symbol at once (True), or as a symbol where it was
# seen to move, because the reader goes on with what it is given.
CARRIED = 2
SINGLETONS = frozenset(
    (bool, type(None), type(Ellipsis), type(NotImplemented), torch.dtype, torch.layout, torch.memory_format)
)
TEXTS = frozenset((str, bytes, complex))
ATOMS = SINGLETONS | TEXTS | {int, float}
SEQUENCES = (list, tuple, deque)
CONTAINERS = (list, tuple, dict, set, frozenset, deque)
SETS = (set, frozenset)
CALLABLES = frozenset(
    (types.FunctionType, types.BuiltinFunctionType, types.MethodDescriptorType, types.WrapperDescriptorType,
     types.GetSetDescriptorType, types.MethodWrapperType)
)  # fmt: skip
# All but numbers and texts are equal by identity, or as what they are bound to is.
KEY_ATOMS = frozenset((int, str, bytes, type, type(typing.Union))) | SINGLETONS | CALLABLES

# Those of the members of enumerations whose class has none of its own.
EQUALITIES: tuple[Value, ...] = (object.__eq__, str.__eq__, int.__eq__)
HASHES: tuple[Value, ...] = (enum.Enum.__hash__, str.__hash__, int.__hash__)


def is_key(key: Value) -> bool:
    """Whether a dict entry with this key can be named by a source: atoms known by value or identity, tuples of them."""
    kind = type(key)
    return kind in KEY_ATOMS or (kind is tuple and all(map(is_key, key))) or _is_plain_metaclass(kind)


def is_shared_key(key: Value) -> bool:
    """Whether a key can be named that one of another class may equal: a float, or a member of an enumeration that is
    hashed and compared as the library's are. It names an entry only in a container that nothing has changed.
    """
    kind = type(key)
    if kind is float:
        return bool(key == key)  # what is no number is found by its identity
    return is_a(kind, enum.EnumMeta) and kind.__eq__ in EQUALITIES and kind.__hash__ in HASHES


def _is_plain_metaclass(kind: type) -> bool:
    """Whether classes of a metaclass, as those of tensors and abstract ones, are equal by identity."""
    return issubclass(kind, type) and kind.__eq__ is type.__eq__ and kind.__hash__ is type.__hash__
