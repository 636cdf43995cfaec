"""Enters and leaves autocast in a recording: calls carry the state they are made in, a trace the one it leaves."""

from __future__ import annotations

import functools
from dataclasses import dataclass

import torch

from framefuse.capture.callables.hearers import Hearers
from framefuse.capture.facts.questions import Question, answered
from framefuse.capture.interp import stacks
from framefuse.capture.interp.machine import Machine
from framefuse.capture.interp.registry import special
from framefuse.capture.program.frame import Frame
from framefuse.capture.program.markers import MISSING, Outcome
from framefuse.capture.recording.recorder import Recorder
from framefuse.capture.recording.state import GUARDED, Ambient, autocast_of
from framefuse.ir.facts import Source
from framefuse.ir.own_class import is_a
from framefuse.ir.trace import Build, Effect
from framefuse.ir.values import Arguments, Function, Keywords

ENTERED = ("device", "_enabled", "fast_dtype", "_cache_enabled")
FOUND = ("prev", "prev_fastdtype", "prev_cache_enabled")


@dataclass(frozen=True, slots=True)
class Leave:
    """Brings about the state that a segment leaves: ``rows`` of device type, on, dtype; the cache where that changed;
    and by how many contexts it is deeper.
    """

    rows: tuple[tuple[str, bool, torch.dtype], ...]
    cache: bool | None
    nested: int

    def __call__(self) -> None:
        for kind, on, dtype in self.rows:
            torch.set_autocast_enabled(kind, on)
            torch.set_autocast_dtype(kind, dtype)
        if self.cache is not None:
            torch.set_autocast_cache_enabled(self.cache)
        for _ in range(self.nested):
            torch.autocast_increment_nesting()
        for _ in range(-self.nested):
            if torch.autocast_decrement_nesting() == 0:
                torch.clear_autocast_cache()


def left(recorder: Recorder) -> tuple[Effect, ...]:
    """The effect that leaves autocast as this segment does; none where that is how it was found."""
    ambient: Ambient = recorder.ambient
    changed = tuple((kind, *autocast_of(kind)) for kind, before in ambient.rows.items() if autocast_of(kind) != before)
    cache = torch.is_autocast_cache_enabled()
    if not changed and cache == ambient.cache and not ambient.nested:
        return ()
    for kind, _, _ in changed:  # the contexts that are still to be left know what they found
        _found(recorder, kind)
    leave = Leave(changed, cache if cache != ambient.cache else None, ambient.nested)
    return (Effect("run", Build("const", leave), None, Build("tuple", None, ()), recorder.line()),)


# Facts ----------------------------------------------------------------------------------------------------------------


@functools.cache
def _asks(what: Function, kind: str | None = None) -> Question:
    return Question(what if kind is None else functools.partial(what, kind))


def _found(recorder: Recorder, kind: str) -> None:
    """States the dtype and the cache that the segment found, which the state of a trace does not hold."""
    sources, ambient = recorder.sources, recorder.ambient
    pairs: list[tuple[Question, object]] = [(_asks(torch.get_autocast_dtype, kind), ambient.row(kind)[1])]
    pairs.append((_asks(torch.is_autocast_cache_enabled), ambient.cache))
    if kind not in GUARDED:
        pairs.append((_asks(torch.is_autocast_enabled, kind), ambient.row(kind)[0]))
    for question, value in pairs:
        sources.guard_value(Source("getattr", sources.root(question), "answer"), value)


@special(torch.get_autocast_dtype)
def _dtype(machine: Machine, frame: Frame, args: Arguments, kwargs: Keywords) -> Outcome:
    return _tell(machine, frame, torch.get_autocast_dtype, args, kwargs, 1)


@special(torch.is_autocast_enabled)
def _enabled(machine: Machine, frame: Frame, args: Arguments, kwargs: Keywords) -> Outcome:
    if not args or args[0] in GUARDED:
        return MISSING
    return _tell(machine, frame, torch.is_autocast_enabled, args, kwargs, 0)


def _tell(machine: Machine, frame: Frame, ask: Function, args: Arguments, kwargs: Keywords, place: int) -> Outcome:
    """What the question gives now, with the fact that it does where the segment found it so."""
    if len(args) != 1 or kwargs or type(args[0]) is not str:
        return MISSING
    value = ask(args[0])
    recorder = machine.recorder
    if value == recorder.ambient.row(args[0])[place]:
        answered(recorder.sources, _asks(ask, args[0]))
    frame.stack.append(value)
    return None


