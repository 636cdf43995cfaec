"""Writes down how the objects and sources of a trace are found again, and finds those of another process.

An object is found by its name, or by a place below the arguments and named objects at which a fact of the trace holds
it. Guards then check every fact on what was found, so that a wrong object is a miss; what facts do not tell of it is
compared by its description (:mod:`framefuse.driver.calls.descriptions`).
"""

from __future__ import annotations

import types
from collections.abc import Sequence
from typing import TYPE_CHECKING

import torch

from framefuse import _native
from framefuse.capture.facts.functions import stand_in, stands_for_globals
from framefuse.driver.calls.descriptions import ATOMS
from framefuse.driver.calls.naming import Name, found, name_of, parts_of, within
from framefuse.driver.programs.records import Unstorable
from framefuse.guards.changes import value_at
from framefuse.guards.source_nodes import MISSING
from framefuse.ir.classes import immutable
from framefuse.ir.facts import Fact, Source
from framefuse.ir.late_imports import later
from framefuse.ir.own_class import is_a
from framefuse.ir.repeated_calls import Repeated
from framefuse.ir.source import Site
from framefuse.ir.values import Arguments, Value

if TYPE_CHECKING:
    from framefuse.capture.program.callers import from_places, places_of
else:  # few calls say anything
    from_places = later("framefuse.capture.program.callers", "from_places")
    places_of = later("framefuse.capture.program.callers", "places_of")

SINGLE: tuple[Value, ...] = (None, True, False, Ellipsis)

SEQUENCES: tuple[Value, ...] = (tuple, torch.Size)  # of arguments that guards hold to what they are
NOWHERE = -1  # the step of a site of another recording, at which nothing is learnt
# Attributes of functions, by the types of what they hold.
OF_FUNCTIONS: dict[Value, str] = {
    (types.CodeType, "__code__"): "code", (dict, "__annotations__"): "annotations", (dict, "__dict__"): "dict",
}  # fmt: skip
# How an object is found: "entry"; "at", "module", "function", "getter", "member" or "owner" and a name; "globals" and a
# module; "place" and a source; "type", "code", "annotations", "dict", "defaults" or "kwdefaults" and the source of what
# has it; "field", the number of a dataclass and the name of its field; "on", the number of a class, the name under
# which the object or what holds it lies there, and the steps to it; "class", the number of an object of it; "slot", the
# source of an object and the name of the slot. Made anew are "repeated", a call that guards make, and "said" and
# "once", calls as frames at places of the program would make them.
How = tuple[Value, ...]
# A source: its kind, the number of its base or -1, what its key is ("atom", "object", "source"), and that.
Step = tuple[str, int, str, Value]


class Held:
    """Stands for an object that another process has to find, also where its class has a row of records."""

    __slots__ = ("value",)

    def __init__(self, value: Value) -> None:
        self.value = value


