"""Raises, matches and ends exceptions, and enters ``with`` blocks."""

from __future__ import annotations

import types

from framefuse.capture.interp.continuations import Raise
from framefuse.capture.interp.machine import Machine
from framefuse.capture.interp.registry import handles
from framefuse.capture.program.frame import Frame
from framefuse.capture.program.lookups import python_method, type_get
from framefuse.capture.program.markers import MISSING, SWITCH, Outcome
from framefuse.ir.own_class import is_a
from framefuse.ir.values import Value


@handles("PUSH_EXC_INFO")
def push_exc_info(machine: Machine, frame: Frame, argument: int) -> None:
    error = frame.stack.pop()
    frame.stack.append(machine.handled)
    frame.stack.append(error)
    machine.handled = error


@handles("POP_EXCEPT")
def pop_except(machine: Machine, frame: Frame, argument: int) -> None:
    machine.handled = frame.stack.pop()


def _check_kinds(machine: Machine, kinds: Value) -> tuple[Value, ...]:
    machine.recorder.contents.guard_shallow_contents(kinds)
    listed = kinds if is_a(kinds, tuple) else (kinds,)
    for kind in listed:
        if not (is_a(kind, type) and issubclass(kind, BaseException)):
            raise TypeError("catching classes that do not inherit from BaseException is not allowed")
    return listed


@handles("CHECK_EXC_MATCH")
def check_exc_match(machine: Machine, frame: Frame, argument: int) -> None:
    kinds = frame.stack.pop()
    # As in C, ``except`` asks the classes themselves and no metaclass.
    mro = type(frame.stack[-1]).__mro__
    frame.stack.append(any(kind in mro for kind in _check_kinds(machine, kinds)))


@handles("CHECK_EG_MATCH")
def check_eg_match(machine: Machine, frame: Frame, argument: int) -> None:
    kinds = frame.stack.pop()
    for kind in _check_kinds(machine, kinds):
        if issubclass(kind, BaseExceptionGroup):
            raise TypeError("catching ExceptionGroup with except* is not allowed. Use except instead.")
    error = frame.stack[-1]
    match: BaseException | None = None
    rest: BaseException | None = error
    if is_a(error, kinds):
        match, rest = error if is_a(error, BaseExceptionGroup) else BaseExceptionGroup("", [error]), None
    elif is_a(error, BaseExceptionGroup):
        match, rest = error.split(kinds)
    if match is not None:
        frame.stack[-1] = rest
        machine.handled = match
    frame.stack.append(match)


@handles("PREP_RERAISE_STAR")
def prep_reraise_star(machine: Machine, frame: Frame, argument: int) -> None:
    raised = [error for error in frame.stack.pop() if error is not None]
    frame.stack[-1] = _left_of_group(frame.stack[-1], raised)


def _left_of_group(group: BaseException, errors: list[BaseException]) -> BaseException | None:
    """What ``try``/``except*`` raises in the end: what no clause took, in the shape of the group, and what is new."""
    if not is_a(group, BaseExceptionGroup):
        return errors[0] if errors else None
    again = [error for error in errors if _is_part(error, group)]
    new = [error for error in errors if not _is_part(error, group)]
    leaves = {id(leaf) for error in again for leaf in _leaves(error)}
    rest = group.subgroup(lambda error: id(error) in leaves) if leaves else None
    if rest is not None:
        new.append(rest)
    return new[0] if len(new) == 1 else BaseExceptionGroup("", new) if new else None


def _is_part(error: BaseException, group: BaseException) -> bool:
    return is_a(error, BaseExceptionGroup) and all(
        getattr(error, name, None) is getattr(group, name, None)
        for name in ("__notes__", "__traceback__", "__cause__", "__context__")
    )


def _leaves(error: BaseException) -> list[BaseException]:
    if not is_a(error, BaseExceptionGroup):
        return [error]
    return [leaf for part in error.exceptions for leaf in _leaves(part)]


@handles("RERAISE")
def reraise(machine: Machine, frame: Frame, argument: int) -> Outcome:
    machine.again = machine.raised = frame.stack.pop()
    return SWITCH


@handles("RAISE_VARARGS")
def raise_varargs(machine: Machine, frame: Frame, argument: int) -> Outcome:
    if argument == 0:
        error = machine.current()
        if error is None:
            raise RuntimeError("No active exception to reraise")
        machine.again = machine.raised = error
        return SWITCH
    cause = frame.stack.pop() if argument == 2 else MISSING
    error = frame.stack.pop()
    if is_a(error, type) and issubclass(error, BaseException):
        machine.recorder.sources.guard_version(error)
        machine.calls.call(frame, error, (), {}, Raise(cause, error))
        return SWITCH
    if not is_a(error, BaseException):
        raise TypeError("exceptions must derive from BaseException")
    machine.throw(error, cause)
    return SWITCH


@handles("BEFORE_WITH")
def before_with(machine: Machine, frame: Frame, argument: int) -> Outcome:
    manager = frame.stack.pop()
    kind = type(manager)
    enter, leave = type_get(kind, "__enter__"), type_get(kind, "__exit__")
    for method, text in ((enter, ""), (leave, " (missed __exit__ method)")):
        if method is MISSING:
            raise TypeError(f"'{kind.__name__}' object does not support the context manager protocol{text}")
    machine.recorder.sources.guard_type(manager)
    machine.recorder.sources.guard_version(kind)
    frame.stack.append(_bound(leave, manager, "__exit__"))
    return machine.calls.call(frame, _bound(enter, manager, "__enter__"), (), {})


def _bound(method: Value, manager: Value, name: str) -> Value:
    if type(method) is not types.FunctionType:
        method = python_method(type(manager), name)
    return getattr(manager, name) if method is None else types.MethodType(method, manager)


@handles("WITH_EXCEPT_START")
def with_except_start(machine: Machine, frame: Frame, argument: int) -> Outcome:
    error = frame.stack[-1]
    return machine.calls.call(frame, frame.stack[-4], (type(error), error, error.__traceback__), {})
