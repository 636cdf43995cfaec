"""Raises, matches and ends exceptions, and enters ``with`` blocks."""

from __future__ import annotations

import types
from typing import Any

from framefuse.capture.attributes import type_get
from framefuse.capture.code import handles
from framefuse.capture.frame import MISSING, Frame


@handles("PUSH_EXC_INFO")
def push_exc_info(machine: Any, frame: Frame, argument: int) -> None:
    error = frame.stack.pop()
    frame.stack.append(machine.handled)
    frame.stack.append(error)
    machine.handled = error


@handles("POP_EXCEPT")
def pop_except(machine: Any, frame: Frame, argument: int) -> None:
    machine.handled = frame.stack.pop()


@handles("CHECK_EXC_MATCH")
def check_exc_match(machine: Any, frame: Frame, argument: int) -> None:
    kinds = frame.stack.pop()
    for kind in kinds if isinstance(kinds, tuple) else (kinds,):
        if not (isinstance(kind, type) and issubclass(kind, BaseException)):
            raise TypeError("catching classes that do not inherit from BaseException is not allowed")
    frame.stack.append(isinstance(frame.stack[-1], kinds))


@handles("RERAISE")
def reraise(machine: Any, frame: Frame, argument: int) -> None:
    raise frame.stack.pop()


@handles("RAISE_VARARGS")
def raise_varargs(machine: Any, frame: Frame, argument: int) -> None:
    if argument == 0:
        if machine.handled is None:
            raise RuntimeError("No active exception to reraise")
        raise machine.handled
    cause = frame.stack.pop() if argument == 2 else MISSING
    error = frame.stack.pop()
    if isinstance(error, type) and issubclass(error, BaseException):
        error = _instantiate(machine, error)
    if not isinstance(error, BaseException):
        raise TypeError("exceptions must derive from BaseException")
    if cause is not MISSING:
        if isinstance(cause, type) and issubclass(cause, BaseException):
            cause = _instantiate(machine, cause)
        if cause is not None and not isinstance(cause, BaseException):
            raise TypeError("exception causes must derive from BaseException")
        error.__cause__ = cause
    raise error


def _instantiate(machine: Any, kind: type) -> Any:
    machine.recorder.sources.version(kind)
    return kind()


@handles("BEFORE_WITH")
def before_with(machine: Any, frame: Frame, argument: int) -> Any:
    manager = frame.stack.pop()
    kind = type(manager)
    enter, leave = type_get(kind, "__enter__"), type_get(kind, "__exit__")
    for found, text in ((enter, ""), (leave, " (missed __exit__ method)")):
        if found is MISSING:
            raise TypeError(f"'{kind.__name__}' object does not support the context manager protocol{text}")
    machine.recorder.sources.typed(manager)
    machine.recorder.sources.version(kind)
    frame.stack.append(_bound(leave, manager, "__exit__"))
    return machine.call(frame, _bound(enter, manager, "__enter__"), (), {})


def _bound(found: Any, manager: Any, name: str) -> Any:
    return types.MethodType(found, manager) if type(found) is types.FunctionType else getattr(manager, name)


@handles("WITH_EXCEPT_START")
def with_except_start(machine: Any, frame: Frame, argument: int) -> Any:
    error = frame.stack[-1]
    return machine.call(frame, frame.stack[-4], (type(error), error, error.__traceback__), {})
