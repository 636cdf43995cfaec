"""Turns methods that change a container which existed before the call into facts and journal entries, and runs them."""

from __future__ import annotations

from collections import OrderedDict, defaultdict, deque
from collections.abc import Callable
from types import FunctionType

import torch

from framefuse.capture.callables.unseen import key_in
from framefuse.capture.facts.atoms import ATOMS, is_key
from framefuse.capture.facts.nested_numbers import pin_nested, strip
from framefuse.capture.facts.numbers import bare, plain_number
from framefuse.capture.interp.machine import Machine
from framefuse.capture.program.equivalents import CALLED
from framefuse.capture.program.lookups import runs_program
from framefuse.capture.program.markers import MISSING
from framefuse.capture.recording.recipe import by_identity
from framefuse.ir.containers import base_of, elements, entries, size
from framefuse.ir.own_class import is_a
from framefuse.ir.values import Arguments, Function, Keywords, Value

# (container, arguments) -> value of the method; the real container is changed as well.
Method = Function
CHANGES: dict[tuple[type, str], Method] = {}


def changes(kinds: tuple[type, ...], *names: str) -> Callable[[Method], Method]:
    def register(method: Method) -> Method:
        for kind in kinds:
            for name in names:
                CHANGES[kind, name] = method
        return method

    return register


def mutate(machine: Machine, holder: Value, name: str, args: Arguments, kwargs: Keywords) -> Value:
    """The value of ``holder.name(*args)``, which changes ``holder``; MISSING, with nothing done, where it cannot be
    followed.
    """
    kind = next((base for base in (list, deque, dict, set) if is_a(holder, base)), None)
    if kind is None or (kwargs and name not in ("update", "sort", "move_to_end")):
        return MISSING
    method = CHANGES.get((kind, name))
    if method is None or getattr(type(holder), name, None) is None:
        return MISSING
    return method(machine, holder, name, *args, **kwargs)


def _native(holder: Value, name: str) -> Function:
    """The builtin method behind ``holder.name``, also where a subclass has one of its own."""
    kind = next(k for k in (OrderedDict, defaultdict, list, deque, dict, set) if is_a(holder, k))
    method: Function = getattr(kind, name).__get__(holder)
    return method


# How many of a method's first arguments are looked at; the others are only put into the container.
PLACES = {"insert": 1, "appendleft": 0}

# Lists and deques -----------------------------------------------------------------------------------------------------


@changes((list, deque), "append")
def _append(machine: Machine, holder: Value, name: str, value: Value) -> Value:
    recorder = machine.recorder
    change = recorder.contents.change(holder)
    if change.owned:
        recorder.journal.content(holder)
    else:
        recorder.journal.operation(holder, "append", (value,))
    change.added += 1
    if is_a(holder, deque) and holder.maxlen is not None:
        change.blind = change.blind or not change.owned
    _native(holder, "append")(value)


@changes((list, deque), "extend", "__iadd__")
def _extend(machine: Machine, holder: Value, name: str, values: Value) -> Value:
    recorder = machine.recorder
    if values is holder:
        recorder.contents.own(holder)
    if is_a(values, (list, tuple)):
        parts = machine.natives.elements(values)
    else:
        parts = list(machine.operations.iterable(values, measured=is_a(holder, list)))
    for value in parts:
        _append(machine, holder, "append", value)
    return holder if name == "__iadd__" else None


@changes((list, deque), "pop")
def _pop(machine: Machine, holder: Value, name: str, *args: Value) -> Value:
    recorder = machine.recorder
    change = recorder.contents.changed.get(id(holder))
    if not args and change is not None and change.added and not change.owned and not change.blind:
        recorder.journal.operation(holder, "pop", ())
        change.added -= 1
        return _native(holder, "pop")()
    return _owned(machine, holder, name, *args)


@changes((list,), "insert", "remove", "reverse", "sort", "__imul__", "__delitem__")
@changes((deque,), "appendleft", "extendleft", "popleft", "insert", "remove", "reverse", "rotate", "__delitem__")
def _owned(machine: Machine, holder: Value, name: str, *args: Value, **kwargs: Value) -> Value:
    """Any change, after all of the old content was stated."""
    recorder = machine.recorder
    if kwargs.get("key") is not None:
        return MISSING
    if name == "__delitem__" and args == (slice(None),):
        return _replaced(machine, holder, lambda: list.__delitem__(holder, slice(None)))
    places = PLACES.get(name, len(args))
    args = tuple([plain_number(value) if place < places else value for place, value in enumerate(args)])
    recorder.contents.own(holder)
    recorder.journal.content(holder)
    if name == "sort":
        for value in elements(holder):
            plain_number(value)
        if any(type(bare(value)) not in ATOMS for value in elements(holder)):
            recorder.kill("write", f"a {type(holder).__name__} (sort)")
    elif name == "remove":
        recorder.contents.guard_deep_contents(args[0])
    return _native(holder, name)(*args, **kwargs)


