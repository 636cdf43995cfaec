"""Turns classes made during the call, their instances and the descriptors in them into recipes."""

from __future__ import annotations

import collections
import dataclasses
import types
from typing import Protocol

from framefuse.capture.program.iterators import dict_behind
from framefuse.ir.classes import written_in_c
from framefuse.ir.containers import elements
from framefuse.ir.trace import Build
from framefuse.ir.values import Value

_tuplegetter: type = type(vars(collections.namedtuple("_tuplegetter", "a"))["a"])
# Objects that lie in classes and are nothing but their parts.
DESCRIPTORS = frozenset((property, classmethod, staticmethod, _tuplegetter, types.MappingProxyType))
# Objects of the library that count by identity.
LASTING = {
    id(value): value
    for value in vars(dataclasses).values()
    if type(value).__module__ == "dataclasses" or type(value) is types.MappingProxyType
}
# What ``type.__new__`` reads in the namespace; all else is filled in afterwards, as it may refer to the class.
READ = frozenset(("__slots__", "__module__", "__doc__"))
OWN = frozenset(("__dict__", "__weakref__", "_abc_impl"))


class Maker(Protocol):
    """Makes the recipes of parts."""

    def build(self, value: Value) -> object: ...
    def refuse(self, detail: str) -> object: ...


def class_recipe(recipes: Maker, cls: type, number: int) -> object:
    """A class made during the call, made again by ``type.__new__`` and then filled."""
    if any("__init_subclass__" in vars(base) for base in cls.__mro__[1:] if base is not object):
        return recipes.refuse(f"the class {cls.__name__}, made during the call")
    meta = recipes.build(type(cls))
    bases = Build("tuple", None, tuple([recipes.build(base) for base in cls.__bases__]))
    space: dict[str, Value] = {"__qualname__": cls.__qualname__}
    filled = []
    for name, part in vars(cls).items():
        if name in OWN or type(part) is types.MemberDescriptorType:
            continue
        space[name] = part if name in READ else None
        if name not in READ:
            filled.append((name, recipes.build(part)))
    parts = (meta, bases, Build("dict", None, tuple(filled)))
    return Build("class", (cls.__name__, space), parts, None, number)


def descriptor_recipe(recipes: Maker, value: Value, number: int) -> object:
    """A property, a class method or another such object."""
    kind = type(value)
    parts: tuple[Value, ...]
    if kind is property:
        parts = (value.fget, value.fset, value.fdel, value.__doc__)
    elif kind is _tuplegetter:
        parts = value.__reduce__()[1]
    else:
        parts = (dict_behind(value),) if kind is types.MappingProxyType else (value.__func__,)
    return Build("call", kind, tuple([recipes.build(part) for part in parts]), None, number)


def tuple_recipe(recipes: Maker, value: Value, number: int) -> object:
    """An instance of a kind of tuple that was made during the call."""
    kind = type(value)
    if any(written_in_c(base) and base not in (tuple, object) for base in kind.__mro__):
        return recipes.refuse(f"a {kind.__name__}")
    state = getattr(value, "__dict__", None)
    parts = (recipes.build(kind), *[recipes.build(part) for part in elements(value)])
    base = Build("dict", None, tuple([(name, recipes.build(part)) for name, part in state.items()])) if state else None
    return Build("kind of tuple", None, parts, base, number)