class Writing:
    """Numbers the objects and sources of a trace as they are met. ``entry`` is the function that was called."""

    def __init__(self, facts: Sequence[Fact], entry: types.FunctionType) -> None:
        self.entry = entry
        self.objects: list[Value] = []
        self.hows: list[How] = []
        self.steps: list[Step] = []
        self.numbers: dict[int, int] = {}  # of objects by id
        self._sources: dict[int, int] = {}
        self._helds: dict[int, Held] = {}
        self._places: dict[int, Source] = {}
        self._types: dict[int, Source] = {}
        self._defaults: dict[int, tuple[str, Source]] = {}
        self._fields: dict[int, tuple[type, str]] = {}  # of dataclasses, which know no class
        self._classes: dict[type, None] = {}  # that facts name, in their order
        self._on_classes: dict[int, tuple[type, str, tuple[str, ...]]] | None = None
        for fact in facts:
            if fact.kind in ("is", "type") and is_a(fact.value, type):
                self._classes.update(dict.fromkeys(fact.value.__mro__))
            if fact.kind == "is":
                self._places.setdefault(id(fact.value), fact.source)
                if is_a(fact.value, type):
                    for name, field in _fields_of(fact.value).items():
                        self._fields.setdefault(id(field), (fact.value, name))
            elif fact.kind == "type":
                self._types.setdefault(id(fact.value), fact.source)
            elif fact.kind == "code":
                self._defaults.setdefault(id(fact.value[1]), ("defaults", fact.source))
                self._defaults.setdefault(id(fact.value[2]), ("kwdefaults", fact.source))

    def described(self, value: Value) -> Sequence[Value]:
        """How a record refers to what has no row: a source, an object, or a site, which is of the recording alone."""
        kind = type(value)
        if kind is Source:
            return ("source", self.source(value))
        if kind is Site:
            return ("nothing",)
        return ("object", self.object(value.value if kind is Held else value))

    def held(self, value: Value) -> Value:
        """What stands in a fact for an object that is held by its identity."""
        if any(value is each for each in SINGLE):
            return value
        stand_in = self._helds.get(id(value))
        if stand_in is None:
            stand_in = self._helds[id(value)] = Held(value)
        return stand_in

    def lies(self, value: Value, place: Source) -> None:
        """Says where an object lies that no fact places."""
        self._places.setdefault(id(value), place)

    def object(self, value: Value) -> int:
        """The number of an object; raises Unstorable for one that another process could not find."""
        number = self.numbers.get(id(value))
        if number is None:
            how = self._how(value)  # which may number others
            number = self.numbers[id(value)] = len(self.objects)
            self.objects.append(value)
            self.hows.append(how)
            if how[0] in ("place", "at") and not is_a(value, type) and not immutable(type(value)):
                self.object(type(value))  # which is described
        return number

    def forget(self, count: int) -> None:
        """Leaves only the first objects."""
        for value in self.objects[count:]:
            del self.numbers[id(value)]
        del self.objects[count:], self.hows[count:]

    def source(self, source: Source) -> int:
        """The number of a source, whose base stands before it."""
        number = self._sources.get(id(source))
        if number is None:
            base = -1 if source.base is None else self.source(source.base)
            step = (source.kind, base, *self._key(source))
            number = self._sources[id(source)] = len(self.steps)
            self.steps.append(step)
        return number

    def _key(self, source: Source) -> tuple[str, Value]:
        key = source.key
        if source.kind == "object":
            return "object", self.object(key)
        if type(key) is Source:
            return "source", self.source(key)
        if atomic(key):
            return "atom", key
        return "object", self.object(key)

    def _how(self, value: Value) -> How:
        if value is self.entry:
            return ("entry",)
        if type(value) is types.FunctionType and stands_for_globals(value):
            return ("globals", _module_of(value.__globals__))
        if type(value) is Repeated:
            given = [(name, self._argument(each)) for name, each in value.kwargs.items()]
            return ("repeated", self.object(value.function), [self._argument(each) for each in value.args], given)
        said = places_of(value)
        if said is not None:
            return (said[0], [(shown, _module_of(variables)) for shown, variables in said[1]])
        name = name_of(value)
        if name is not None:
            return name
        holder = self._defaults.get(id(value))
        if holder is not None and value is not None:
            return (holder[0], self.source(holder[1]))
        place = self._places.get(id(value))
        if place is not None and place.kind == "self" and type(value).__name__.startswith("pybind11"):
            return self._owner(place)
        if place is not None and place.kind != "object" and not _computed(place):
            return ("place", self.source(place))
        how = None if place is None or type(place.key) is not str else OF_FUNCTIONS.get((type(value), place.key))
        if how is not None and place is not None and place.base is not None and not _computed(place.base):
            return (how, self.source(place.base))
        if is_a(value, type) and id(value) in self._types:
            return ("type", self.source(self._types[id(value)]))
        if id(value) in self._fields:
            holder_of, field = self._fields[id(value)]
            return ("field", self.object(holder_of), field)
        holder_at = place.base if place is not None and place.kind == "getattr" else None
        if place is not None and holder_at is not None and not _computed(holder_at):
            return ("slot", self.source(holder_at), place.key)
        of = next((number for number, each in enumerate(self.objects) if type(each) is value), None)
        if of is not None:
            return ("class", of)
        if self._on_classes is None:
            members = [(kind, *each) for kind in self._classes for each in vars(kind).items()]
            self._on_classes = {
                id(part): (kind, name, steps)
                for kind, name, held in reversed(members)
                for part, steps in parts_of(held)
            }
        if id(value) in self._on_classes:
            holding, *way = self._on_classes[id(value)]
            return ("on", self.object(holding), *way)
        raise Unstorable(f"no way to {value!r:.80}")

    def _argument(self, value: Value) -> tuple[str, Value]:
        """An argument of a call that guards make."""
        if atomic(value):
            return "atom", value
        if type(value) in SEQUENCES:
            return type(value).__name__, [self._argument(part) for part in value]
        return "object", self.object(value)

    def _owner(self, place: Source) -> Name:
        """What an extension's function is bound to, by the name of the function in its module."""
        function = place.base
        module = MISSING if function is None or function.base is None else value_at(function.base, (), {})
        if function is None or not is_a(module, types.ModuleType) or type(function.key) is not str:
            raise Unstorable(f"no way to the owner of {function}")
        return ("owner", module.__name__, function.key)