@changes((list, deque), "__setitem__")
def _set_element(machine: Machine, holder: Value, name: str, key: Value, value: Value) -> Value:
    recorder = machine.recorder
    sources, contents = recorder.sources, recorder.contents
    if is_a(key, slice):
        if is_a(holder, deque) or not _may_iterate(bare(value)):
            return MISSING
        if is_a(value, (list, tuple)):
            value = machine.natives.elements(value)
        else:
            value = list(machine.operations.iterable(value))
        pin_nested(key)
        key = strip(key)
        if key == slice(None):
            return _replaced(machine, holder, lambda: list.__setitem__(holder, key, value))
        contents.own(holder)
        recorder.journal.content(holder)
        return list.__setitem__(holder, key, value)
    if type(key) is not int or not -size(holder) <= key < size(holder):
        return MISSING
    change = contents.change(holder)
    if change.owned:
        recorder.journal.content(holder)
    else:
        contents.guard_length(holder)
        key = key % size(holder)
        if key < change.length:
            sources.note_written(holder, "item", key, value)
        recorder.journal.operation(holder, "__setitem__", (key, value))
    return _native(holder, "__setitem__")(key, value)


def _may_iterate(value: Value) -> bool:
    """Whether ``iter`` takes the value; where it does not, a list has words of its own for that."""
    if is_a(value, torch.Tensor):
        return value.dim() > 0
    return any(hasattr(type(value), name) for name in ("__iter__", "__getitem__"))


@changes((list, deque, dict, set), "clear")
def _clear(machine: Machine, holder: Value, name: str) -> Value:
    return _replaced(machine, holder, _native(holder, "clear"))


def _replaced(machine: Machine, holder: Value, run: Callable[[], Value]) -> Value:
    """A change after which nothing of the old content is left."""
    recorder = machine.recorder
    change = recorder.contents.change(holder)
    change.owned, change.blind = True, False
    if is_a(holder, dict):
        for key in elements(holder):
            recorder.sources.note_written(holder, "item", key, MISSING)
    if is_a(holder, set):
        recorder.journal.operation(holder, "clear", ())
    else:
        recorder.journal.content(holder)
    return run()


# Dicts ----------------------------------------------------------------------------------------------------------------


@changes((dict,), "__setitem__")
def _set_entry(machine: Machine, holder: Value, name: str, key: Value, value: Value) -> Value:
    recorder = machine.recorder
    key = key_in(machine, holder, key)
    if not is_key(key):
        return MISSING
    change = recorder.contents.change(holder)
    recorder.journal.place("item", holder, key, value, dict.get(holder, key, MISSING))
    if change.owned:
        recorder.journal.content(holder)
    _native(holder, "__setitem__")(key, bare(value))


@changes((dict,), "__delitem__")
def _delete_entry(machine: Machine, holder: Value, name: str, key: Value) -> Value:
    recorder = machine.recorder
    key = key_in(machine, holder, key)
    if not is_key(key):
        return MISSING
    recorder.contents.guard_membership(holder, key)
    if dict.__contains__(holder, key):
        change = recorder.contents.change(holder)
        recorder.journal.place("delitem", holder, key, MISSING, dict.__getitem__(holder, key))
        if change.owned:
            recorder.journal.content(holder)
    return _native(holder, "__delitem__")(key)


@changes((dict,), "pop")
def _pop_entry(machine: Machine, holder: Value, name: str, key: Value, *default: Value) -> Value:
    contents = machine.recorder.contents
    key = key_in(machine, holder, key)
    if not is_key(key) or len(default) > 1:
        return MISSING
    contents.guard_membership(holder, key)
    if not dict.__contains__(holder, key):
        if default:
            return default[0]
        raise KeyError(key)
    value = machine.natives.entry(holder, key)
    _delete_entry(machine, holder, name, key)
    return value


@changes((dict,), "setdefault")
def _set_default(machine: Machine, holder: Value, name: str, key: Value, value: Value = None) -> Value:
    contents = machine.recorder.contents
    key = key_in(machine, holder, key)
    if not is_key(key):
        return MISSING
    contents.guard_membership(holder, key)
    if dict.__contains__(holder, key):
        return machine.natives.entry(holder, key)
    _set_entry(machine, holder, name, key, value)
    return value


@changes((dict,), "update", "__ior__")
def _update(machine: Machine, holder: Value, name: str, *others: Value, **named: Value) -> Value:
    pairs: list[tuple[Value, Value]] = []
    for other in others[:1]:
        if is_a(other, dict):
            machine.recorder.contents.guard_shallow_contents(other)
            pairs += [(key, machine.recorder.contents.item(other, key, part)) for key, part in entries(other)]
        elif is_a(other, (list, tuple)):
            pairs += [tuple(machine.natives.elements(part)) for part in machine.natives.elements(other)]
        else:
            return MISSING
    pairs += named.items()
    if not all(is_key(key) for key, _ in pairs):
        return MISSING
    for key, value in pairs:
        _set_entry(machine, holder, "__setitem__", key, value)
    return holder if name == "__ior__" else None


