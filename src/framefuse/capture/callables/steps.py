"""Turns native calls that touch no tensor and no changed object into facts, places or effects: they cut nothing."""

from __future__ import annotations

import builtins
import functools
import logging
import os
import types
import warnings
from contextvars import ContextVar, Token

import torch

from framefuse.capture.callables.hearers import Hearers, category_of
from framefuse.capture.facts.atoms import ATOMS, CARRIED
from framefuse.capture.facts.nested_numbers import strip
from framefuse.capture.facts.numbers import TRACKED, bare
from framefuse.capture.facts.place_names import Place
from framefuse.capture.facts.settings import RESTORED
from framefuse.capture.interp import stacks
from framefuse.capture.interp.machine import Machine
from framefuse.capture.program.markers import MISSING
from framefuse.capture.program.natives import known_as
from framefuse.capture.recording.repeated import says_once
from framefuse.capture.recording.warning_stretches import dropped, innermost
from framefuse.ir.facts import Source
from framefuse.ir.own_class import is_a
from framefuse.ir.values import Arguments, Function, Keywords, Value

# Calls that give nothing back and only speak to the world outside: replayed after the trace, in order.
ENVIRONMENT: frozenset[Function] = frozenset((os.putenv, os.unsetenv))
SPEAKS: frozenset[Function] = ENVIRONMENT | {builtins.print}
# They tell of the exception at hand.
RECALLS: frozenset[Function] = frozenset((logging.exception, logging.Logger.exception))


def _logger(machine: Machine, args: Arguments) -> Value:
    """The logger of a name, as the entry of the table that keeps it for ever."""
    table: dict[str, Value] = logging.Logger.manager.loggerDict
    if len(args) != 1 or type(args[0]) is not str or not is_a(table.get(args[0]), logging.Logger):
        return MISSING
    machine.recorder.sources.root(table)
    return machine.recorder.contents.item(table, args[0], table[args[0]])


def replayed(machine: Machine, target: Function, args: Arguments, kwargs: Keywords) -> Value:
    """The value of a call that is replayed or read as a fact; MISSING, with nothing done, for any other call."""
    holder = getattr(target, "__self__", None)
    if type(holder) is ContextVar:
        return _context(machine, holder, target.__name__, args, kwargs)
    if target is logging.getLogger and not kwargs:
        return _logger(machine, args)
    if target is logging.Logger.isEnabledFor and len(args) == 2 and not kwargs:
        heard = Hearers(machine).hears(*args)
        return MISSING if heard is None else heard
    try:
        of_caller = target in stacks.SPEAKS
        if not of_caller and target not in SPEAKS and not says_once(target):
            return MISSING
    except TypeError:
        return MISSING
    if of_caller and Hearers(machine).is_silent(target, args):
        return None
    if kwargs.get("exc_info") or kwargs.get("stack_info") or target in RECALLS:
        return MISSING  # what they tell of is gone when the call is replayed
    if target is warnings.warn and (not args or type(args[0]) is not str):
        return MISSING
    if target is warnings.warn and innermost(machine.recorder.ambient) is not None:
        return None if dropped(machine.recorder.ambient, args[0], category_of(args, kwargs)) else MISSING
    if not all(_lasts(machine, part) for part in (*args, *kwargs.values())):
        return MISSING
    if target not in ENVIRONMENT and not Hearers(machine).are_pythons(target, args, kwargs):
        return MISSING
    recorder = machine.recorder
    if says_once(target) and recorder.journal.has_said(target, args, kwargs):
        return target(*args, **kwargs)  # from its cache
    if says_once(target):
        call = stacks.once_from_callers(machine)
    else:
        call = stacks.from_callers(machine) if of_caller else invoke
    if is_a(target, (types.FunctionType, functools._lru_cache_wrapper)):
        recorder.sources.root(target)
    recorder.journal.invoke(call, (target, args, kwargs))
    with torch._C.DisableTorchFunction():
        return call(target, tuple(map(_now, args)), {key: _now(part) for key, part in kwargs.items()})


def _now(value: Value) -> Value:
    """An argument as this call says it: run-time numbers and texts are said anew at the next one."""
    return bare(value) if type(value) in TRACKED else strip(value)


def _lasts(machine: Machine, value: Value) -> bool:
    """Whether an argument will look the same when the call is replayed: it is immutable, or a logger or stream."""
    kind = type(value)
    if kind in ATOMS or kind in TRACKED:
        return True
    if kind is tuple:
        return all(_lasts(machine, part) for part in value)
    if is_a(value, type):
        return known_as(value).pure or issubclass(value, Warning)
    known = machine.recorder.sources.knows(value)
    return known and (is_a(value, logging.Logger) or hasattr(kind, "write"))


def invoke(target: Function, args: Arguments, kwargs: Keywords) -> Value:
    """A call of which none looks at its callers."""
    return target(*args, **kwargs)


# Context variables ----------------------------------------------------------------------------------------------------


def _context(
    machine: Machine, variable: ContextVar[Value], name: str, args: Arguments, kwargs: Keywords
) -> Value:
    recorder = machine.recorder
    sources = recorder.sources
    root = sources.source_of(variable)
    if kwargs or root is None or root.is_argument:
        return MISSING
    place = (id(variable), "context", None)
    if name == "get" and len(args) <= 1:
        value = variable.get(MISSING)
        if place in sources.written:
            value = sources.written[place]
            if value is RESTORED:
                return MISSING
        elif value is MISSING:
            sources.fact(Source("context", root), "unset", "")
        else:
            free = "set" in machine.frames[-1].code.names or CARRIED
            value = sources.read_at(root, place, "context", "", value, free)
        return value if value is not MISSING else variable.get(*args)
    if name == "set" and len(args) == 1:
        token = variable.set(bare(args[0]))
        recorder.journal.context(variable, place, args[0], token)
        return token
    if name == "reset" and len(args) == 1 and type(args[0]) is Token:
        return _reset(machine, variable, place, args[0])
    return MISSING


def _reset(machine: Machine, variable: ContextVar[Value], place: Place, token: Token[Value]) -> Value:
    """Gives a context variable back what it held before it was set, in this recording or in one before it."""
    recorder = machine.recorder
    sources = recorder.sources
    setting = sources.setting(token)
    if setting is None and (sources.source_of(token) is None or place in sources.written):
        return MISSING
    variable.reset(token)
    if setting is None:
        recorder.journal.context_restored(variable, place, token)
    else:
        recorder.journal.context_reset(variable, place, setting)
    return None