@special(torch.is_autocast_cache_enabled)
def _cache(machine: Machine, frame: Frame, args: Arguments, kwargs: Keywords) -> Outcome:
    value = torch.is_autocast_cache_enabled(*args, **kwargs)
    if value == machine.recorder.ambient.cache:
        answered(machine.recorder.sources, _asks(torch.is_autocast_cache_enabled))
    frame.stack.append(value)
    return None


@special(torch.is_autocast_cpu_enabled)
def _cpu_enabled(machine: Machine, frame: Frame, args: Arguments, kwargs: Keywords) -> Outcome:
    """The older name of a question; it warns, so that it is asked again at later calls."""
    if not Hearers(machine).of_warnings(None, DeprecationWarning):
        return MISSING
    call = stacks.from_callers(machine)
    machine.recorder.journal.invoke(call, (torch.is_autocast_cpu_enabled, args, kwargs))
    with torch._C.DisableTorchFunction():
        frame.stack.append(call(torch.is_autocast_cpu_enabled, args, kwargs))
    return None


@special(torch._C._is_torch_function_mode_enabled)
def _modes(machine: Machine, frame: Frame, args: Arguments, kwargs: Keywords) -> Outcome:
    """The mode of the recording is none of the program's."""
    frame.stack.append(torch._C._len_torch_function_stack() > 1)
    return None


# Changes --------------------------------------------------------------------------------------------------------------


def _followed(ambient: Ambient, kind: str, on: bool) -> bool:
    """Whether calls say all that this state makes of them: they say it of a few device types."""
    return kind in GUARDED or (type(kind) is str and ambient.row(kind)[0] == on and not on)


@special(torch.autocast.__enter__)
def _enter(machine: Machine, frame: Frame, args: Arguments, kwargs: Keywords) -> Outcome:
    recorder = machine.recorder
    context, *more = args
    if more or kwargs or not is_a(context, torch.autocast):
        return MISSING
    kind, on, *_ = [machine.attributes.attribute_now(frame, context, name) for name in ENTERED]
    if not _followed(recorder.ambient, kind, on):
        return MISSING
    recorder.ambient.row(kind)
    before = {name: vars(context).get(name, MISSING) for name in FOUND}
    with torch._C.DisableTorchFunction():  # it looks at the modes, and imports what it compares them with
        value = torch.autocast.__enter__(context)
    recorder.ambient.nested += 1
    if recorder.sources.knows(context):
        _found(recorder, kind)
        for name in FOUND:
            recorder.journal.place("attr", context, name, vars(context)[name], before[name])
    frame.stack.append(value)
    return None


@special(torch.autocast.__exit__)
def _exit(machine: Machine, frame: Frame, args: Arguments, kwargs: Keywords) -> Outcome:
    recorder = machine.recorder
    if len(args) != 4 or kwargs or not is_a(args[0], torch.autocast):
        return MISSING
    kind, on, *_ = [machine.attributes.attribute_now(frame, args[0], name) for name in ("device", *FOUND)]
    if not _followed(recorder.ambient, kind, on):
        return MISSING
    with torch._C.DisableTorchFunction():
        value = torch.autocast.__exit__(*args)
    recorder.ambient.nested -= 1
    frame.stack.append(value)
    return None


@special(torch.set_autocast_enabled)
def _set_enabled(machine: Machine, frame: Frame, args: Arguments, kwargs: Keywords) -> Outcome:
    if len(args) != 2 or kwargs or type(args[0]) is not str or not _followed(machine.recorder.ambient, *args):
        return MISSING
    machine.recorder.ambient.row(args[0])
    frame.stack.append(torch.set_autocast_enabled(*args))
    return None


@special(torch.set_autocast_dtype)
def _set_dtype(machine: Machine, frame: Frame, args: Arguments, kwargs: Keywords) -> Outcome:
    if len(args) != 2 or kwargs or type(args[0]) is not str:
        return MISSING
    machine.recorder.ambient.row(args[0])
    torch.set_autocast_dtype(*args)
    frame.stack.append(None)
    return None


@special(torch.set_autocast_cache_enabled)
def _set_cache(machine: Machine, frame: Frame, args: Arguments, kwargs: Keywords) -> Outcome:
    torch.set_autocast_cache_enabled(*args, **kwargs)
    frame.stack.append(None)
    return None
