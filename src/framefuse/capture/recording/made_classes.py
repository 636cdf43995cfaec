"""Notes classes that were made during the call, with the functions in them."""

from __future__ import annotations

import types

from framefuse.capture.recording.recorder import Recorder
from framefuse.ir.own_class import is_a
from framefuse.ir.values import Value


def enter_made(recorder: Recorder, cls: type) -> None:
    """Notes a class that was made during the call, with the functions that native code wrote for it."""
    if not recorder.alive:
        return
    recorder.sources.note_made(cls)
    for value in vars(cls).values():
        for part in (value, *_inside(value)):
            if type(part) is types.FunctionType and not recorder.sources.knows(part):
                recorder.sources.note_made(part)


def _inside(value: Value) -> tuple[Value, ...]:
    if is_a(value, (classmethod, staticmethod)):
        return (value.__func__,)
    if is_a(value, property):
        return (value.fget, value.fset, value.fdel)
    return (getattr(value, "__wrapped__", None),) if type(value) is types.FunctionType else ()
