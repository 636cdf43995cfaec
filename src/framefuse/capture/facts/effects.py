"""Keeps the journal of writes to objects that existed before the call, and turns it into the effects of a trace."""

from __future__ import annotations

import types
from collections import deque
from collections.abc import Callable
from contextvars import ContextVar, Token
from dataclasses import dataclass

from framefuse.capture.facts.atoms import ATOMS
from framefuse.capture.facts.contents import Change, Contents
from framefuse.capture.facts.functions import Functions
from framefuse.capture.facts.numbers import TRACKED
from framefuse.capture.facts.place_names import Place, place_of
from framefuse.capture.facts.settings import RESTORED, Setting
from framefuse.capture.facts.settle import settle, settle_class
from framefuse.capture.facts.sources import Sources
from framefuse.capture.program.lookups import has_finalizer
from framefuse.capture.program.markers import MISSING
from framefuse.capture.program.services import Memo
from framefuse.ir.containers import base_of, elements, entries
from framefuse.ir.facts import Source
from framefuse.ir.own_class import is_a
from framefuse.ir.source import Line
from framefuse.ir.trace import Build, Effect
from framefuse.ir.values import Arguments, Function, Keywords, Value


@dataclass(slots=True)
class Write:
    """A write in the journal; ``before`` is the value that stood there first, ``value`` the one that stands there
    last, ``read`` what the program had read there before it wrote.
    """

    kind: str
    holder: Value
    key: Value
    value: Value
    line: Line | None
    before: Value = MISSING
    read: Value = MISSING


# Writes that are made again as they were, at each call.
REPLAYED = ("call", "content", "invoke", "token")
# Writes that a container's content says nothing of: calls made again, and the attributes of one of a subclass.
BESIDE = ("invoke", "attr", "delattr", "slot", "delslot")
# What a place held when something had been written there before.
UNKNOWN = object()
# Part of a source that reads what a write of this kind wrote.
PART = {
    "attr": "attr", "delattr": "attr", "slot": "getattr", "delslot": "getattr", "item": "item", "delitem": "item",
    "cell": "cell", "local": "getattr", "grad": "grad", "data": "getattr",
}  # fmt: skip
# How the plan does it: a slot is written as an attribute is.
EFFECT = {
    "slot": "attr", "local": "setattr", "class": "setattr", "grad": "setattr", "data": "setattr", "delslot": "delattr",
    "delglobal": "delitem",
}  # fmt: skip


