"""Turns reads of objects that existed before the call into sources and facts, each stated once."""

from __future__ import annotations

import enum
import types
from collections.abc import Mapping
from contextvars import Token
from typing import Protocol

import torch

from framefuse.capture.facts.atoms import CARRIED, CONTAINERS, SINGLETONS, TEXTS
from framefuse.capture.facts.class_numbers import assigned_numbers
from framefuse.capture.facts.code_like import CODE_LIKE
from framefuse.capture.facts.kinds import is_plain
from framefuse.capture.facts.numbers import TRACKED, bare, floating, form_of, integer, is_nan, plain_number
from framefuse.capture.facts.owner import AskedOfText
from framefuse.capture.facts.place_names import Place, place_of
from framefuse.capture.facts.relations import Relations
from framefuse.capture.facts.settings import Setting
from framefuse.capture.facts.texts import Text, text
from framefuse.capture.program.bound import BOUND_KINDS
from framefuse.ir.classes import immutable, is_by_content
from framefuse.ir.facts import Fact, Source, all_numbers, extent, looked_at
from framefuse.ir.numbers import Real, Symbol
from framefuse.ir.numpy_numbers import TRUTHS
from framefuse.ir.own_class import is_a
from framefuse.ir.source import Line
from framefuse.ir.trace import Build
from framefuse.ir.values import Value

FREE = ("integer", "real")  # facts of numbers that a call takes as they are
class Host(Protocol):
    """What the table of sources needs of the recorder."""

    alive: bool
    symbolic: bool
    moves_floats: bool
    moving: frozenset[Source]

    def kill(self, code: str, detail: str) -> None: ...
    def leave(self, code: str, detail: str) -> bool: ...
    def fault(self, error: Exception) -> None: ...
    def line(self) -> Line | None: ...
    def compared(self, *tensors: torch.Tensor) -> None: ...
    def guard_function(self, function: types.FunctionType) -> None: ...


# Stand in for what a fault left unmade; nothing reads them, as the recording is dead.
LOST = Source("object", None, None)