@changes((dict,), "popitem")
def _pop_last(machine: Machine, holder: Value, name: str, *args: Value) -> Value:
    contents = machine.recorder.contents
    contents.own(holder)
    if not size(holder):
        return _native(holder, name)(*args)
    base = base_of(holder)
    key = next(base.__iter__(holder) if args and not args[0] else base.__reversed__(holder))
    value = machine.natives.entry(holder, key)
    machine.recorder.journal.place("delitem", holder, key, MISSING, value)
    machine.recorder.journal.content(holder)
    _native(holder, "__delitem__")(key)
    return (key, value)


@changes((dict,), "move_to_end")
def _move(machine: Machine, holder: Value, name: str, key: Value, last: Value = True) -> Value:
    recorder = machine.recorder
    key, last = plain_number(key), plain_number(last)
    if not is_key(key) or not is_a(holder, OrderedDict):
        return MISSING
    recorder.contents.guard_membership(holder, key)
    if dict.__contains__(holder, key):
        change = recorder.contents.change(holder)
        if change.owned:
            recorder.journal.content(holder)
        else:
            recorder.journal.operation(holder, "move_to_end", (key, last))
    return OrderedDict.move_to_end(holder, key, last)


# Sets: every change is replayed as it was, since the order of a set comes from its history.


@changes((set,), "add", "discard", "remove")
def _member(machine: Machine, holder: Value, name: str, value: Value) -> Value:
    recorder = machine.recorder
    value = key_in(machine, holder, value)
    change = recorder.contents.change(holder)
    if by_identity(type(value)) and name == "add" and not change.owned:
        change.blind = True
        recorder.journal.operation(holder, name, (value,))
    elif not is_key(value):
        return MISSING
    else:
        if name == "remove":
            recorder.contents.guard_membership(holder, value)
            if not set.__contains__(holder, value):
                raise KeyError(value)
        recorder.sources.note_written(holder, "item", value, name == "add")
        recorder.journal.operation(holder, name, (value,))
    return _native(holder, name)(value)


@changes((set,), "update", "__ior__")
def _add_all(machine: Machine, holder: Value, name: str, *others: Value) -> Value:
    given = [list(machine.operations.iterable(other)) for other in others]
    if not all(is_key(plain_number(value)) for values in given for value in values):
        return MISSING
    for values in given:
        for value in values:
            _member(machine, holder, "add", value)
    return holder if name == "__ior__" else None


@changes(
    (set,), "pop", "difference_update", "intersection_update", "symmetric_difference_update", "__isub__", "__iand__",
    "__ixor__",
)  # fmt: skip
def _set_algebra(machine: Machine, holder: Value, name: str, *others: Value) -> Value:
    recorder = machine.recorder
    if not all(is_a(other, (set, frozenset, list, tuple)) for other in others):
        return MISSING
    for other in others:
        recorder.contents.guard_shallow_contents(other)
    recorder.contents.own(holder)
    recorder.journal.operation(holder, name, tuple([other.copy() if type(other) is set else other for other in others]))
    return _native(holder, name)(*others)


def insert_default(machine: Machine, holder: Value, key: Value) -> Value:
    """What a defaultdict puts in for a key that it lacks."""
    sources, contents = machine.recorder.sources, machine.recorder.contents
    if not sources.knows(holder):
        if holder.default_factory is not None and runs_program(holder.default_factory):
            holder[key] = machine.call_nested(CALLED, (holder.default_factory,))
        return holder[key]
    key = plain_number(key)
    if is_a(key, torch.Tensor):
        machine.exits.later(f"a {type(holder).__name__}")
    if not contents.guard_membership(holder, key):
        machine.recorder.kill("write", f"a {type(holder).__name__}")
    factory = sources.read(holder, "getattr", "default_factory", holder.default_factory)
    if factory is None:
        raise KeyError(key)
    if factory not in (list, dict, set, int, float, tuple, str) and not is_a(factory, FunctionType):
        machine.recorder.kill("write", f"a {type(holder).__name__}")
    value = machine.call_nested(factory) if is_a(factory, FunctionType) else factory()
    if not machine.recorder.alive or mutate(machine, holder, "__setitem__", (key, value), {}) is MISSING:
        key, value = machine.recorder.refuse_write(f"a {type(holder).__name__}", key, value)
        holder[key] = value
    return value


# The names of methods that change their owner. What cannot be followed ends the recording where somebody else knows it.
MUTATORS = frozenset(name for _, name in CHANGES) | {"__init__", "__missing__"}
