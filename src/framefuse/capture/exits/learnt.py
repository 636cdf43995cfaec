"""Runs one instruction as an opaque step of its own, after an earlier recording ended at it."""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import TypeAlias

from framefuse.capture.interp.continuations import DROP, PushTruth
from framefuse.capture.interp.machine import Handler, Machine
from framefuse.capture.opcodes.operators import COMPARE, FUNCTIONS, IN_PLACE
from framefuse.capture.program.decoded import HANDLERS
from framefuse.capture.program.frame import Frame, Pending
from framefuse.capture.program.markers import NULL, Outcome
from framefuse.ir.trace import formatted
from framefuse.ir.values import Arguments, Function, Value

# What one instruction does: a callable, its arguments, and what becomes of the outcome.
Operation: TypeAlias = tuple[Function, Arguments, Pending | None]
Taken = Callable[[Frame, int], Operation]


def _pop(frame: Frame, count: int) -> list[Value]:
    taken = frame.stack[-count:]
    del frame.stack[-count:]
    return taken


def _subscript(frame: Frame, argument: int) -> Operation:
    holder, key = _pop(frame, 2)
    return operator.getitem, (holder, key), None


def _store_subscript(frame: Frame, argument: int) -> Operation:
    value, holder, key = _pop(frame, 3)
    return operator.setitem, (holder, key, value), DROP


def _delete_subscript(frame: Frame, argument: int) -> Operation:
    holder, key = _pop(frame, 2)
    return operator.delitem, (holder, key), DROP


def _attribute(frame: Frame, argument: int) -> Operation:
    return getattr, (frame.stack.pop(), frame.code.names[argument]), None


def _method(frame: Frame, argument: int) -> Operation:
    holder = frame.stack.pop()
    frame.stack.append(NULL)
    return getattr, (holder, frame.code.names[argument]), None


def _store_attribute(frame: Frame, argument: int) -> Operation:
    value, holder = _pop(frame, 2)
    return setattr, (holder, frame.code.names[argument], value), DROP


def _delete_attribute(frame: Frame, argument: int) -> Operation:
    return delattr, (frame.stack.pop(), frame.code.names[argument]), DROP


def _binary(frame: Frame, argument: int) -> Operation:
    left, right = _pop(frame, 2)
    return (FUNCTIONS[argument] if argument < 13 else IN_PLACE[argument - 13]), (left, right), None


def _compare(frame: Frame, argument: int) -> Operation:
    left, right = _pop(frame, 2)
    return COMPARE[argument][1], (left, right), None


def _contains(frame: Frame, argument: int) -> Operation:
    value, container = _pop(frame, 2)
    return operator.contains, (container, value), PushTruth(bool(argument))


def _iterator(frame: Frame, argument: int) -> Operation:
    return iter, (frame.stack.pop(),), None


def _set_display(frame: Frame, argument: int) -> Operation:
    return set_of, tuple(_pop(frame, argument)), None


def _dict_display(frame: Frame, argument: int) -> Operation:
    return dict_of, tuple(_pop(frame, 2 * argument)), None


def _add(frame: Frame, argument: int) -> Operation:
    (value,) = _pop(frame, 1)
    return set.add, (frame.stack[-argument], value), DROP


def _add_entry(frame: Frame, argument: int) -> Operation:
    value = _pop(frame, 2)
    return operator.setitem, (frame.stack[-argument], *value), DROP


def _format(frame: Frame, argument: int) -> Operation:
    spec = frame.stack.pop() if argument & 4 else ""
    return formatted, (frame.stack.pop(), argument & 3, spec), None


def set_of(*members: Value) -> set[Value]:
    """What a display of a set gives."""
    return set(members)


def dict_of(*parts: Value) -> dict[Value, Value]:
    """What a display of a dict gives, from keys and values in turn."""
    return dict(zip(parts[::2], parts[1::2], strict=True))


OPERATIONS: dict[str, Taken] = {
    "BINARY_SUBSCR": _subscript,
    "STORE_SUBSCR": _store_subscript,
    "DELETE_SUBSCR": _delete_subscript,
    "LOAD_ATTR": _attribute,
    "LOAD_METHOD": _method,
    "STORE_ATTR": _store_attribute,
    "DELETE_ATTR": _delete_attribute,
    "BINARY_OP": _binary,
    "COMPARE_OP": _compare,
    "CONTAINS_OP": _contains,
    "GET_ITER": _iterator,
    "BUILD_SET": _set_display,
    "BUILD_MAP": _dict_display,
    "SET_ADD": _add,
    "MAP_ADD": _add_entry,
    "FORMAT_VALUE": _format,
}
CALLS = ("CALL", "CALL_KW", "CALL_FUNCTION_EX")


def can_step(handler: Handler) -> bool:
    """Whether the instruction with this handler can be a step of its own."""
    return handler in BY_HANDLER or handler in CALL_HANDLERS


def step(machine: Machine, frame: Frame, handler: Handler, argument: int, why: tuple[str, str]) -> Outcome:
    """Executes an instruction as an opaque step, for the reason (code, detail) that ended an earlier recording."""
    if not machine.exits.breakable():
        ambient = machine.recorder.ambient
        inside = any(stretch.open for stretch in ambient.inference) or any(each.open for each in ambient.filters)
        if machine.recorder.alive and inside:
            machine.recorder.kill(*why)  # the next recording breaks where the mode is entered, or filters are set
        return handler(machine, frame, argument)
    if handler in CALL_HANDLERS:
        machine.calls.forced = why
        return handler(machine, frame, argument)
    target, args, continuation = BY_HANDLER[handler](frame, argument)
    return machine.exits.opaque(frame, target, args, {}, continuation, *why)


BY_HANDLER: dict[Handler, Taken] = {HANDLERS[name]: taken for name, taken in OPERATIONS.items()}
CALL_HANDLERS = frozenset(HANDLERS[name] for name in CALLS)
