"""Dicts whose numbers move, and their views: where native code or a loop takes one apart at once, its numbers stay
run-time values.
"""

from __future__ import annotations

from collections import OrderedDict, defaultdict

from framefuse.capture.interp.machine import Machine
from framefuse.capture.program.decoded import HANDLERS
from framefuse.capture.program.equivalents import VIEWS_OF_DICTS
from framefuse.capture.program.frame import Frame
from framefuse.capture.program.lookups import is_plain_sequence
from framefuse.capture.program.markers import MISSING, NULL
from framefuse.capture.program.natives import known_as
from framefuse.ir.containers import elements, entries
from framefuse.ir.values import Arguments, Function, Value

DICTS = frozenset((dict, OrderedDict, defaultdict))  # no method of theirs is the user's
TAKING_APART = ("GET_ITER", "LIST_EXTEND", "SET_UPDATE", "UNPACK_SEQUENCE", "UNPACK_EX")


def view(machine: Machine, frame: Frame, holder: Value, name: str) -> Value:
    """What stands for ``holder.keys()``, ``.values()`` or ``.items()`` where ``frame`` iterates over it once and keeps
    it nowhere: a generator of the interpreter, which reads entry by entry. MISSING for any other view: whoever has
    that may look at it unseen, so all that lies in the dict is held to its value.
    """
    sealed = machine.exits.sealed or frame is not machine.frames[-1]
    if sealed or not _moves(machine, holder) or not _taken_apart(frame):
        return MISSING
    return machine.call_nested(VIEWS_OF_DICTS[name], (holder,))


def copied(machine: Machine, holder: Value) -> Value:
    """``holder.copy()`` with run-time values, MISSING where no number moves."""
    if type(holder) is list:
        copy = _elements(machine, holder)
        return MISSING if copy is holder else copy
    return _copy(machine, holder) if type(holder) is dict and _moves(machine, holder) else MISSING


def given(machine: Machine, target: Function, args: Arguments) -> tuple[Value, ...]:
    """The arguments of native code, which gets the keys or a copy of a dict, and the elements of a list or tuple,
    whose numbers move where it takes its content and lets go of it.
    """
    takes = known_as(target).takes
    if takes == "keys":
        return tuple([_elements(machine, part) for part in args])
    if takes == "all" or _updates_new(machine, target):
        return tuple([_copy(machine, part) if _moves(machine, part) else part for part in args])
    return args


def _elements(machine: Machine, part: Value) -> Value:
    if _moves(machine, part):
        return list(_copy(machine, part))
    contents = machine.recorder.contents
    if not is_plain_sequence(type(part)) or not contents.holds_moving_number(part):
        return part
    if contents.is_volatile(part):  # its length too is another one each time: a step takes it as it is
        return part
    contents.guard_length(part)
    return [contents.item(part, number, value) for number, value in enumerate(elements(part))]


def _updates_new(machine: Machine, target: Function) -> bool:
    """Whether a callable is the ``update`` of a dict that was made during the call."""
    holder = getattr(target, "__self__", None)
    return type(holder) is dict and target.__name__ == "update" and not machine.recorder.sources.knows(holder)


def _moves(machine: Machine, holder: Value) -> bool:
    return type(holder) in DICTS and machine.recorder.contents.holds_moving_number(holder)


def _copy(machine: Machine, holder: Value) -> Value:
    contents = machine.recorder.contents
    contents.guard_extent(holder)
    pairs = [(key, contents.item(holder, key, part)) for key, part in entries(holder)]
    return OrderedDict(pairs) if type(holder) is OrderedDict else dict(pairs)


def _taken_apart(frame: Frame) -> bool:
    """Whether the call under way has its result taken from the stack by an instruction that iterates over it."""
    steps = frame.code.steps
    if frame.step < 1 or steps[frame.step - 1][0] is not HANDLERS["CALL"]:
        return False
    handler, argument = steps[frame.step]
    if handler is HANDLERS["CALL"]:
        return argument > 0 and _iterates(frame, argument)
    if handler is HANDLERS["CALL_FUNCTION_EX"]:
        return not argument & 1  # with keywords, those lie above
    return any(handler is HANDLERS[name] for name in TAKING_APART)


def _iterates(frame: Frame, count: int) -> bool:
    """Whether what is called next is a builtin that iterates over the last of its ``count`` arguments."""
    below = frame.stack[len(frame.stack) - count - 1 : len(frame.stack) - count + 1]
    called = [part for part in below if part is not NULL]
    if len(called) != 1 or frame.keywords:
        return False
    row = known_as(called[0])
    return row.walks == "last" or (count == 1 and (row.walks == "alone" or row.equivalent is not None))
