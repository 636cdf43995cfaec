"""Computes unary and binary operators, comparisons, identity and membership."""

from __future__ import annotations

import decimal
import functools
import operator
from collections import deque

import torch

from framefuse.capture.callables.mutations import mutate
from framefuse.capture.callables.unseen import HASHING, compared, hidden, key_in, lacks
from framefuse.capture.facts.atoms import ATOMS
from framefuse.capture.facts.hidden_state import refuse_hidden_state
from framefuse.capture.facts.library_values import Arithmetic
from framefuse.capture.facts.nested_numbers import pin_nested, reads_values, sought
from framefuse.capture.facts.numbers import NUMBERS, TRACKED, applied, bare, is_nan
from framefuse.capture.facts.texts import Text
from framefuse.capture.interp.continuations import PUSH_NEGATED, PushAsked, PushOperation, PushTruth
from framefuse.capture.interp.machine import Machine
from framefuse.capture.interp.registry import FORMS, handles
from framefuse.capture.program.equivalents import contains_
from framefuse.capture.program.frame import Frame
from framefuse.capture.program.lookups import python_method, type_get
from framefuse.capture.program.markers import MISSING, Outcome
from framefuse.capture.recording import element_reads
from framefuse.ir.containers import elements
from framefuse.ir.own_class import is_a
from framefuse.ir.values import Function, Value

ORDER = "add and floordiv lshift matmul mul mod or pow rshift sub truediv xor".split()
FUNCTIONS = [getattr(operator, {"and": "and_", "or": "or_"}.get(name, name)) for name in ORDER]
IN_PLACE = [getattr(operator, "i" + name) for name in ORDER]
COMPARE = [(f"__{name}__", getattr(operator, name)) for name in ("lt", "le", "eq", "ne", "gt", "ge")]
SYMBOLS = ("<", "<=", "==", "!=", ">", ">=")
REFLECTED_COMPARE = {
    "__lt__": "__gt__",
    "__le__": "__ge__",
    "__eq__": "__eq__",
    "__ne__": "__ne__",
    "__gt__": "__lt__",
    "__ge__": "__le__",
}
TENSORS = frozenset((torch.Tensor, torch.nn.Parameter))
DIRECT = NUMBERS | TENSORS
TEXT_KINDS = frozenset((str, Text))
MUTATED_IN_PLACE = {
    "add": "__iadd__",
    "or": "__ior__",
    "and": "__iand__",
    "sub": "__isub__",
    "xor": "__ixor__",
    "mul": "__imul__",
}


@handles("BINARY_OP")
def binary_op(machine: Machine, frame: Frame, argument: int) -> Outcome:
    stack = frame.stack
    right = stack.pop()
    left = stack.pop()
    if argument < 13:
        name = ORDER[argument]
        if type(left) in DIRECT and type(right) in DIRECT and not (FORMS.get() and FUNCTIONS[argument] in FORMS.get()):
            stack.append(applied(FUNCTIONS[argument], left, right, f"__r{name}__"))
            return None
        return machine.operations.binary(frame, FUNCTIONS[argument], left, right, f"__{name}__", f"__r{name}__")
    argument -= 13
    name, kind = ORDER[argument], type(left)
    if kind in DIRECT and type(right) in DIRECT:
        stack.append(applied(IN_PLACE[argument], left, right, f"__r{name}__"))
        return None
    method = python_method(kind, f"__i{name}__")
    if method is not None:
        function = IN_PLACE[argument]
        rest = machine.operations.attempts(function, left, right, f"__{name}__", f"__r{name}__")
        return machine.calls.call(frame, method, (left, right), {}, PushOperation(rest, function, left, right))
    if is_a(left, (list, dict, set, deque)):
        if machine.recorder.sources.knows(left):
            if name == "mul" and not hasattr(type(right), "__index__"):
                IN_PLACE[argument](left, right)  # raises the operator's own error, not the method's
            changed = mutate(machine, left, MUTATED_IN_PLACE.get(name, ""), (right,), {})
            if changed is not MISSING:
                stack.append(left)
                return None
            machine.recorder.kill("write", f"a {kind.__name__}")
        else:
            right = machine.operations.iterable(right, measured=kind is list) if name == "add" else right
            right = right.plain() if type(right) in TRACKED else right
            machine.recorder.contents.guard_shallow_contents(right)
        stack.append(IN_PLACE[argument](left, right))
        return None
    return machine.operations.binary(frame, IN_PLACE[argument], left, right, f"__{name}__", f"__r{name}__")


@handles("COMPARE_OP")
def compare_op(machine: Machine, frame: Frame, argument: int) -> Outcome:
    right = frame.stack.pop()
    left = frame.stack.pop()
    name, function = COMPARE[argument]
    if machine.recorder.readers and type(left) in NUMBERS and type(right) in NUMBERS:
        outcome = element_reads.compared(machine.recorder, frame, frame.step, SYMBOLS[argument], left, right)
        if outcome is not None:
            frame.stack.append(outcome)
            return None
    if (type(left) in DIRECT or type(left) is str) and (type(right) in DIRECT or type(right) is str):
        frame.stack.append(applied(function, left, right, REFLECTED_COMPARE[name]))
        return None
    if TEXT_KINDS.issuperset((type(left), type(right))):
        frame.stack.append(function(left, right))
        return None
    return machine.operations.binary(frame, function, left, right, name, REFLECTED_COMPARE[name])