class Reading:
    """The objects and sources of a kept call, as this process has them. Raises LookupError for what it has not."""

    def __init__(
        self, hows: Sequence[How], steps: Sequence[Step], entry: types.FunctionType, bound: Arguments
    ) -> None:
        self.hows = hows
        self.steps = steps
        self.entry = entry
        self.bound = bound
        self._objects: list[Value] = [MISSING] * len(hows)
        self._sources: list[Source | None] = [None] * len(steps)
        self._values: dict[Source, Value] = {}

    def stranger(self, parts: Sequence[Value]) -> Value:
        """What a record refers to."""
        if parts[0] == "source":
            return self.source(parts[1])
        return self.object(parts[1]) if parts[0] == "object" else Site(self.entry.__code__, NOWHERE)

    def objects(self) -> list[Value]:
        """All objects; raises LookupError where two that were different are one here."""
        objects = [self.object(number) for number in range(len(self.hows))]
        if len({id(value) for value in objects}) != len(objects):
            raise LookupError("two objects are one")
        return objects

    def object(self, number: int) -> Value:
        """The object of a number."""
        held = self._objects[number]
        if held is MISSING:
            held = self._objects[number] = self._find(*self.hows[number])
        return held

    def source(self, number: int) -> Source:
        """The source of a number."""
        source = self._sources[number]
        if source is None:
            kind, base, sort, key = self.steps[number]
            if sort == "object":
                key = self.object(key)
            elif sort == "source":
                key = self.source(key)
            source = self._sources[number] = Source(kind, self.source(base) if base >= 0 else None, key)
        return source

    def forget_call(self) -> None:
        """Drops the arguments of the call: what is read later asks for objects that are known by then."""
        self.bound = ()
        self._values.clear()

    def value(self, source: Source) -> Value:
        """What lies at a source."""
        held = value_at(source, self.bound, self._values)
        if held is MISSING:
            raise LookupError(str(source))
        return held

    def _argument(self, sort: str, value: Value) -> Value:
        if sort == "atom":
            return value
        if sort == "object":
            return self.object(value)
        kind = next(kind for kind in SEQUENCES if kind.__name__ == sort)
        return kind([self._argument(*each) for each in value])

    def _find(self, how: str, *parts: Value) -> Value:
        if how == "entry":
            return self.entry
        if how == "globals":
            return stand_in(found(("globals", parts[0])))
        if how == "field":
            return _fields_of(self.object(parts[0]))[parts[1]]
        if how == "on":
            return within(type.__getattribute__(self.object(parts[0]), "__dict__")[parts[1]], parts[2])
        if how == "class":
            return type(self.object(parts[0]))
        if how == "slot":
            holder = self.value(self.source(parts[0]))
            slot = _native.type_lookup(type(holder), parts[1])
            if type(slot) is not types.MemberDescriptorType:  # another's may be computed
                raise LookupError("the attribute is no slot")
            return slot.__get__(holder)
        if how == "repeated":
            function, args, kwargs = parts
            given = {name: self._argument(*each) for name, each in kwargs}
            return Repeated(self.object(function), tuple([self._argument(*each) for each in args]), given)
        if how in ("said", "once"):
            return from_places(how, [(shown, found(("globals", name))) for shown, name in parts[0]])
        if how in ("place", "type", "code", "annotations", "dict", "defaults", "kwdefaults"):
            held = self.value(self.source(parts[0]))
            if how == "place":
                return held
            if how in OF_FUNCTIONS.values() and type(held) is not types.FunctionType:  # another's may be computed
                raise LookupError("the attribute of no function")
            return type(held) if how == "type" else getattr(held, f"__{how}__")
        return found((how, *parts))


def _module_of(variables: dict[str, Value]) -> str:
    """The name of the module that has these variables."""
    name = variables.get("__name__")
    if is_a(name, str) and found(("globals", name)) is variables:
        return str(name)
    raise Unstorable("the variables of what is no module")


def _fields_of(kind: type) -> dict[str, Value]:
    """The fields of a dataclass by their names; none of another class."""
    fields: dict[str, Value] = type.__getattribute__(kind, "__dict__").get("__dataclass_fields__", {})
    return fields if type(fields) is dict else {}


def _computed(place: Source | None) -> bool:
    """Whether a path asks for attributes that code may compute."""
    while place is not None:
        if place.kind == "getattr":
            return True
        place = place.base
    return False


def atomic(key: Value) -> bool:
    """Whether a value is the same in each process: an atom, or a tuple of them."""
    return all(map(atomic, key)) if type(key) is tuple else type(key) in ATOMS

