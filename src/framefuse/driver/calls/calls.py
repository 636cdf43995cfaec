"""Finds the trace that an earlier process recorded of an equal call, and keeps what this one records."""

from __future__ import annotations

import functools
import logging
import marshal
import types
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import platformdirs

from framefuse.capture.entry import Segment, bind, entry, refused
from framefuse.codegen.disk_cache import DiskCache
from framefuse.driver.calls.descriptions import Descriptions, Made
from framefuse.driver.calls.fewer_facts import fewer
from framefuse.driver.calls.objects import Reading, Writing
from framefuse.driver.calls.signature import signature
from framefuse.driver.programs import Program, later
from framefuse.driver.programs.programs import keeps
from framefuse.driver.programs.records import VERSION, Unstorable, read, written
from framefuse.guards.versions import unchanged
from framefuse.ir.facts import Fact
from framefuse.ir.guards import Guards
from framefuse.ir.trace import Build, Trace
from framefuse.ir.values import Arguments, Function, Keywords, Value
from framefuse.options import Options

logger = logging.getLogger("framefuse.cache")
PROCESS = DiskCache(Path(platformdirs.user_cache_dir("framefuse")) / "calls")
CHANGING = (list, dict, set, bytearray)


@dataclass(frozen=True, slots=True)
class Call:
    """One call of a function: the ``key`` of its file, the function that it enters and its bound arguments."""

    key: str
    function: types.FunctionType
    bound: Arguments

    def found(self) -> tuple[Segment, Program] | None:
        """The stretch that an earlier process recorded, made of the objects of this one, with the program that was made
        of it; None where there is none for this call. Whether it holds guards say.
        """
        data = PROCESS.read(self.key)
        if data is None:
            return None
        try:
            trace, program = self._read(data)
        except Exception as error:  # LookupError, mostly: the call is recorded
            logger.debug("a kept call is another one: %s: %s", type(error).__name__, error)
            return None
        return Segment(trace, None, self.bound, None), program

    def _read(self, data: bytes) -> tuple[Trace, Program]:
        hows, steps, digests, functions, payload = marshal.loads(data)
        reading = Reading(hows, steps, self.function, self.bound)
        objects = reading.objects()
        descriptions = Descriptions({id(value): number for number, value in enumerate(objects)})
        for number, (value, digest) in enumerate(zip(objects, digests, strict=True)):
            if descriptions.digest(value, hows[number][0] != "place") != digest:
                raise LookupError(f"another content: {hows[number]}")
        made: dict[int, Made] = {}
        for number, digest in functions:
            source = reading.source(number)
            function = reading.value(source)
            made[id(source)] = (function.__code__, function.__defaults__, function.__kwdefaults__)
            if descriptions.function(made[id(source)]) != digest:
                raise LookupError(f"other code: {source}")
        trace, key, strangers = read(payload, reading.stranger)
        facts = tuple([_with_code(fact, made) for fact in trace.assumptions.facts])
        trace = replace(trace, assumptions=replace(trace.assumptions, facts=facts))
        return trace, Program(key, strangers)

    def keep(self, trace: Trace, program: Program, guards: Guards) -> None:
        """Has the trace written soon, if another process could use it."""
        if not trace.tied:
            later.PROCESS.put(functools.partial(_keep, self.key, self.function, trace, program, guards))


def call_of(function: Function, args: Arguments, kwargs: Keywords, options: Options) -> Call | None:
    """A call whose trace may be kept; None for others, and where nothing is kept."""
    if not keeps(options) or options.verify:
        return None
    first = entry(function)
    if first is None or refused(function, first) is not None:
        return None
    try:
        bound = tuple(bind(function, args, kwargs))
        return Call(signature(first.function, bound, options), first.function, bound)
    except Exception as error:  # the call itself says what is wrong with it
        logger.debug("a call is not looked for: %s: %s", type(error).__name__, error)
        return None


def _with_code(fact: Fact, made: dict[int, Made]) -> Fact:
    return Fact(fact.source, "code", made[id(fact.source)], fact.line) if fact.kind == "code" else fact


def _keep(key: str, function: types.FunctionType, trace: Trace, program: Program, guards: Guards) -> None:
    """Writes the file of a call; nothing where an object could not be found again."""
    try:
        data = _written(function, trace, program, guards)
    except Exception as error:  # Unstorable, mostly
        logger.debug("a call of %s is not kept: %s: %s", trace.name, type(error).__name__, error)
    else:
        PROCESS.write(key, data)


def _written(function: types.FunctionType, trace: Trace, program: Program, guards: Guards) -> bytes:
    facts = fewer(trace.assumptions.facts)
    writing = Writing(facts, function)
    _check_constants([trace.result, trace.effects])
    stated = tuple([_portable(fact, writing) for fact in facts])
    kept = replace(trace, assumptions=replace(trace.assumptions, facts=stated), seconds={})
    payload = written([kept, program.key, program.strangers], writing.described)
    made = [(writing.source(fact.source), fact.value) for fact in facts if fact.kind == "code"]
    descriptions = Descriptions(writing.numbers)
    pairs = zip(writing.objects, writing.hows, strict=True)
    digests = [descriptions.digest(value, how[0] != "place") for value, how in pairs]
    functions = [(number, descriptions.function(value)) for number, value in made]
    if not unchanged(guards):
        raise Unstorable("a class that has changed since")
    return marshal.dumps((writing.hows, writing.steps, digests, functions, payload), VERSION)


def _portable(fact: Fact, writing: Writing) -> Fact:
    """A fact as it is written: of what is held by identity the object is named, of code nothing stands there."""
    if fact.kind == "is":
        return Fact(fact.source, "is", writing.held(fact.value), fact.line)
    return Fact(fact.source, "code", None, fact.line) if fact.kind == "code" else fact


def _check_constants(parts: Sequence[Value]) -> None:
    """Raises Unstorable where a result or an effect has a constant that somebody may change."""
    waiting = list(parts)
    while waiting:
        part = waiting.pop()
        if isinstance(part, Build):
            if part.kind == "const" and isinstance(part.value, CHANGING):
                raise Unstorable(f"a constant {type(part.value).__name__}")
            waiting += (part.base, *part.parts)
        elif isinstance(part, (tuple, list)):
            waiting += part
        elif hasattr(part, "target") and hasattr(part, "key"):  # an effect
            waiting += (part.target, part.key, part.value)
