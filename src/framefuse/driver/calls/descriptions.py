"""Describes what never changes of an object, or what a recording took for granted since a fact watches over it: the
code of functions, what lies on classes, the elements of tuples.

Two processes in which an object has equal descriptions may use one recording of it: whatever else a recording reads is
a fact, which guards check.
"""

from __future__ import annotations

import contextvars
import dataclasses
import enum
import functools
import hashlib
import io
import marshal
import operator
import re
import types
import weakref
import zlib
from collections.abc import Callable, Mapping, Sequence

import torch

from framefuse.capture.facts.hidden_state import has_hidden_state
from framefuse.driver.programs.functions import own_place
from framefuse.driver.programs.records import VERSION, Unstorable
from framefuse.ir.classes import immutable
from framefuse.ir.own_class import is_a
from framefuse.ir.values import Value

ATOMS = frozenset((int, float, bool, str, bytes, complex, type(None), type(Ellipsis)))
TORCHS = frozenset((torch.dtype, torch.layout, torch.memory_format, torch.device, torch.Size))
NATIVE = (
    types.BuiltinFunctionType, types.MethodDescriptorType, types.WrapperDescriptorType, types.MethodWrapperType,
    types.ClassMethodDescriptorType, types.GetSetDescriptorType, types.MemberDescriptorType,
)  # fmt: skip
# What lies on a class and is no part of what it does, or is made as it is used.
ASIDE = frozenset(("__dict__", "__weakref__", "__slotnames__", "_abc_impl", "__annotations__"))
# Objects whose state facts describe, though it lies in no dict, or of which a recording reads no more than the class.
WATCHED = frozenset((types.MethodType, weakref.ReferenceType, dataclasses.Field, io.TextIOWrapper))
SIZE = 16  # bytes of a digest
_first = operator.itemgetter(0)
_place = functools.lru_cache(own_place)
_codes: dict[int, tuple[types.CodeType, Value]] = {}
CODES = 20_000  # how many of them are known

Made = tuple[types.CodeType, tuple[Value, ...] | None, Mapping[str, Value] | None]  # what a function is made of


