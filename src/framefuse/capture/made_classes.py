"""Notes classes that were made during the call, with the functions in them."""

from __future__ import annotations

import types
from typing import Any


def enter_made(recorder: Any, cls: type) -> None:
    """Notes a class that was made during the call, with the functions that native code wrote for it."""
    if not recorder.alive:
        return
    made = recorder.sources.made
    made[id(cls)] = cls
    for value in vars(cls).values():
        for part in (value, *_inside(value)):
            if type(part) is types.FunctionType and id(part) not in recorder.sources.known:
                made[id(part)] = part


def _inside(value: Any) -> tuple[Any, ...]:
    if isinstance(value, (classmethod, staticmethod)):
        return (value.__func__,)
    if isinstance(value, property):
        return (value.fget, value.fset, value.fdel)
    return (getattr(value, "__wrapped__", None),) if type(value) is types.FunctionType else ()
