"""Writes the guard program of a kept call, and makes it of the objects of another process without building it anew.

An instruction is written as it is; in the place of an object stands nothing, and beside the program how it is found. On
what a program rests without a check is written as well, and must hold of the objects that were found.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from framefuse import _native
from framefuse.driver.calls.descriptions import Made
from framefuse.driver.calls.objects import SINGLE, Reading, Writing, atomic
from framefuse.driver.programs.records import Unstorable, read, written
from framefuse.guards.check import Texts
from framefuse.guards.instructions import same_atom
from framefuse.guards.members import Dicts, Members
from framefuse.guards.program import build_portable
from framefuse.guards.registers import Granted
from framefuse.guards.source_nodes import can_change_class, held_in
from framefuse.ir.classes import immutable
from framefuse.ir.facts import Assumptions, Fact, Source
from framefuse.ir.guards import Guards
from framefuse.ir.plan import GuardProgram
from framefuse.ir.values import Value

# Where instructions name an object that counts by its identity; others are atoms, or found as objects are.
BY_IDENTITY = {"object": (2,), "is": (2,), "type_is": (2,), "watch": (1,)}
DICTS = frozenset(("content", "globals", "builtins"))
NO_PLACES: frozenset[tuple[type, str]] = frozenset()
Reference = tuple[int, int, str, int]  # an instruction, the place in it, how to find what stands there, a number
Kept = tuple[Value, ...]


def written_guards(assumptions: Assumptions, sources: Sequence[Source], writing: Writing) -> tuple[Kept, list[object]]:
    """The program that checks ``assumptions`` and leaves ``sources`` in registers, and what explains its instructions;
    raises Unstorable where it cannot be written.
    """
    guards, granted = build_portable(assumptions, sources)
    texts = guards.program.texts
    assert isinstance(texts, Texts), "as the builder makes them"
    reasons = [texts.reason(index) for index in range(len(texts))]
    return _Encoding(writing, granted).program(assumptions, guards, reasons), reasons


class _Encoding:
    """The numbers of what a program names, among the objects of ``writing``."""

    def __init__(self, writing: Writing, granted: Sequence[Granted]) -> None:
        self.writing = writing
        self.dicts: dict[int, tuple[str, Value]] = {}
        self.specs: list[Value] = []
        for kind, first, second in granted:
            if kind in DICTS:
                self.dicts.setdefault(id(second), (kind, first))
            elif kind == "held":
                writing.lies(second, first)
        self.granted = [self.grant(*each) for each in granted if each[0] in GRANTED]

    def grant(self, kind: str, first: Value, second: Value) -> tuple[Value, ...]:
        if kind == "lies":
            holder, place, key = first
            if not atomic(key):
                raise Unstorable("what lies under an object")
            return (kind, self.writing.object(holder), place, key, *self.value(second))
        if kind == "type":
            return (kind, *self.value(first), self.writing.object(second))
        return (kind, *self.value(first), second)

    def value(self, value: Value) -> tuple[bool, Value]:
        """An atom, or the number of an object."""
        return (False, value) if atomic(value) else (True, self.writing.object(value))

    def program(self, assumptions: Assumptions, guards: Guards, reasons: Sequence[object]) -> Kept:
        program = guards.program
        instructions, references = [], list[Reference]()
        for index, instruction in enumerate(program.instructions):
            name, *parts = instruction
            if name == "code":
                fact = reasons[index]
                assert isinstance(fact, Fact), "as the builder explains it"
                references.append((index, 2, "code", self.writing.source(fact.source)))
                instruction = instruction[:2]
            else:
                named = BY_IDENTITY.get(name, ())
                for place, part in enumerate(parts, 1):
                    if any(part is each for each in SINGLE) or (place not in named and atomic(part)):
                        continue
                    references.append((index, place, *self.reference(name, part)))
                    instruction = (*instruction[:place], None, *instruction[place + 1 :])
            instructions.append(instruction)
        rest = [
            program.state, assumptions.settled, self.specs, guards.number_of, tuple(guards.register_of),
            tuple(guards.register_of.values()),
        ]  # fmt: skip
        payload = written(rest, self.writing.described)
        kinds = [self.kind(value) for value in self.writing.objects]
        return (instructions, references, program.registers, program.numbers, self.granted, kinds, payload)

    def reference(self, name: str, value: Value) -> tuple[str, int]:
        if name == "tensor":
            self.specs.append(value)
            return "spec", len(self.specs) - 1
        if name == "version":
            members = value[1]
            if members.free:
                raise Unstorable("a class of which a number may change")
            return "version", self.writing.object(members.kind)
        how, holder = self.dicts.get(id(value), ("object", value))
        return how, self.writing.object(holder)

    def kind(self, value: Value) -> tuple[Value, bool | None]:
        """What two processes' objects of one number have in common: their class, and whether a class can change."""
        kind = type(value)
        number = self.writing.numbers.get(id(kind))
        return (_name(kind) if number is None else number, immutable(value) if isinstance(value, type) else None)