@handles("IS_OP")
def is_op(machine: Machine, frame: Frame, argument: int) -> None:
    right = frame.stack.pop()
    left = frame.stack.pop()
    _identity(machine, left, right)
    same = left is right or _object(left) is _object(right)  # a bare number is a new object each time
    frame.stack.append(same != bool(argument))


def _object(value: Value) -> Value:
    """What the program holds where the interpreter has a number with an expression."""
    return value.__dict__.get("origin", (bare(value),))[0] if type(value) in TRACKED else value


def _identity(machine: Machine, left: Value, right: Value) -> None:
    """The fact behind ``left is right`` where neither is a singleton: objects are known by path, numbers only by
    value.
    """
    if left is None or right is None or type(left) is bool or type(right) is bool:
        for value in (left, right):
            if value is not None and type(value) not in ATOMS:
                machine.recorder.sources.guard_type(value)
        return
    recorder = machine.recorder
    places: list[Value] = [
        value.__dict__.get("origin", (0, None))[1] if type(value) in TRACKED else None for value in (left, right)
    ]
    if None not in places and recorder.alive:
        recorder.sources.fact(places[0], "same" if _object(left) is _object(right) else "different", places[1])
        return
    if type(left) in (int, float, complex, *TRACKED) and type(right) in (int, float, complex, *TRACKED):
        if left is right:  # what was computed once
            return
        recorder.kill("argument", "the identity of numbers")
        return
    sources = recorder.sources
    a, b = sources.source_of(left), sources.source_of(right)
    if is_a(left, torch.Tensor) and is_a(right, torch.Tensor) and (a is None or b is None):
        recorder.compared(left, right)
    if a is not None and b is not None and left is not right and (sources.changes(left) or sources.changes(right)):
        recorder.sources.fact(a, "different", b)
    elif (a is None) != (b is None) and recorder.alive:
        recorder.sources.guard_type(left if b is None else right)


@handles("CONTAINS_OP")
def contains_op(machine: Machine, frame: Frame, argument: int) -> Outcome:
    container = frame.stack.pop()
    value = frame.stack.pop()
    kind = type(container)
    if kind in TENSORS:
        outcome = element_reads.contained(machine.recorder, frame, frame.step, container, value, bool(argument))
        if outcome is not None:
            frame.stack.append(outcome)
            return None
    method = python_method(kind, "__contains__")
    if method is not None:
        machine.recorder.sources.guard_type(container)
        return machine.calls.call(frame, method, (container, value), {}, PushTruth(bool(argument)))
    if type_get(kind, "__contains__") is MISSING and python_method(kind, "__iter__") is not None:
        return machine.calls.call(frame, contains_, (container, value), {}, PushTruth(bool(argument)))
    hidden(machine, container, "__contains__", "__iter__")
    sources, contents = machine.recorder.sources, machine.recorder.contents
    if type(value) is Text and kind in (dict, set, frozenset) and not contents.has_changed(container):
        if value.lacking(elements(container)):
            contents.guard_extent(container)
            frame.stack.append(bool(argument))
            return None
    if is_a(container, HASHING) and not frame.code.grows and lacks(machine, container, value):
        frame.stack.append(bool(argument))
        return None
    if type(value) in TRACKED and (not is_a(container, (tuple, list)) or reads_values(container)):
        value = key_in(machine, container, value) if is_a(container, HASHING) else value.plain()
    if not contents.guard_membership(container, value):
        contents.guard_shallow_contents(container)
    if kind is range:
        pin_nested((container.start, container.stop, container.step))
    elif is_a(container, (list, tuple, deque)) and sources.knows(container):
        container = [contents.item(container, number, part) for number, part in enumerate(elements(container))]
    if is_a(container, HASHING):
        known = sources.knows(container)  # what the call put into its own was told apart there
        compared(machine, *(() if type(value) in ATOMS else (value, *(elements(container) if known else ()))))
    else:
        compared(machine, container, value)
    frame.stack.append(((sought(value, container) if is_nan(value) else value) in container) != bool(argument))
    return None


@handles("UNARY_NOT")
def unary_not(machine: Machine, frame: Frame, argument: int) -> Outcome:
    value = frame.stack[-1]
    if machine.operations.reads_value(value):
        machine.operations.decide(frame, frame.stack.pop(), PUSH_NEGATED)
    asked = machine.operations.ask(frame, value, functools.partial(PushAsked, True), True)
    if asked is MISSING:
        frame.stack[-1] = not machine.operations.truth(value)
        return None
    return asked


def _unary(name: str, function: Function) -> Value:
    def run(machine: Machine, frame: Frame, argument: int) -> Outcome:
        value = frame.stack.pop()
        if type(value) not in DIRECT:
            method = python_method(type(value), name)
            if method is not None:
                return machine.calls.call(frame, method, (value,), {})
            refuse_hidden_state(machine.recorder.sources, value)
            if type(value) is decimal.Decimal:
                with Arithmetic(machine.recorder.sources):
                    value = function(value)
                frame.stack.append(value)
                return None
        frame.stack.append(function(value))
        return None

    return run


handles("UNARY_NEGATIVE")(_unary("__neg__", operator.neg))
handles("UNARY_POSITIVE")(_unary("__pos__", operator.pos))
handles("UNARY_INVERT")(_unary("__invert__", operator.invert))
