"""Says what a call changes for good: what can be put back behind it, and what forbids to make it for its time."""

from __future__ import annotations

import functools
import types
from collections.abc import Iterable, Sequence
from typing import TypeGuard

import torch

from framefuse.errors import Reason
from framefuse.explain.break_times import changes, undone
from framefuse.explain.undo import Undo
from framefuse.guards.changes import value_at
from framefuse.ir.facts import Source
from framefuse.ir.source import Line
from framefuse.ir.trace import Build, Effect, Trace
from framefuse.ir.values import Arguments, Value


def lasting(traces: Sequence[Trace], breaks: Iterable[Reason]) -> str | None:
    """What the call changes that cannot be put back, None if there is nothing."""
    for why in breaks:
        if changes(why) and not undone(why):
            return f"what runs at the break{_at(why.line)} may change anything. framefuse.profile makes such calls"
    return next((lasting for trace in traces if (lasting := _lasts(trace)) is not None), None)


def undoing(
    roots: Iterable[Value], bound: Arguments, traces: Sequence[Trace], breaks: Iterable[Reason]
) -> Undo | str | None:
    """What puts back all that such a call changes beside memory, None where there is nothing, or why it cannot be."""
    effects = [effect for trace in traces for effect in trace.effects if effect.kind != "invoke"]
    stepped = [why for why in breaks if changes(why)]
    if not effects and not stepped:
        return None
    if stepped and torch.distributed.is_available() and torch.distributed.is_initialized():
        return f"what runs at the break{_at(stepped[0].line)} may take part in other processes"
    places = [value_at(effect.target, bound, {}) for effect in effects if _is_fixed_place(effect.target)]
    try:
        kept = Undo([*roots, *places])
    except (torch.OutOfMemoryError, MemoryError):
        return "it changes what it reaches, and there is no memory for a copy of that"
    if not kept.whole:
        return "it changes what it reaches, and it reaches more objects than are kept"
    if stepped and kept.hooked:
        return f"{kept.hooked} runs at the break{_at(stepped[0].line)}, which may change anything"
    for effect in effects:
        if effect.kind in ("global", "delglobal"):
            names = _names(effect.target)
            if names is None:
                return f"the call {_done(effect)}{_at(effect.line)}"
            kept.keep_global(names, effect.key)
        elif _is_fixed_place(effect.target) and not kept.keeps(value_at(effect.target, bound, {})):
            return f"the call {_done(effect)}{_at(effect.line)}"
    return kept


def _is_fixed_place(target: Value) -> TypeGuard[Source]:
    """Whether a place is known before the call; behind a break arguments are what the steps before handed over."""
    return isinstance(target, Source) and not target.is_argument


def _names(target: Value) -> dict[str, Value] | None:
    """The global variables that an effect's target stands for."""
    known = value_at(target, (), {}) if _is_fixed_place(target) else None
    holder = target.value if isinstance(target, Build) else known
    if isinstance(holder, types.FunctionType):
        return holder.__globals__
    return holder if isinstance(holder, dict) else None


def _lasts(trace: Trace) -> str | None:
    """What a stretch changes that cannot be put back."""
    for effect in trace.effects:
        if effect.kind == "invoke" and called(effect) != "print" and not _said_before(effect):
            return f"the call {_done(effect)}{_at(effect.line)}"
    for call in trace.calls:
        if getattr(call.target, "commits", False):
            return f"{call.name} takes part in other processes{_at(call.line)}"
        if call.random and call.kwargs.get("generator") is not None:
            return f"{call.name} draws from a generator of its own{_at(call.line)}"
        if call.written and call.grad_enabled and _history(trace, call.written):
            return f"{call.name} changes the history of a tensor that requires grad{_at(call.line)}"
    return None


def _callee(effect: Effect) -> Value:
    """What an effect calls, as an object or the place where it lies; None where it writes."""
    callee = effect.value.parts[0] if effect.kind == "invoke" and isinstance(effect.value, Build) else None
    return callee.value if isinstance(callee, Build) and callee.kind in ("source", "const") else callee


def called(effect: Effect) -> str:
    """The name of what an effect calls; nothing where it writes."""
    callee = _callee(effect)
    return str(callee) if isinstance(callee, Source) else getattr(callee, "__qualname__", "")


def _said_before(effect: Effect) -> bool:
    """Whether it calls what does nothing for arguments that it knows, as ``warning_once`` of loggers does."""
    callee = _callee(effect)
    found = value_at(callee, (), {}) if isinstance(callee, Source) else callee
    found = getattr(found, "__func__", found)
    once = isinstance(found, functools._lru_cache_wrapper) and found.cache_parameters()["maxsize"] is None
    return once and _is_fixed(effect.value.parts[1])


def _is_fixed(part: Value) -> bool:
    """Whether a part of an effect is what it was in the recorded call."""
    if not isinstance(part, Build):
        return isinstance(part, (str, int, float, type(None)))
    if part.kind == "source":
        return not part.value.is_argument
    return part.kind == "const" or (part.kind == "tuple" and all(map(_is_fixed, part.parts)))


def _done(effect: Effect) -> str:
    """What an effect does, by the program's names."""
    if effect.kind == "invoke":
        return f"calls {called(effect) or 'a function'}, which may change anything"
    if effect.kind in ("global", "delglobal"):
        return f"changes {effect.key}"
    target = str(effect.target) if isinstance(effect.target, Source) else "an object"
    return f"changes {target}.{effect.key}" if effect.kind in ("attr", "setattr", "delattr") else f"changes {target}"


def _history(trace: Trace, written: tuple[int, ...]) -> bool:
    """Whether a write among inputs' memory is one that autograd keeps."""
    storages = {trace.metas[entry.value].storage for entry in trace.written_inputs}
    return any(trace.metas[value].requires_grad and trace.metas[value].storage in storages for value in written)


def _at(line: Line | None) -> str:
    return f" ({line.place}: {line.text})" if line is not None else ""