def _name(kind: type) -> str:
    return f"{kind.__module__}.{kind.__qualname__}"


def guards_of(
    kept: Kept, objects: Sequence[Value], reading: Reading, codes: Mapping[int, Made], texts: Texts
) -> tuple[Guards, Value]:
    """The guards that :func:`written_guards` has written; raises LookupError where the objects are not like those that
    they were made for. ``codes`` are what functions are made of, by the numbers of their sources. And for which settled
    assumptions they were made.
    """
    instructions, references, registers, numbers, granted, kinds, payload = kept
    for value, (kind, fixed) in zip(objects, kinds, strict=False):  # those behind are of explanations alone
        own = type(value)
        same = own is objects[kind] if type(kind) is int else _name(own) == kind
        if not same or (fixed is not None and (not isinstance(value, type) or immutable(value) is not fixed)):
            raise LookupError(f"another class: {kind}")
    for name, *parts in granted:
        if not GRANTED[name](objects, *parts):
            raise LookupError(f"no longer so: {name} {parts}")
    state, settled, specs, number_of, sources, places = read(payload, reading.stranger)
    dicts: Dicts = {}
    for index, place, how, number in references:
        instruction = instructions[index]
        if how == "object":
            value = objects[number]
        elif how == "code":
            instructions[index] = (*instruction, *codes[number])
            continue
        else:
            value = specs[number] if how == "spec" else _found(how, objects[number], dicts)
        instructions[index] = (*instruction[:place], value, *instruction[place + 1 :])
    program = GuardProgram(state, tuple(instructions), registers, numbers, texts)
    return Guards(program, number_of, dict(zip(sources, places, strict=True))), settled


def _found(how: str, holder: Value, dicts: Dicts) -> Value:
    if how == "version":
        return _native.type_tag(holder), Members(holder, NO_PLACES, dicts)
    found = _native.instance_dict(holder) if how == "content" else getattr(holder, f"__{how}__")
    if not isinstance(found, dict):
        raise LookupError(f"no {how} of a {type(holder).__name__}")
    return found


def _value(objects: Sequence[Value], known: bool, value: Value) -> Value:
    return objects[value] if known else value


def _lies(objects: Sequence[Value], holder: int, place: str, key: Value, known: bool, value: Value) -> bool:
    held = held_in(place, objects[holder], key)
    return held is objects[value] if known else same_atom(held, value)


def _is_of(objects: Sequence[Value], known: bool, value: Value, kind: int) -> bool:
    held = _value(objects, known, value)
    of: type = objects[kind]
    return type(held) is of and not can_change_class(held)


def _is_atom(objects: Sequence[Value], known: bool, value: Value, atom: Value) -> bool:
    return same_atom(_value(objects, known, value), atom)


def _has_length(objects: Sequence[Value], known: bool, value: Value, length: int) -> bool:
    found: int = len(_value(objects, known, value))
    return found == length


def _is_known(objects: Sequence[Value], known: bool, value: Value, nothing: None) -> bool:
    return True  # no two objects of a call are one


GRANTED: dict[str, Callable[..., bool]] = {
    "lies": _lies, "type": _is_of, "atom": _is_atom, "length": _has_length, "known": _is_known,
}  # fmt: skip
