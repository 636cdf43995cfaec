"""Turns compiled guard programs that refuse a call into the user's words for why: the place, both values, the line."""

from __future__ import annotations

import os
import re
import types
from collections.abc import Iterable, Iterator, Mapping, Sequence

import torch

from framefuse import _native
from framefuse.guards.changes import value_at
from framefuse.guards.check import Miss, check
from framefuse.guards.source_nodes import MISSING
from framefuse.ir.comparisons import RealRelation, Relation
from framefuse.ir.facts import Assumptions, Source
from framefuse.ir.trace import Trace
from framefuse.ir.values import Value

TORCH = os.path.dirname(torch.__file__) + os.sep  # its lines ask for what the program's own lines use
ARGUMENT = re.compile(r"(args\[\d+\])((?:\[[^\]]*\])?)")
COMPARED = re.compile(r" (==|is) .*$")
PART = re.compile(r"\._modules\['(\w+)'\]")
ATTRIBUTE = re.compile(r"^'(\w+)' not in (\S+)\.__dict__ was")
NAME = re.compile(r"\b[a-z]+\d+\b")


def missed(
    known: Iterable[tuple[_native.GuardSet, Trace]],
    values: tuple[Value, ...],
    names: Mapping[str, str],
    free: frozenset[Source] = frozenset(),
) -> str | None:
    """Why none of ``known`` takes the bound arguments ``values``: guard sets, each with the trace it was made of.

    Of several the one is named that holds the furthest. ``names`` are the user's words for arguments, ``free`` the
    places of which the next trace takes any value. None where one does take them, or nothing is known.
    """
    asked = ((guards, trace) for guards, trace in known if guards.program.instructions)
    reached = [(_reach(guards, values), guards.program, trace) for guards, trace in asked]
    if not reached:
        return None
    _, program, trace = max(reached, key=lambda entry: entry[0])
    miss = check(program, values)
    return _told(miss, trace, values, names, miss.source in free) if isinstance(miss, Miss) else None


def _reach(guards: _native.GuardSet, values: tuple[Value, ...]) -> float:
    """How much of a guard program holds; the number of the first instruction that fails."""
    failed = guards.check(values)
    return failed / len(guards.program.instructions) if isinstance(failed, int) else 1.0


def _told(miss: Miss, trace: Trace, values: Sequence[Value], names: Mapping[str, str], free: bool) -> str:
    """A miss in the user's words; ``free`` says that the next trace takes any value."""
    numbers = _Numbers(trace, values)
    words = _cells(trace.assumptions, values)
    reason, facts = miss.reason, trace.assumptions.facts
    about = (fact.line for fact in facts if fact.source == miss.source)
    lines = [reason.line] if isinstance(reason, (Relation, RealRelation)) else [getattr(reason, "line", None), *about]
    asked = next((line for line in lines if line is not None and not line.file.startswith(TORCH)), None)
    line = f" (asked at {asked.place})" if asked is not None else ""
    if miss.was.startswith(("left ", "not left ")):
        changed = numbers.changed(str(reason))
        was = ", ".join(changed) if changed else f"it compared {miss.now}"
        return _user_words(f"{was}: {numbers.words(_holds(reason))}{line}", names, words)
    name = COMPARED.sub("", numbers.words(miss.name))
    text = f"{name} was {miss.was}, is {miss.now}{line}" + (": any value from now on" if free else "")
    return _user_words(text, names, words)


def _cells(assumptions: Assumptions, values: Sequence[Value]) -> dict[str, str]:
    """What the user calls the variables of functions that came as arguments, by the text of their source."""
    words = {}
    for fact in assumptions.facts:
        here: Source | None = fact.source
        while here is not None:
            if here.kind == "cell" and here.base is not None and "<cell" in str(here):
                function = value_at(here.base, values, {})
                names = function.__code__.co_freevars if isinstance(function, types.FunctionType) else ()
                if here.key < len(names):  # another function may stand there by now
                    words[str(here)] = f"{here.base}'s {names[here.key]}"
            here = here.base
    return words


def _holds(reason: object) -> str:
    """What became of a comparison."""
    if isinstance(reason, RealRelation) and not reason.holds:
        return f"{reason.left} {reason.op} {reason.right} holds now"
    return f"{reason} holds no longer"


def _user_words(text: str, names: Mapping[str, str], words: Mapping[str, str]) -> str:
    """The text with parameters by their names, and modules within modules as a program reaches them."""
    for there, word in words.items():
        text = text.replace(there, word)
    text = text.replace(".cell_contents", "")  # a variable that inner functions share
    text = ATTRIBUTE.sub(lambda at: f"{at[2]}.{at[1]} was", text)
    text = PART.sub(lambda found: f"[{found[1]}]" if found[1].isdigit() else f".{found[1]}", text)
    return ARGUMENT.sub(lambda found: names.get(found[0]) or names.get(found[1], found[1]) + found[2], text)


class _Numbers:
    """The numbers of a trace: where each lies, what it was and what it is in the call at hand."""

    def __init__(self, trace: Trace, values: Sequence[Value]) -> None:
        self.trace, self.values = trace, values
        self.places = dict(_places(trace.assumptions))
        self.derived = {str(symbol): str(value) for symbol, value in trace.assumptions.definitions}

    def words(self, text: str) -> str:
        """The text with each number called by its place."""

        def named(found: re.Match[str]) -> str:
            if found[0] in self.places:
                return self.places[found[0]][0]
            return f"({self.words(self.derived[found[0]])})" if found[0] in self.derived else found[0]

        return NAME.sub(named, text)

    def changed(self, text: str) -> list[str]:
        """``x.shape[1] was 12, is 13`` for each number in the text that is another one now."""
        was = {str(symbol): value for symbol, value in self.trace.hints.items()} | self.trace.real_hints
        told = []
        for name in dict.fromkeys(self._leaves(text)):
            place, source, part = self.places[name]
            now = self._now(source, part)
            if name in was and now is not MISSING and now != was[name]:
                told.append(f"{place} was {was[name]}, is {now}")
        return told

    def _leaves(self, text: str) -> Iterator[str]:
        for name in NAME.findall(text):
            if name in self.places:
                yield name
            elif name in self.derived:
                yield from self._leaves(self.derived[name])

    def _now(self, source: Source, part: tuple[str, int]) -> Value:
        held, (kind, dimension) = value_at(source, self.values, {}), part
        try:
            if kind in ("size", "stride"):
                with torch._C.DisableTorchFunctionSubclass():  # a class of the program's would see the question
                    return (held.shape if kind == "size" else held.stride())[dimension]
            return len(held) if kind == "count" else held.item() if kind == "scalar" else held
        except Exception:  # the call at hand has something else there: what it was compared with is told alone
            return MISSING


def _places(assumptions: Assumptions) -> Iterator[tuple[str, tuple[str, Source, tuple[str, int]]]]:
    """For each name of a number its place in words, the object it is read from, and how."""
    for fact in assumptions.facts:
        if fact.kind in ("integer", "real", "count", "scalar"):
            text = {"count": f"len({fact.source})", "scalar": f"{fact.source}.item()"}.get(fact.kind, str(fact.source))
            yield str(fact.value), (text, fact.source, (fact.kind, 0))
    for entry in assumptions.inputs:
        spec = entry.spec
        for kind, word, extents in (("stride", "stride()", spec.strides or ()), ("size", "shape", spec.sizes)):
            for dimension, extent in enumerate(extents):
                if not isinstance(extent, int):
                    yield str(extent), (f"{entry.source}.{word}[{dimension}]", entry.source, (kind, dimension))