class Sources:
    """Where each object came from, and what was true of it.

    ``known`` maps the id of an object that existed before the call to the object and its source; the table keeps the
    objects alive, so that an id is never another object's, and is dropped with the recording. An object that is not in
    it was made during the call.
    """

    def __init__(self, host: Host, relations: Relations) -> None:
        self.host = host
        self.relations = relations
        self.known: dict[int, tuple[Value, Source]] = {}
        self.facts: dict[tuple[object, ...], Fact] = {}
        self.seen: dict[Place, Value] = {}
        self.written: dict[Place, Value] = {}
        self.made: dict[int, Value] = {}
        self.resumed = False
        self.volatile: set[int] = set()
        self.moving_tuples: set[int] = set()  # tuples that stand for others with other numbers
        self.moved: set[int] = set()  # containers and records that stand for others, as those of arguments do
        self.moved_places: set[Source] = set()
        # Ids and keys for which a fact was stated: the same question comes many times.
        self.stated_types: set[int] = set()
        self.stated_versions: set[int] = set()
        self.stated_lengths: set[int] = set()
        self.stated_absences: set[tuple[int, str]] = set()
        self.told_apart: dict[int, tuple[Value, Source]] = {}
        self.nans: dict[int, tuple[float, Source, float]] = {}  # tracked, by the id of the object that was met
        self.tokens: dict[int, Setting] = {}  # of context variables that the call set
        self.tied = False

    # Sources --------------------------------------------------------------------------------------------------------

    def source_of(self, value: Value) -> Source | None:
        """The source of an object, None if it was made during the call or is an atom."""
        try:
            entry = self.known.get(id(value))
            return entry[1] if entry is not None else None
        except Exception as fault:
            self.host.fault(fault)
            return None

    def knows(self, value: Value) -> bool:
        """Whether an object existed before the call and has a source."""
        return id(value) in self.known

    def known_source(self, value: Value) -> Source:
        """The source of an object that has one."""
        return self.known[id(value)][1]

    def entries(self) -> list[tuple[Value, Source]]:
        """All objects that have a source, with it."""
        return list(self.known.values())

    def place_cell(self, cell: types.CellType, source: Source) -> None:
        """Gives a cell the source of its content: a cell is no value of the program."""
        self.known[id(cell)] = (cell, source)

    def holds(self, value: Value) -> bool:
        """Whether facts hold an object that existed before the call to its identity, wherever it is met."""
        entry = self.known.get(id(value))
        return entry is not None and self._is_held(*entry)

    def changes(self, value: Value) -> bool:
        """Whether another object may stand for a known one at the next call: it is on the path of an argument, or in a
        place where a call found another one before.
        """
        entry = self.known.get(id(value))
        return entry is not None and (entry[1].is_argument or id(value) in self.moved)

    def _is_held(self, value: Value, source: Source) -> bool:
        return is_held(value, source) and id(value) not in self.moved

    def note_setting(self, setting: Setting) -> None:
        """Notes that the call set a context variable."""
        self.tokens[id(setting.token)] = setting

    def setting(self, token: Token[Value]) -> Setting | None:
        """What is known of a token that the call was given as it set a context variable."""
        return self.tokens.get(id(token))

    def note_written(self, holder: Value, part: str, key: Value, value: Value) -> None:
        """Notes what a place holds that the call wrote; MISSING where it deleted it."""
        self.written[id(holder), part, (type(key), key)] = value

    def begin_at_break(self) -> None:
        """The recording begins at a break: its arguments are what lived there."""
        self.resumed = True

    def mark_volatile(self, argument: int) -> None:
        """Numbers and strings in this argument are others at each call: all of them become run-time values."""
        self.volatile.add(argument)

    def tie(self) -> None:
        """The program looks at what only this process has: an address, a hash of texts, the order of a set."""
        self.tied = True

    def is_made(self, value: Value) -> bool:
        """Whether a function, class or the like was made during the call."""
        return id(value) in self.made

    def note_made(self, value: Value) -> None:
        """Notes a function, class or the like that was made during the call."""
        self.made[id(value)] = value

    def root(self, value: Value) -> Source:
        """The source of a long-lived object that needs no path: a type, a module, a function."""
        try:
            entry = self.known.get(id(value))
            if entry is not None:
                return entry[1]
            source = Source("object", None, value)
            self.known[id(value)] = (value, source)
            return source
        except Exception as fault:
            self.host.fault(fault)
            return LOST

    def of_member(self, value: Value, name: str) -> Source | None:
        """The source of a member of an enumeration, which native code gave, for an attribute that the program set."""
        own = is_a(value, enum.Enum) and name not in ("_name_", "_value_") and not self.is_made(type(value))
        return self.root(value) if own else None

    def pins(self, source: Source, container: Value) -> bool:
        """Whether a trace may hold the length or the keys of a container. Where it had another one in many calls none
        may: the instruction that asks is a step.
        """
        grows = bool(self.host.moving) and extent(source) in self.host.moving
        return not (grows and self.host.leave("length", f"a {type(container).__name__}"))

    def fact(self, source: Source, kind: str, value: object = None, mark: object = None) -> None:
        """States a fact once; ``mark`` is the hashable identity of the value where it has none itself."""
        try:
            key = (id(source), kind, value if mark is None else mark)
            if key not in self.facts:  # which keep the sources alive
                self.facts[key] = Fact(source, kind, value, self.host.line())
        except Exception as fault:
            self.host.fault(fault)

    def guard_value(self, source: Source, value: Value, free: int = False) -> Value:
        """States what ``value``, found at ``source``, must be at later calls; gives the value to go on with.

        ``free`` numbers become symbols that take their value at each call.
        """
        try:
            kind = type(value)
            if kind in TRACKED and value.owner is not self.relations:  # of an earlier recording, where none settled it
                value = bare(value)
                kind = type(value)
            if free == CARRIED:
                free = kind in (int, float, str) and bool(self.host.moving) and self.is_moving(source)
            if kind in SINGLETONS or kind is TRUTHS:
                self.fact(source, "is", value, id(value))
            elif kind is int:
                if free and self.host.symbolic and -(2**63) <= value < 2**63:
                    symbol = self.relations.new_symbol("n" if value >= 0 else "m", value)
                    self.fact(source, "integer", symbol)
                    self._volatile(source, symbol)
                    return _found(integer(value, symbol.expr, self.relations), value, source)
                self.fact(source, "int", value)
            elif kind is float:
                if free and (self.host.symbolic or (self.host.moves_floats and self.is_moving(source))):
                    return self._free_float(source, value)
                self.float_fact(source, value)
            elif kind is str and free is True and self._is_free(source):
                self.relations.note_tracked()
                self._volatile(source, str(source))
                self.fact(source, "type", str)
                return _found(text(value, Build("source", source), (), self.relations), value, source)
            elif kind in TEXTS:
                self.fact(source, "str", value, (kind, repr(value) if kind is complex else value))
            elif kind is torch.device:
                self.fact(source, "type", kind)
                self.guard_value(Source("getattr", source, "type"), value.type)
                self.guard_value(Source("getattr", source, "index"), value.index)
            elif kind is tuple and free is True and id(value) not in self.known and not source.is_argument:
                self.known[id(value)] = (value, source)  # by its content: another one may stand there
                self.fact(source, "type", tuple)
                self.moving_tuples.add(id(value))
            elif kind is slice and free and id(value) not in self.known:
                return self._bounds(source, value)
            else:
                self.assign_source(source, value)
            return value
        except Exception as fault:
            self.host.fault(fault)
            return value

    def is_moving(self, source: Source) -> bool:
        """Whether the number at ``source`` was seen to move, or others of the list that it is an element of."""
        moving, base = self.host.moving, source.base
        return source in moving or (source.kind == "item" and base is not None and all_numbers(base) in moving)

    def _free_float(self, source: Source, value: float) -> float:
        """A float that may be another one at the next call; a NaN that was met at another place is one with that."""
        met = self.nans.get(id(value))
        if met is not None and met[1] is not source:
            self.fact(source, "same", met[1])
            return met[2]
        name = self.relations.new_real(value)
        self.fact(source, "real", name)
        self._volatile(source, name)
        number: float = _found(floating(value, Real("symbol", (name,)), self.relations), value, source)
        if is_nan(value):
            self.nans[id(value)] = (value, source, number)
        return number

    def float_fact(self, source: Source, value: float) -> None:
        """States the value of a float. A NaN, which equals nothing, is found in containers as the object that it is."""
        self.fact(source, "float", value, repr(value))
        if is_nan(value):
            entry = self.known.setdefault(id(value), (value, source))
            if entry[1] is not source:
                self.fact(source, "same", entry[1])
            self.told_apart[id(value)] = entry

    def _is_free(self, source: Source) -> bool:
        """Whether a string may be another one at the next call."""
        return source.root.key in self.volatile or source in self.host.moving

    def answer(self, source: Source, question: AskedOfText) -> bool:
        """What a function gives for a string of the caller; False for one that comes out of a break, whose points know
        values alone.
        """
        if source.root.key in self.volatile:
            return False
        function, before, behind, answer = question
        self.fact(source, "answer", question, (function.__name__, before, behind, type(answer), answer))
        return True

    def _volatile(self, source: Source, name: Symbol | str) -> None:
        """Notes a run-time value that comes out of a break."""
        if source.is_argument and source.root.key in self.volatile:
            self.relations.note_volatile(name)

    def moves(self, value: Value) -> bool:
        """Whether a run-time value from a long-lived object, or text made of such, was seen to change."""
        if type(value) is Text:
            return any(map(self.moves, value.made_of))
        form, moving = form_of(value), self.host.moving
        names = form.names if is_a(form, Real) else form.symbols
        return any(fact.value in names and fact.source in moving for fact in self.facts.values() if fact.kind in FREE)

    def looked_at(self, value: Value) -> bool:
        """Whether a run-time value is made of a number whose ever other value decided something."""
        moving = self.host.moving
        if not any(source.kind == "looked" for source in moving):
            return False
        names = form_of(value).symbols
        return any(
            fact.kind == "integer" and fact.value in names and looked_at(fact.source) in moving
            for fact in self.facts.values()
        )

    def _bounds(self, source: Source, value: slice) -> slice:
        """A slice whose bounds are symbols where they were seen to move."""
        self.known[id(value)] = (value, source)
        self.fact(source, "type", slice)
        bounds = [value.start, value.stop, value.step]
        for number, name in enumerate(("start", "stop", "step")):
            bounds[number] = self.guard_value(Source("getattr", source, name), bounds[number], CARRIED)
        if not any(type(bound) in TRACKED for bound in bounds):
            return value
        bounded = slice(*bounds)
        self.known[id(bounded)] = (bounded, source)
        return bounded

    def assign_source(self, source: Source, value: Value) -> None:
        """Gives an object its source and states its identity or type."""
        try:
            entry = self.known.get(id(value))
            argument = source.is_argument
            if entry is None and not argument and self.host.moving and self._is_moved(source, value):
                self.known[id(value)] = (value, source)
                self.stated_types.add(id(value))
                self.fact(source, "type", type(value))
                self.moved.add(id(value))
                self.moved_places.add(source)
                return
            if entry is None and not argument and is_plain(type(value)):
                self.known[id(value)] = (value, source)
                self.fact(source, "is", value, id(value))
                return
            if entry is not None and entry[1] is not source:
                if argument or self.changes(value):
                    self.fact(source, "same", entry[1])
                elif issubclass(type(value), torch.Tensor):
                    self.fact(source, "same", entry[1])
                else:
                    self.fact(source, "is", value, id(value))
                return
            kind = type(value)  # an object asked for its ``__class__`` may run the program's code
            if issubclass(kind, torch.Tensor):
                self.known[id(value)] = (value, source)
            elif kind is types.MethodType:
                self.known[id(value)] = (value, source)
                self.fact(source, "type", types.MethodType)
                self.guard_value(Source("func", source), value.__func__)
                self.guard_value(Source("self", source), value.__self__)
            elif kind is types.FunctionType and argument:
                self.known[id(value)] = (value, source)
                self.fact(source, "type", types.FunctionType)
                self.host.guard_function(value)
            elif not argument or issubclass(kind, (*CODE_LIKE, types.MethodWrapperType)):
                bound = issubclass(kind, BOUND_KINDS) and not is_a(
                    value.__self__, (types.ModuleType, type, type(None))
                )
                if bound:
                    # A bound method of C is a fresh object at each read: its owner and name are what counts.
                    wrapper = is_a(value, types.MethodWrapperType)
                    self.fact(source, "type", kind)
                    owner = Source("getattr", source, "__self__") if wrapper else Source("self", source)
                    self.guard_value(owner, value.__self__)
                    self.fact(Source("getattr", source, "__name__"), "str", value.__name__)
                    if wrapper:
                        self.guard_value(Source("getattr", source, "__objclass__"), value.__objclass__)
                    if argument:
                        self.known[id(value)] = (value, source)
                    return
                self.known[id(value)] = (value, source)
                self.fact(source, "is", value, id(value))
            else:
                self.known[id(value)] = (value, source)
                self.fact(source, "type", type(value))
                if type(value) in (slice, range):
                    for name in ("start", "stop", "step"):
                        self.guard_value(Source("getattr", source, name), getattr(value, name))
        except Exception as fault:
            self.host.fault(fault)

    def _is_moved(self, source: Source, value: Value) -> bool:
        """Whether any container or record of this type will do where this one stands."""
        if not is_by_content(type(value)):
            return False
        holder = source.base if source.base is None or source.base.kind != "dict" else source.base.base
        return source in self.host.moving or source.base in self.moved_places or holder in self.moved_places

    def forget_readings(self) -> None:
        """Code ran out of sight: whatever is read from now on is a new reading with facts of its own."""
        self.seen.clear()
        self.stated_lengths.clear()
        self.stated_absences.clear()

    # Reads ----------------------------------------------------------------------------------------------------------

    def read(self, holder: Value, part: str, key: Value, value: Value, free: int = False) -> Value:
        """A value read from ``holder``: ``part`` is the kind of the source, ``key`` its key."""
        try:
            entry = self.known.get(id(holder))
            if entry is None or not self.host.alive:
                return value
            return self.read_at(entry[1], place_of(holder, part, key), part, key, value, free)
        except Exception as fault:
            self.host.fault(fault)
            return value

    def read_at(self, base: Source, place: Place, part: str, key: Value, value: Value, free: int = False) -> Value:
        """As :meth:`read` for a place below the source ``base``."""
        try:
            if place in self.written:
                value = self.written[place]
            elif place in self.seen:
                value = self.seen[place]
            else:
                if self.volatile and free is not True and type(value) in (int, float, str):
                    free = True if base.is_argument and base.root.key in self.volatile else free
                value = self.seen[place] = self.guard_value(Source(part, base, key), value, free)
            if not free and type(value) is slice:
                for bound in (value.start, value.stop, value.step):
                    plain_number(bound)
            return value if free else plain_number(value)
        except Exception as fault:
            self.host.fault(fault)
            return value

    def binding(self, name: str) -> list[Fact]:
        """The facts from which the float of this name takes its value."""
        return [fact for fact in self.facts.values() if fact.kind in ("real", "scalar") and fact.value == name]

    def guard_unused_tensors(self, used: Mapping[int, int]) -> None:
        """States that what the program found at its places and used in no call is there and is a tensor still."""
        for key, (value, source) in list(self.known.items()):
            if key in used or source.base is None or is_plain(type(value)):
                continue
            if is_a(value, torch.Tensor):
                self.fact(source, "type", type(value))

    def instance_dict(self, holder: Value) -> tuple[dict[str, Value], Source] | None:
        """The instance dict of a known object with its source."""
        try:
            entry = self.known.get(id(holder))
            if entry is None:
                return None
            content = object.__getattribute__(holder, "__dict__")
            known = self.known.get(id(content))
            if known is None:
                source = Source("dict", entry[1])
                self.known[id(content)] = (content, source)
                return content, source
            return content, known[1]
        except Exception as fault:
            self.host.fault(fault)
            return None

    def tell_apart(self, value: Value) -> None:
        """The program finds out which of the objects that it asks this of are one: it hashes them, or compares them."""
        try:
            entry = self.known.get(id(value))
            if entry is not None:
                self.told_apart[id(value)] = entry
                if not self._is_held(*entry):  # one of another type may be equal to what it is compared with
                    self.guard_type(value)
            elif is_a(value, torch.Tensor):
                self.host.compared(value)
        except Exception as fault:
            self.host.fault(fault)

    def guard_absent(self, holder: Value, name: str) -> None:
        """The instance dict of ``holder`` has no ``name``."""
        try:
            if (id(holder), name) in self.stated_absences:
                return
            if self.written and place_of(holder, "attr", name) in self.written:
                return
            if not self.host.alive:
                return
            self.stated_absences.add((id(holder), name))
            state = self.instance_dict(holder)
            if state is not None:
                self.fact(state[1], "absent", name)
        except Exception as fault:
            self.host.fault(fault)

    def guard_absent_names(self, holder: Value, names: tuple[str, ...]) -> None:
        """As :meth:`guard_absent` for several names."""
        try:
            state = self.instance_dict(holder)
            if state is None or not self.host.alive:
                return
            for name in names:
                if (id(holder), name) in self.stated_absences:
                    continue
                if self.written and (id(state[0]), "item", (str, name)) in self.written:
                    continue
                self.stated_absences.add((id(holder), name))
                self.fact(state[1], "absent", name)
        except Exception as fault:
            self.host.fault(fault)

    def guard_type(self, holder: Value) -> None:
        """The type of a known object is what it was."""
        try:
            if id(holder) in self.stated_types:
                return
            entry = self.known.get(id(holder))
            if entry is not None and self.host.alive and not issubclass(type(holder), (type, types.FunctionType)):
                self.stated_types.add(id(holder))
                if not (issubclass(type(holder), CONTAINERS) and immutable(type(holder)) and self._is_held(*entry)):
                    self.fact(entry[1], "type", type(holder))  # of Python's own containers another fact tells it
        except Exception as fault:
            self.host.fault(fault)

    def guard_version(self, cls: type) -> None:
        """No attribute on the MRO of ``cls`` was assigned since."""
        try:
            if id(cls) in self.stated_versions or immutable(cls) or not self.host.alive:
                return
            self.stated_versions.add(id(cls))
            if id(cls) in self.made:  # nobody else knows it; its bases are others'
                for base in cls.__mro__[1:]:
                    self.guard_version(base)
                return
            root = self.root(cls)
            self.fact(root, "version")
            for owner, name, value in assigned_numbers(cls):  # another one there is no other class
                if self.written and (id(owner), "type_attr", name) in self.written:
                    continue  # it was read from its own class before
                self.read_at(root, (id(cls), "type_attr", name), "type_attr", name, value, True)
        except Exception as fault:
            self.host.fault(fault)

    def is_fixed_number(self, number: Value) -> bool:
        """Whether a number of NumPy is the same at each call: this call made it, or facts hold the object."""
        entry = self.known.get(id(number))
        return entry is None or self._is_held(*entry)


def is_held(value: Value, source: Source) -> bool:
    """Whether facts hold a known object to its identity wherever it is met."""
    known_by_value = is_a(value, (torch.Tensor, tuple, types.MethodType, slice)) or type(value) is float
    return not source.is_argument and not known_by_value


def _found(number: Value, value: Value, source: Source) -> Value:
    """A tracked number that knows the very object that it stands for, and where that lies."""
    if type(number) in TRACKED:
        number.__dict__["origin"] = (value, source)
    return number