class Descriptions:
    """Describes objects; those of ``numbers``, by their ids, stand in others' descriptions as their number."""

    def __init__(self, numbers: Mapping[int, int]) -> None:
        self.numbers = numbers
        self._classes: dict[type, bytes] = {}

    def digest(self, values: Sequence[tuple[Value, bool]]) -> bytes:
        """A digest of the descriptions of known objects. One without a description that is not named, as each says, has
        to be of a type whose state facts describe.
        """
        return _digest([self._whole(*each) for each in values])

    def _whole(self, value: Value, named: bool) -> Value:
        kind = type(value)
        if is_a(value, type):
            return tuple([self._class(base) for base in value.__mro__])
        described = value if kind in ATOMS else self._described(value)
        if described is None and not named and kind not in WATCHED and has_hidden_state(kind):
            raise Unstorable(f"the state of a {kind.__name__}")
        return described

    def function(self, made: Made) -> bytes:
        """A digest of what a function is made of."""
        return _digest(self._made(*made))

    def _function(self, value: types.FunctionType) -> Value:
        """A function within a class, or by itself; most have no defaults."""
        code, defaults, keywords, closed = value.__code__, value.__defaults__, value.__kwdefaults__, value.__closure__
        known = _codes.get(id(code))
        described = code_digest(code) if known is None else known[1]
        made = (described, (), ()) if defaults is None and not keywords else self._made(code, defaults, keywords)
        return ("function", made, 0 if closed is None else len(closed))

    def _made(
        self, code: types.CodeType, defaults: tuple[Value, ...] | None, keywords: Mapping[str, Value] | None
    ) -> Value:
        named = sorted((keywords or {}).items())
        return (
            code_digest(code),
            tuple([self._part(each) for each in defaults or ()]),
            tuple([(name, self._part(each)) for name, each in named]),
        )

    def _part(self, value: Value) -> Value:
        """An object within another one."""
        if type(value) in ATOMS:
            return value
        number = self.numbers.get(id(value))
        if number is not None:
            return ("known", number)
        if is_a(value, type):
            return ("class", value.__module__, value.__qualname__)
        described = self._described(value)
        return ("object", type(value).__module__, type(value).__qualname__) if described is None else described

    def _described(self, value: Value) -> Value:
        """What never changes of an object; None where nothing of the kind is known of its type."""
        kind = type(value)
        if kind is types.FunctionType:
            return self._function(value)
        if kind is types.CodeType:
            return ("code", code_digest(value))
        if kind is tuple:
            return ("tuple", *map(self._part, value))
        if kind is frozenset:
            return ("frozenset", *sorted(map(self._part, value), key=repr))
        if kind in (staticmethod, classmethod):
            return (kind.__name__, self._part(value.__func__))
        if kind is property:
            return ("property", self._part(value.fget), self._part(value.fset), self._part(value.fdel))
        if kind is functools.cached_property:
            return ("cached", self._part(value.func))
        if kind is functools._lru_cache_wrapper:
            return ("cache", self._part(vars(value).get("__wrapped__")))
        if kind in (types.GenericAlias, types.UnionType):
            return ("alias", self._part(getattr(value, "__origin__", None)), *map(self._part, value.__args__))
        if kind is re.Pattern:
            return ("pattern", value.pattern, value.flags)
        if kind in (slice, range):
            return (kind.__name__, *map(self._part, (value.start, value.stop, value.step)))
        if is_a(value, NATIVE):
            return _native_name(value)
        if is_a(value, types.ModuleType):
            return ("module", value.__name__)
        if kind is contextvars.ContextVar:
            return ("variable", value.name, *_default(value, self._part))
        if is_a(value, enum.Enum):
            return ("member", kind.__module__, kind.__qualname__, value.name, self._part(value.value))
        return ("text", kind.__name__, str(value)) if kind in TORCHS else None

    def _class(self, base: type) -> bytes:
        known = self._classes.get(base)
        if known is None:
            meta = type(base)
            place: Value = (base.__module__, base.__qualname__, meta.__module__, meta.__qualname__)
            if not immutable(base):
                members = []
                for name, held in vars(base).items():
                    kind = type(held)
                    if kind is types.FunctionType and id(held) not in self.numbers:
                        members.append((name, self._function(held)))
                    elif name not in ASIDE:
                        members.append((name, held if kind in ATOMS else self._part(held)))
                members.sort(key=_first)
                place = (*place, *members, *self._annotations(vars(base).get("__annotations__")))
            known = self._classes[base] = _digest(place)
        return known

    def _annotations(self, held: Value) -> list[Value]:
        """What a class says of its attributes, for a program that asks: nothing where that is made as it is used."""
        named = held.items() if type(held) is dict else ()
        return [(name, repr(each) if type(each).__module__ == "typing" else self._part(each)) for name, each in named]


def code_digest(code: types.CodeType) -> Value:
    """What tells a code object with all that lies in it from others: a digest; of torch's and framefuse's own, which
    the versions that every key names tell as well, the place and a sum of the instructions.
    """
    known = _codes.get(id(code))
    if known is None:
        place = _place(code.co_filename)
        found: Value
        if place is not None:
            found = (place, code.co_qualname, code.co_firstlineno, zlib.crc32(code.co_code))
        else:
            found = hashlib.blake2b(marshal.dumps(code, VERSION), digest_size=SIZE).digest()
        if len(_codes) > CODES:
            _codes.clear()  # it holds code objects
        known = _codes[id(code)] = (code, found)
    return known[1]


def _default(variable: contextvars.ContextVar[Value], part: Callable[[Value], Value]) -> tuple[Value, ...]:
    """What a context variable gives where nobody has set it, if it gives anything; what it is set to facts tell."""
    try:
        return (part(contextvars.Context().run(variable.get)),)
    except LookupError:
        return ()


def _native_name(value: Value) -> Value:
    """What a function of C says of itself and of its owner."""
    owner = getattr(value, "__objclass__", getattr(value, "__self__", None))
    name = owner.__name__ if is_a(owner, (type, types.ModuleType)) else type(owner).__qualname__
    return ("native", type(value).__name__, str(getattr(value, "__module__", None)), value.__qualname__, name)


def _digest(described: Value) -> bytes:
    return hashlib.blake2b(marshal.dumps(described, VERSION), digest_size=SIZE).digest()
