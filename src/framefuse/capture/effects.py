"""Keeps the journal of writes to objects that existed before the call, and turns it into the effects of a trace."""

from __future__ import annotations

import types
from dataclasses import dataclass
from typing import Any

from framefuse.capture.frame import MISSING
from framefuse.capture.numbers import TRACKED
from framefuse.capture.recipe import settle
from framefuse.capture.sources import ATOMS
from framefuse.ir.facts import Source
from framefuse.ir.source import Line
from framefuse.ir.trace import Build, Effect


@dataclass(slots=True)
class Write:
    """A write in the journal; ``before`` is the value that stood there first, ``value`` the one that stands there
    last.
    """

    kind: str
    holder: Any
    key: Any
    value: Any
    line: Line | None
    before: Any = MISSING
    known_before: bool = False


# Part of a source that reads what a write of this kind wrote.
PART = {"attr": "attr", "delattr": "attr", "item": "item", "delitem": "item", "cell": "cell", "global": "global"}


class Journal:
    """Writes in program order. Attributes, cells and globals keep their final value, containers every operation."""

    def __init__(self, recorder: Any) -> None:
        self.recorder = recorder
        self.writes: list[Write] = []
        self.last: dict[tuple[Any, ...], Write] = {}

    def place(self, kind: str, holder: Any, key: Any, value: Any, before: Any) -> None:
        """A slot of a known object takes ``value``; ``before`` is what it held (MISSING: nothing)."""
        sources = self.recorder.sources
        if not self.recorder.alive or id(holder) not in sources.known:
            return
        part = PART[kind]
        place = (id(holder), part, (type(key), key) if part != "cell" else None)
        self._put(place, kind, holder, key, value, before)

    def global_variable(self, function: types.FunctionType, key: str, value: Any, before: Any) -> None:
        """A global of ``function`` takes ``value``."""
        sources = self.recorder.sources
        if not self.recorder.alive:
            return
        variables = function.__globals__
        if id(variables) not in sources.globals:
            sources.globals[id(variables)] = sources.holder(function)
            sources.keep.append(variables)
        self._put((id(variables), "global", (str, key)), "global", variables, key, value, before)

    def _put(self, place: tuple[Any, ...], kind: str, holder: Any, key: Any, value: Any, before: Any) -> None:
        sources = self.recorder.sources
        found = self.last.get(place)
        if found is not None:
            found.kind, found.value = kind, value
        else:
            write = Write(kind, holder, key, value, self.recorder.line(), before, place in sources.seen)
            self.last[place] = write
            self.writes.append(write)
        sources.written[place] = value

    def operation(self, holder: Any, method: str, args: tuple[Any, ...]) -> None:
        """A known container changes by a method of its own."""
        if not self.recorder.alive or id(holder) not in self.recorder.sources.known:
            return
        self.writes.append(Write("call", holder, method, args, self.recorder.line()))
        self.recorder.sources.changed[id(holder)] = method

    def effects(self, build: Any) -> tuple[Effect, ...]:
        """The effects of the trace; ``build`` makes recipes. A slot that holds again what it held before needs none."""
        found: list[Effect] = []
        for write in self.writes:
            if write.kind != "call" and _same(write.before, write.value) and self._restored(write):
                continue
            target = self._target(write)
            if target is None:
                self.recorder.kill("write", f"a {type(write.holder).__name__}")
                return ()
            value = build(write.value) if write.kind not in ("delattr", "delitem") else None
            found.append(Effect(write.kind, target, write.key, value, write.line))
        return tuple(found)

    def _restored(self, write: Write) -> bool:
        """Whether a slot that holds its first value again is known to have held it: by an earlier read, or by a fact
        stated now.
        """
        sources = self.recorder.sources
        if write.known_before:
            return True
        if write.kind == "attr" and type(write.before) in ATOMS:
            sources.learn(Source("attr", sources.source(write.holder), write.key), write.before)
            return True
        return False

    def _target(self, write: Write) -> Source | Build | None:
        source: Source | None = self.recorder.sources.source(write.holder)
        if write.kind == "global":
            return Build("const", write.holder)
        if write.kind == "cell":
            return Build("const", write.holder) if source is not None and not source.is_argument else None
        return source

    def settle(self, memo: dict[int, Any]) -> None:
        """Takes tracked numbers out of what was written, wherever it stands now."""
        for write in self.writes:
            value = settle(write.value, memo)
            if value is write.value or type(write.value) in TRACKED:
                continue
            if write.kind == "call":
                _replace_in(write.holder, write.value, value)
            elif write.kind == "attr" and vars(write.holder).get(write.key) is write.value:
                object.__setattr__(write.holder, write.key, value)
            elif write.kind in ("item", "global") and write.holder.get(write.key) is write.value:
                write.holder[write.key] = value
            elif write.kind == "cell" and write.holder.cell_contents is write.value:
                write.holder.cell_contents = value

    def separate(self) -> None:
        """Objects that are written must be other objects than the further ones of their type, as they were when
        recorded.
        """
        sources = self.recorder.sources
        written = {id(write.holder): write.holder for write in self.writes if write.kind not in ("global", "cell")}
        for holder in written.values():
            own = sources.source(holder)
            if own is None:
                continue
            for other, source in list(sources.known.values()):
                if other is holder or type(other) is not type(holder) or type(holder) in ATOMS:
                    continue
                if (own.is_argument or source.is_argument) and own.kind != "dict" and source.kind != "dict":
                    sources.fact(own, "different", source)

    def separate_tensors(self) -> None:
        """Input tensors that are written, and what they may alias, must be as distinct as they were when recorded."""
        recorder = self.recorder
        changed = {number for call in recorder.calls for number in call.written}
        storages = {recorder.metas[number].storage for number in changed}
        hit = [number for number in recorder.inputs if recorder.metas[number].storage in storages]
        for number in hit:
            own = recorder.inputs[number][0]
            for other, (source, *_) in recorder.inputs.items():
                if other == number or (other in hit and other < number):
                    continue
                if recorder.metas[other].storage == recorder.metas[number].storage:
                    recorder.kill("alias", f"{own} and {source}")
                    return
                if own.is_argument or source.is_argument or own.root.kind == "object":
                    recorder.sources.fact(own, "disjoint", source)


def _same(before: Any, value: Any) -> bool:
    if before is value:
        return True
    return type(before) is type(value) and type(value) in (int, str, bool) and bool(before == value)


def _replace_in(container: Any, old: tuple[Any, ...], new: tuple[Any, ...]) -> None:
    """The arguments of a container's method, where they stand in a list."""
    for before, after in zip(old, new, strict=True):
        if isinstance(container, list) and before is not after:
            for place, part in enumerate(container):
                if part is before:
                    container[place] = after
