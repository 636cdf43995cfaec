"""Finds the trace that an earlier process recorded of an equal call, and keeps what this one records."""

from __future__ import annotations

import functools
import logging
import marshal
import types
from collections.abc import Sequence
from dataclasses import replace

from framefuse.capture.entry import bind, entry, refused
from framefuse.codegen.disk_cache import DiskCache, cache_folder
from framefuse.driver.calls.descriptions import Descriptions, Made
from framefuse.driver.calls.fewer_facts import fewer
from framefuse.driver.calls.guard_programs import guards_of, written_guards
from framefuse.driver.calls.kept_facts import Late, Rest, written_rest
from framefuse.driver.calls.objects import How, Reading, Writing
from framefuse.driver.calls.signature import signature
from framefuse.driver.programs import Program, later
from framefuse.driver.programs.programs import keeps
from framefuse.driver.programs.records import VERSION, Unstorable, read, written
from framefuse.guards.check import Texts
from framefuse.guards.versions import unchanged
from framefuse.ir.facts import Assumptions, Fact
from framefuse.ir.frozen_classes import dataclass
from framefuse.ir.guards import Guards, KeptGuards
from framefuse.ir.trace import Build, Trace
from framefuse.ir.values import Arguments, Function, Keywords, Value
from framefuse.options import Options

logger = logging.getLogger("framefuse.cache")
PROCESS = DiskCache(cache_folder("calls"))
FOUND_BY_PLACE = ("place", "slot", "on")
CHANGING = (list, dict, set, bytearray)


@dataclass(frozen=True, slots=True)
class Found:
    """The trace of an earlier process with the place of its program, and the guards, if these were kept."""

    trace: Trace
    program: Program
    guards: KeptGuards | None


@dataclass(frozen=True, slots=True)
class Call:
    """One call of a function: the ``key`` of its file, the function that it enters and its bound arguments."""

    key: str
    function: types.FunctionType
    bound: Arguments

    def found(self) -> Found | None:
        """What an earlier process recorded, made of the objects of this one; None where there is none for this call.
        Whether it holds guards say.
        """
        data = PROCESS.read(self.key)
        if data is None:
            return None
        try:
            return self._read(data)
        except Exception as error:  # LookupError, mostly: the call is recorded
            logger.debug("a kept call is another one: %s: %s", type(error).__name__, error)
            return None

    def _read(self, data: bytes) -> Found:
        hows, steps, digest, functions, payload, rest, guards = marshal.loads(data)
        reading = Reading(hows, steps, self.function, self.bound)
        objects = reading.objects()
        descriptions = Descriptions({id(value): number for number, value in enumerate(objects)})
        if descriptions.digest(_named(objects, hows)) != digest:
            raise LookupError("another content")
        made: dict[int, Made] = {}
        for number, code in functions:
            function = reading.value(reading.source(number))
            made[number] = (function.__code__, function.__defaults__, function.__kwdefaults__)
            if descriptions.function(made[number]) != code:
                raise LookupError(f"other code: {reading.source(number)}")
        trace, key, strangers = read(payload, reading.stranger)
        unread = Rest(rest, reading, made)
        trace = replace(trace, assumptions=replace(trace.assumptions, facts=Late(unread.facts)))
        kept = None
        if guards is not None:
            program, settled = guards_of(guards, objects, reading, made, Texts(Late(unread.reasons)))
            kept = KeptGuards(trace, settled, program)
        reading.forget_call()
        return Found(trace, Program(key, strangers), kept)

    def keep(self, trace: Trace, program: Program, assumptions: Assumptions, guards: Guards) -> None:
        """Has the trace written soon, if another process could use it; its guards check the ``assumptions``."""
        if not trace.tied:
            later.PROCESS.put(functools.partial(_keep, self.key, self.function, trace, program, assumptions, guards))


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


def _named(objects: Sequence[Value], hows: Sequence[How]) -> list[tuple[Value, bool]]:
    return [(value, how[0] not in FOUND_BY_PLACE) for value, how in zip(objects, hows, strict=True)]


def _keep(
    key: str,
    function: types.FunctionType,
    trace: Trace,
    program: Program,
    assumptions: Assumptions,
    guards: Guards,
) -> None:
    """Writes the file of a call; nothing where an object could not be found again."""
    try:
        data = _written(function, trace, program, assumptions, guards)
    except Exception as error:  # Unstorable, mostly
        logger.debug("a call of %s is not kept: %s: %s", trace.name, type(error).__name__, error)
    else:
        PROCESS.write(key, data)


def _written(
    function: types.FunctionType, trace: Trace, program: Program, assumptions: Assumptions, guards: Guards
) -> bytes:
    facts = fewer(trace.assumptions.facts)
    writing = Writing(facts, function)
    _check_constants([trace.result, trace.effects])
    kept = replace(trace, assumptions=replace(trace.assumptions, facts=()), seconds={})
    payload = written([kept, program.key, program.strangers], writing.described)
    facts_alone = _with_digests(writing, facts, ())
    objects, program_of_guards = len(writing.objects), None
    try:
        stated = replace(assumptions, facts=facts)
        program_of_guards, reasons = written_guards(stated, tuple(guards.register_of), writing)
        rest, digest, functions = _with_digests(writing, facts, reasons)
    except Exception as error:  # Unstorable, mostly: they are built anew
        logger.debug("the guards of %s are not kept: %s: %s", trace.name, type(error).__name__, error)
        writing.forget(objects)
        program_of_guards, (rest, digest, functions) = None, facts_alone
    if not unchanged(guards):
        raise Unstorable("a class that has changed since")
    parts = (writing.hows, writing.steps, digest, functions, payload, rest, program_of_guards)
    return marshal.dumps(parts, VERSION)


def _with_digests(
    writing: Writing, facts: Sequence[Fact], reasons: Sequence[object]
) -> tuple[bytes, bytes, list[tuple[int, bytes]]]:
    """The facts and reasons, a digest of all objects, and one for each function that facts watch."""
    rest = written_rest(facts, reasons, writing)
    made: list[tuple[int, Made]] = [(writing.source(fact.source), fact.value) for fact in facts if fact.kind == "code"]
    descriptions = Descriptions(writing.numbers)
    digest = descriptions.digest(_named(writing.objects, writing.hows))
    return rest, digest, [(number, descriptions.function(value)) for number, value in made]


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