class Journal:
    """Writes in program order. Attributes, cells, globals and dict entries keep their final value; other changes of
    containers are replayed one by one, or the container's content is written whole.
    """

    def __init__(self, sources: Sources, contents: Contents, functions: Functions) -> None:
        self.sources, self.contents, self.functions, self.host = sources, contents, functions, sources.host
        self.writes: list[Write] = []
        self.last: dict[Place, Write] = {}
        self.spoken = False

    def invoke(self, call: Function, args: Arguments) -> None:
        """``call(*args)`` is made again after the trace. What is written from now on is written after it."""
        self.writes.append(Write("invoke", call, None, args, self.host.line()))
        self.last.clear()
        self.spoken = True

    def has_said(self, target: Value, args: Arguments, kwargs: Keywords) -> bool:
        """Whether a call that is made again after the trace is this one, of a cache that forgets nothing."""
        if not self.spoken or target.cache_parameters()["maxsize"] is not None:
            return False
        said = [write.value for write in self.writes if write.kind == "invoke" and write.value[0] is target]
        return (target, args, kwargs) in said

    def context(self, variable: ContextVar[Value], place: Place, value: Value, token: Token[Value]) -> None:
        """A context variable is set. Each setting is one of its own, as its token may live across a break."""
        self.sources.note_setting(Setting(token, value, self.sources.written.get(place, MISSING)))
        self.sources.written[place] = value
        self.writes.append(Write("token", variable, None, token, self.host.line()))

    def context_reset(self, variable: ContextVar[Value], place: Place, setting: Setting) -> None:
        """A context variable is set back to what it held before ``setting``: what was set from there on is undone."""
        sources = self.sources
        undoing = [write for write in self.writes if write.kind == "token" and write.holder is variable]
        while undoing and not setting.gone:
            undone = undoing.pop()
            self.writes = [write for write in self.writes if write is not undone]
            sources.tokens[id(undone.value)].gone = True
        if setting.before is MISSING:
            sources.written.pop(place, None)
            return
        sources.written[place] = setting.before
        if setting.before is RESTORED:
            return
        if not undoing or sources.tokens[id(undoing[-1].value)].value is not setting.before:
            self.writes.append(Write("call", variable, "set", (setting.before,), self.host.line()))

    def context_restored(self, variable: ContextVar[Value], place: Place, token: Token[Value]) -> None:
        """A context variable is set back with a token that an earlier recording was given."""
        self.sources.written[place] = RESTORED
        self.writes.append(Write("call", variable, "reset", (token,), self.host.line()))

    def place(self, kind: str, holder: Value, key: Value, value: Value, before: Value) -> None:
        """A slot of a known object takes ``value``; ``before`` is what it held (MISSING: nothing)."""
        try:
            sources, contents = self.sources, self.contents
            if not self.host.alive or not sources.knows(holder):
                return
            if type(before) not in ATOMS and before is not value and has_finalizer(type(before)):
                self.host.kill("finalizer", f"{type(before).__name__}.__del__")
                return
            if kind in ("cell", "delcell"):
                self._put((id(holder), "cell", None), kind, holder, key, value, before)
                return
            if kind in ("attr", "delattr"):
                state = sources.instance_dict(holder)
                if state is not None:
                    contents.change(state[0])
            elif kind in ("item", "delitem"):
                contents.change(holder)
            self._put(place_of(holder, PART[kind], key), kind, holder, key, value, before)
        except Exception as fault:
            self.host.fault(fault)

    def class_number(self, holder: type, key: str, value: Value, before: Value) -> None:
        """A number of a class that is read anew at each call takes ``value``."""
        try:
            if self.host.alive:
                self._put((id(holder), "type_attr", key), "class", holder, key, value, before)
        except Exception as fault:
            self.host.fault(fault)

    def global_variable(self, function: types.FunctionType, key: str, value: Value, before: Value) -> None:
        """A global of ``function`` takes ``value``; MISSING deletes it."""
        try:
            if not self.host.alive:
                return
            variables = function.__globals__
            self.functions.globals_of(function)  # which keeps the namespace
            kind = "global" if value is not MISSING else "delglobal"
            self._put((id(variables), "item", (str, key)), kind, variables, key, value, before)
        except Exception as fault:
            self.host.fault(fault)

    def _put(self, place: Place, kind: str, holder: Value, key: Value, value: Value, before: Value) -> None:
        sources = self.sources
        last = self.last.get(place)
        if last is not None and last.kind == kind and not kind.startswith("del"):
            last.value = value
        else:  # an entry that was deleted and made again stands at the end of its dict
            if place in sources.written:
                before = UNKNOWN
            write = Write(kind, holder, key, value, self.host.line(), before, sources.seen.get(place, MISSING))
            self.last[place] = write
            self.writes.append(write)
        sources.written[place] = value

    def operation(self, holder: Value, method: str, args: Arguments) -> None:
        """A known container changes by a method of its own."""
        try:
            if self.host.alive and self.sources.knows(holder):
                self.contents.change(holder)
                self.writes.append(Write("call", holder, method, args, self.host.line()))
        except Exception as fault:
            self.host.fault(fault)

    def content(self, holder: Value) -> None:
        """A known container changes in some way, and all facts about its old content stand: its final content is
        written whole.
        """
        try:
            if not self.host.alive:
                return
            self.writes = [write for write in self.writes if write.holder is not holder or write.kind in BESIDE]
            self.writes.append(Write("content", holder, None, None, self.host.line()))
        except Exception as fault:
            self.host.fault(fault)

    def effects(self, build: Callable[[Value], object]) -> tuple[Effect, ...]:
        """The effects of the trace; ``build`` makes recipes. A slot that holds again what it held before needs none."""
        effects: list[Effect] = []
        for write in self.writes:
            if self._same(write):
                continue
            target = self._target(write)
            if target is None:
                self.host.kill("write", f"a {type(write.holder).__name__}")
                return ()
            value = self._content(write.holder) if write.kind == "content" else write.value
            value = None if write.kind.startswith("del") else build(value)
            key = "grad" if write.kind == "grad" else write.key
            effects.append(Effect(EFFECT.get(write.kind, write.kind), target, key, value, write.line))
        return tuple(effects)

    def _same(self, write: Write) -> bool:
        """Whether a slot holds again what it held before."""
        simple = write.kind in ("attr", "slot", "item", "cell", "global")
        return simple and _same(write.before, write.value) and self._restored(write)

    def _content(self, holder: Value) -> Value:
        """A new container with the elements of ``holder``, its numbers with their expressions."""
        if is_a(holder, dict):
            written = self.sources.written
            pairs = entries(holder)
            return {key: written.get((id(holder), "item", (type(key), key)), value) for key, value in pairs}
        return set(elements(holder)) if is_a(holder, set) else elements(holder)

    def _restored(self, write: Write) -> bool:
        """Whether a slot that holds its first value again is known to have held it: by an earlier read, or by a fact
        stated now.
        """
        sources = self.sources
        if write.read is not MISSING:
            return type(write.read) not in TRACKED  # a number that differs at each call was read as a run-time value
        if write.kind == "attr" and type(write.before) in ATOMS:
            sources.guard_value(Source("attr", sources.source_of(write.holder), write.key), write.before)
            return True
        return False

    def _target(self, write: Write) -> Source | Build | None:
        source: Source | None = self.sources.source_of(write.holder)
        if write.kind in ("global", "delglobal", "invoke"):
            return Build("const", write.holder)
        if write.kind in ("cell", "delcell") and source is not None:
            if source.is_argument and source.key == "cell_contents":
                return source.base  # a variable that was handed over a break
            assert source.base is not None
            closure = Source("getattr", source.base, "__closure__")
            return Source("item", closure, source.key) if source.is_argument else Build("const", write.holder)
        return source

    def settle(self, memo: Memo) -> None:
        """Takes tracked numbers out of what was written, wherever it stands now."""
        try:
            for fresh in self.sources.made.values():
                if is_a(fresh, type):
                    settle_class(fresh, memo)
            for change in self.contents.changed.values():
                _settle_elements(change, self.sources, memo)
            for write in self.writes:
                value = settle(write.value, memo)
                if value is write.value or type(write.value) in TRACKED or write.kind in REPLAYED:
                    continue
                if write.kind == "attr" and vars(write.holder).get(write.key) is write.value:
                    object.__setattr__(write.holder, write.key, value)
                elif write.kind == "slot" and getattr(write.holder, write.key, None) is write.value:
                    object.__setattr__(write.holder, write.key, value)
                elif write.kind in ("item", "global") and write.holder.get(write.key) is write.value:
                    write.holder[write.key] = value
                elif write.kind == "cell" and write.holder.cell_contents is write.value:
                    write.holder.cell_contents = value
        except Exception as fault:
            self.host.fault(fault)

    def separate(self) -> None:
        """Objects that are written must be other objects than the further ones of their type, as they were when
        recorded.
        """
        sources = self.sources
        written = {
            id(write.holder): write.holder
            for write in self.writes
            if write.kind not in ("global", "delglobal", "cell", "delcell", "invoke") and not self._same(write)
        }
        if not written:
            return
        known = sources.entries()
        alike: dict[type, list[tuple[Value, Source]]] = {}
        for value, source in known:
            if source.kind != "dict" and type(value) not in ATOMS:
                alike.setdefault(type(value), []).append((value, source))
        changing = {kind: [pair for pair in pairs if sources.changes(pair[0])] for kind, pairs in alike.items()}
        owners = {id(source): value for value, source in reversed(known)}
        for holder in written.values():
            own = sources.source_of(holder)
            if own is None:
                continue
            if own.kind == "dict":  # the instance dict of an object: the object is another than the others
                own = own.base
                assert own is not None
                holder = owners[id(own)]
            if own.kind == "dict":
                continue
            for other, source in (alike if sources.changes(holder) else changing).get(type(holder), ()):
                if other is not holder:
                    sources.fact(own, "different", source)


def _same(before: Value, value: Value) -> bool:
    if before is value:
        return True
    return type(before) is type(value) and type(value) in (int, str, bool) and bool(before == value)


def _settle_elements(change: Change, sources: Sources, memo: Memo) -> None:
    """Elements that the call put into a container, where they stand: tracked numbers, and new objects that hold some.

    Old elements are left alone: tracked numbers by type, objects that no fact knows by their place.
    """
    container, written = change.container, sources.written
    if is_a(container, (list, deque)):
        for place, part in enumerate(elements(container)):
            new = part
            new_here = place >= change.length or change.owned or (id(container), "item", (int, place)) in written
            if type(part) in TRACKED or (new_here and not sources.knows(part)):
                new = settle(part, memo)
            if new is not part:
                base_of(container).__setitem__(container, place, new)
    elif is_a(container, dict) and change.owned:
        for key, part in list(dict.items(container)):
            new = part if sources.knows(part) else settle(part, memo)
            if new is not part:
                base_of(container).__setitem__(container, key, new)
