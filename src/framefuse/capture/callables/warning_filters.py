"""Enters and leaves ``warnings.catch_warnings`` in a recording: what its own filters drop there is told by nobody.

A segment begins and ends outside, as no effect could put the filters in force for code behind a break. A recording that
ends within, or in which something is told there, learns that: the next one breaks where the filters are put in force.
"""

from __future__ import annotations

import inspect
import types
import warnings

import torch

from framefuse.capture.callables.steps import invoke
from framefuse.capture.facts.atoms import ATOMS
from framefuse.capture.interp.machine import Machine, Special
from framefuse.capture.interp.registry import special
from framefuse.capture.program.frame import Frame
from framefuse.capture.program.markers import MISSING, Outcome
from framefuse.capture.recording.recorder import Recorder
from framefuse.capture.recording.state import FilterStretch
from framefuse.capture.recording.warning_stretches import innermost
from framefuse.ir.own_class import is_a
from framefuse.ir.values import Arguments, Function, Keywords

_CLASS = warnings.catch_warnings
_ENTER: types.FunctionType = vars(_CLASS)["__enter__"]
_EXIT: types.FunctionType = vars(_CLASS)["__exit__"]
OPTIONS = frozenset(("action", "category", "lineno", "append"))


def _learnt(machine: Machine) -> bool:
    points = machine.exits.points
    return not machine.recorder.alive or (points is not None and _ENTER.__code__ in points.learnt)


def _are_plain(values: Arguments) -> bool:
    return all(type(part) in ATOMS or (is_a(part, type) and issubclass(part, Warning)) for part in values)


@special(_CLASS)
def _make(machine: Machine, frame: Frame, args: Arguments, kwargs: Keywords) -> Outcome:
    if _learnt(machine) or args or not OPTIONS.issuperset(kwargs) or not _are_plain((*kwargs.values(),)):
        return MISSING
    frame.stack.append(_CLASS(**kwargs))
    return None


@special(_ENTER)
def _enter(machine: Machine, frame: Frame, args: Arguments, kwargs: Keywords) -> Outcome:
    recorder = machine.recorder
    if _learnt(machine) or recorder.region or recorder.transformed is not None or len(args) != 1 or kwargs:
        return MISSING
    (context,) = args
    if type(context) is not _CLASS or recorder.sources.knows(context):
        return MISSING
    state = vars(context)
    if state["_module"] is not warnings or state["_record"] or state["_entered"]:
        return MISSING
    with torch._C.DisableTorchFunction():
        _ENTER(context)
    first = state["_filter"] is not None and not state["_filter"][-1]  # before all others
    recorder.ambient.filters.append(FilterStretch(context, list(warnings.filters[:first])))
    machine.exits.sealed += 1
    frame.stack.append(None)
    return None


@special(_EXIT)
def _exit(machine: Machine, frame: Frame, args: Arguments, kwargs: Keywords) -> Outcome:
    recorder = machine.recorder
    stretch = innermost(recorder.ambient)
    if stretch is None or not args or args[0] is not stretch.context or kwargs:
        return MISSING
    machine.exits.sealed -= 1
    stretch.open = False
    with torch._C.DisableTorchFunction():
        _EXIT(*args)
    if recorder.alive:
        recorder.journal.invoke(invoke, (_renewed, (), {}))
    frame.stack.append(None)
    return None


def _renewed() -> None:
    """What entering and leaving does that stays: what was told once may be told again."""
    with _CLASS():
        pass


def _adding(target: Function) -> Special:
    last = len(inspect.signature(target).parameters) - 1

    def add(machine: Machine, frame: Frame, args: Arguments, kwargs: Keywords) -> Outcome:
        stretch = innermost(machine.recorder.ambient)
        if stretch is None or not machine.recorder.alive or not _are_plain((*args, *kwargs.values())):
            return MISSING
        target(*args, **kwargs)
        if not (args[last] if len(args) > last else kwargs.get("append")):  # it stands before all others
            first = warnings.filters[0]
            stretch.added = [first, *(row for row in stretch.added if row != first)]
        frame.stack.append(None)
        return None

    return add


special(warnings.simplefilter)(_adding(warnings.simplefilter))
special(warnings.filterwarnings)(_adding(warnings.filterwarnings))


def settle(recorder: Recorder) -> None:
    """Ends the recording where a stretch under filters of its own is open."""
    if innermost(recorder.ambient) is not None:
        recorder.kill("snapshot", "filters of warnings, which are to be left behind it")


def learn(machine: Machine) -> None:
    """The recording ended: where it had put filters in force, the next one breaks there."""
    points = machine.exits.points
    if points is not None and machine.recorder.ambient.filters:
        machine.exits.learnt |= points.learn(_ENTER.__code__, 0, None)  # a mark: no recording runs this code itself
