"""Hears the warnings of Python functions of libraries that run as they are, and has them told at later calls as the
program's own are.
"""

from __future__ import annotations

import functools
import re
import sys
import threading
import types
import warnings
from collections.abc import Callable, Iterable

import torch

from framefuse.capture.callables.hearers import Hearers
from framefuse.capture.interp import stacks
from framefuse.capture.interp.machine import Machine
from framefuse.capture.program import leaves
from framefuse.capture.program.tracebacks import is_framefuse
from framefuse.capture.recording.warning_stretches import dropped, innermost
from framefuse.ir.native_warnings import Hearing, unheard
from framefuse.ir.own_class import is_a
from framefuse.ir.values import Arguments, Function, Value

WARN = warnings.warn


def overheard(machine: Machine, target: Function, call: Callable[[], Value]) -> Value:
    """What ``call`` gives, which calls ``target``. Whoever has put a function of their own in the place of
    ``warnings.warn`` hears it now alone.
    """
    if type(target) is not types.FunctionType:
        with Hearing(machine.recorder.tell):
            return call()
    if warnings.warn is not WARN:
        return call()
    ear = functools.partial(_hear, machine, target, threading.get_ident())
    warnings.warn = ear
    try:
        return call()
    finally:
        if warnings.warn is ear:
            warnings.warn = WARN


def _hear(
    machine: Machine,
    target: Function,
    thread: int,
    message: str | Warning,
    category: type[Warning] | None = None,
    stacklevel: int = 1,
    source: Value = None,
    **more: Value,
) -> None:
    """Warns as ``warnings.warn`` would where the library stands, and notes it."""
    if threading.get_ident() != thread or more:
        WARN(message, category, stacklevel + 1, source, **more)
        return
    inside = _frames_of_library(sys._getframe(1))
    level = stacklevel - len(inside)
    kind = type(message) if is_a(message, Warning) else category or UserWarning
    told: Function = WARN
    args: Arguments = (message, category, level, source)
    if level < 1:  # put down to a line of its own
        told, args = _warn_at, (message, category, inside[max(stacklevel, 1) - 1])
    with torch._C.DisableTorchFunction(), unheard():
        text = message if type(message) is str and source is None else None
        if not machine.recorder.alive:
            pass  # it is only told
        elif innermost(machine.recorder.ambient) is not None:
            if dropped(machine.recorder.ambient, str(message), kind):
                machine.recorder.note_warning()
                return
            machine.recorder.kill("native-call", leaves.title(target))
        elif text is not None and Hearers(machine).of_warnings(text, kind, level if level >= 1 else None):
            machine.recorder.note_warning()
            if _tells_sizes(text, machine.recorder.relations.hints.values()):
                machine.recorder.relations.pin_sizes()
            machine.recorder.journal.invoke(stacks.from_callers(machine), (told, args, {}))
        else:
            machine.recorder.kill("native-call", leaves.title(target))
        stacks.from_callers(machine)(told, args, {})


def _tells_sizes(text: str, sizes: Iterable[int]) -> bool:
    """Whether a text that was made out of sight may be another at other sizes."""
    return "torch.Size(" in text or not {*map(int, re.findall(r"\d+", text))}.isdisjoint(sizes)


Place = tuple[dict[str, Value], str, int]  # globals, file and line


def _frames_of_library(frame: types.FrameType | None) -> list[Place]:
    """The frames from the one that warns to where framefuse called the function, innermost first."""
    found: list[Place] = []
    while frame is not None and not is_framefuse(frame):
        found.append((frame.f_globals, frame.f_code.co_filename, frame.f_lineno))
        frame = frame.f_back
    return found


def _warn_at(message: str | Warning, category: type[Warning] | None, place: Place) -> None:
    """A warning that is put down to a line of a module, which remembers it."""
    space, file, line = place
    known = space.setdefault("__warningregistry__", {})
    warnings.warn_explicit(message, category or UserWarning, file, line, space.get("__name__"), known)
