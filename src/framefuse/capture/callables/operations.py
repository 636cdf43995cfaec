"""Chooses the methods that compute a binary operator or comparison, in CPython's order, where Python takes part."""

from __future__ import annotations

import decimal
import enum
import math
import operator
import types
from collections import deque
from collections.abc import Callable

import torch

from framefuse.capture.callables.unseen import PLAIN, compared, compares, hidden, moves, shown, walked
from framefuse.capture.facts.library_values import Arithmetic
from framefuse.capture.facts.nested_numbers import pin_nested, reads_values
from framefuse.capture.facts.numbers import NUMBERS, TRACKED, Integer, bare, computed, made_of, plain_kind, plain_number
from framefuse.capture.facts.texts import Text
from framefuse.capture.interp.continuations import PUSH_ITERATOR, PUSH_NEGATED, Again, PushChecked, PushOperation
from framefuse.capture.interp.machine import Machine, Recovery
from framefuse.capture.interp.protocols import checked
from framefuse.capture.interp.registry import form_of
from framefuse.capture.program.equivalents import DRAWN, FORWARDS, LISTED, TAKEN, WALKED, equal_parts
from framefuse.capture.program.frame import Frame, InterpretedGenerator, Pending
from framefuse.capture.program.iterators import NATIVE_ITERATORS
from framefuse.capture.program.lookups import goes_by_index, is_measured, is_plain_sequence, python_method, type_get
from framefuse.capture.program.markers import MISSING, Outcome
from framefuse.capture.program.services import Attempt
from framefuse.capture.recording.numpy_calls import heed_errors, of_numbers
from framefuse.ir.classes import immutable
from framefuse.ir.native_warnings import Hearing
from framefuse.ir.own_class import is_a
from framefuse.ir.values import Function, Value

SYMBOLS = {
    "add": "+", "and_": "&", "floordiv": "//", "lshift": "<<", "matmul": "@", "mul": "*", "mod": "%", "or_": "|",
    "pow": "** or pow()", "rshift": ">>", "sub": "-", "truediv": "/", "xor": "^", "lt": "<", "le": "<=", "gt": ">",
    "ge": ">=",
}  # fmt: skip
TEXTS = {getattr(operator, name): symbol for name, symbol in SYMBOLS.items()}
TEXTS |= {
    getattr(operator, "i" + name.rstrip("_")): symbol.split()[0] + "="
    for name, symbol in SYMBOLS.items()
    if symbol not in ("<", "<=", ">", ">=")
}
COMPARISONS = frozenset((operator.lt, operator.le, operator.eq, operator.ne, operator.gt, operator.ge))
# These concatenate and repeat only after all methods for numbers have declined.
SEQUENCES = (list, tuple, str, bytes, bytearray, deque)
OPERATOR_METHODS = (types.FunctionType, types.WrapperDescriptorType, types.MethodDescriptorType)  # the last: tensors'
HOLDERS = frozenset((tuple, list, dict))  # whose C code compares what lies in them
COMPARED = (tuple, list)
TUPLES = (tuple, torch.Size)
EQUALITY = (operator.eq, operator.ne)
JOINING = (operator.add, operator.iadd, operator.mul, operator.imul)  # of sequences, which looks into no part
CONCATENATING, REPEATING = (operator.add, operator.iadd), (operator.mul, operator.imul)
STRINGS = (str, Text)
# A string and a number, of which one moves.
REPEATED = {(Text, int), (Text, Integer), (str, Integer), (int, Text), (Integer, Text), (Integer, str)}
SIMPLE = frozenset(
    (
        int,
        float,
        bool,
        str,
        bytes,
        type(None),
        tuple,
        list,
        dict,
        set,
        frozenset,
        slice,
        range,
        torch.Tensor,
        torch.Size,
        torch.nn.Parameter,
    )
)


class Operations:
    """Operators, truth and iteration, where the operands may be objects of the user."""

    def __init__(self, machine: Machine) -> None:
        self.machine = machine
        self.recorder = machine.recorder

    def attempts(
        self, function: Function, left: Value, right: Value, name: str, reflected: str | None
    ) -> tuple[Attempt, ...]:
        """The methods to ask one after the other; none where no Python code takes part."""
        kind, other = plain_kind(type(left)), plain_kind(type(right))
        if is_a(left, torch.Tensor) and hasattr(other, "__torch_function__"):
            return ()  # torch asks both
        compares = function in COMPARISONS
        own = self._operator_method(kind, name)
        back = self._operator_method(other, reflected) if reflected and (compares or other is not kind) else None
        if not (own and type(own[0]) is types.FunctionType) and not (back and type(back[0]) is types.FunctionType):
            return ()
        for value in (left, right):
            if type(value) not in NUMBERS and not is_a(value, torch.Tensor):
                self.recorder.sources.guard_type(value)
                self.recorder.sources.guard_version(type(value))
        attempts: list[Attempt] = []
        if own is not None and kind not in NUMBERS and not (name in ("__add__", "__mul__") and kind in SEQUENCES):
            attempts.append((own[0], (left, right), own[1]))
        if back is not None:
            first = issubclass(other, kind) and other is not kind
            if first and not compares:
                first = back[0] is not type_get(kind, reflected)  # type: ignore[arg-type]
            attempts.insert(0 if first else len(attempts), (back[0], (right, left), back[1]))
        return tuple(attempts)

    def _operator_method(self, kind: type, name: str) -> tuple[Value, bool] | None:
        """The method of a class behind an operator; ``object.__ne__`` is ``__eq__`` negated."""
        method = type_get(kind, name)
        if name == "__ne__" and method is object.__ne__:
            equal = python_method(kind, "__eq__")
            return (equal, True) if equal is not None else (method, False)
        if is_a(method, OPERATOR_METHODS):
            return (method, False)
        standing = python_method(kind, name)
        return None if standing is None else (standing, False)

    def operate(
        self,
        frame: Frame,
        attempts: tuple[Attempt, ...],
        function: Function,
        left: Value,
        right: Value,
        nested: bool = False,
    ) -> Value:
        """Pushes what the first method gives that does not decline; ``nested`` calls run at once."""
        for number, (method, args, negate) in enumerate(attempts):
            if type(method) is types.FunctionType:
                if not negate and not nested:
                    continuation = PushOperation(attempts[number + 1 :], function, left, right)
                    return self.machine.calls.call(frame, method, args, {}, continuation)
                value = self.machine.call_nested(method, args)
            elif is_a(args[0], torch.Tensor):
                with torch._C.DisableTorchFunction():
                    value = method(*args)
                if value is not NotImplemented:  # the same again, for the record
                    value = function(left, right) if args[0] is left else method(*args)
            else:
                value = method(*args)
            if value is not NotImplemented:
                if negate:
                    value = not self.truth(value)
                frame.stack.append(value)
                return None
        frame.stack.append(_undefined(function, left, right))
        return None

    def reads_value(self, value: Value) -> bool:
        """Whether ``bool(value)`` reads a tensor at a place where the recording can break."""
        return is_a(value, torch.Tensor) and bool(self.machine.exits.breakable())

    def decide(self, frame: Frame, value: Value, continuation: Pending | None) -> None:
        """An opaque step that takes the truth of a tensor."""
        self.machine.exits.opaque(frame, bool, (value,), {}, continuation, "branch", "bool of a tensor")

    def truth(self, value: Value) -> bool:
        """``bool(value)``, with the fact that decided it."""
        if value is True or value is False or value is None:
            return value is True
        kind = type(value)
        if kind not in SIMPLE and kind not in TRACKED:
            if not immutable(kind):
                method = python_method(kind, "__bool__")
                if method is not None:
                    self.recorder.sources.guard_type(value)
                    return bool(checked("__bool__", kind, self.machine.call_nested(method, (value,))))
                if type_get(kind, "__bool__") is MISSING:
                    method = python_method(kind, "__len__")
                    if method is not None:
                        return bool(checked("__len__", kind, self.machine.call_nested(method, (value,))))
                hidden(self.machine, value, "__bool__", "__len__")
            self.recorder.sources.guard_type(value)
        self.recorder.contents.guard_filled(value)
        return bool(value)

    def ask(self, frame: Frame, value: Value, then: Callable[[str, type], Pending], pops: bool = False) -> Outcome:
        """Enters the program's method that says whether ``value`` is true, for what ``then`` makes of its name and
        class; MISSING where there is none. ``pops`` takes the value from the stack of ``frame`` first.
        """
        kind = type(value)
        if kind in SIMPLE or kind in TRACKED or immutable(kind) or is_a(value, torch.Tensor):
            return MISSING
        for name in ("__bool__", "__len__"):
            method = python_method(kind, name)
            if method is not None:
                self.recorder.sources.guard_type(value)
                if pops:
                    frame.stack.pop()
                return self.machine.calls.call(frame, method, (value,), {}, then(name, kind))
            if type_get(kind, name) is not MISSING:
                return MISSING
        return MISSING

    def binary(
        self, frame: Frame, function: Function, left: Value, right: Value, name: str, reflected: str | None = None
    ) -> Value:
        """A binary operation or comparison; Python methods of the operands get frames."""
        if complex in (type(left), type(right)):
            left, right = plain_number(left), plain_number(right)
        kind, other = type(left), type(right)
        form = form_of(function, (left, right), {})
        if form is not None:
            return self.machine.calls.call(frame, form, (left, right), {})
        if Text in (kind, other) and function in CONCATENATING and kind in STRINGS and other in STRINGS:
            frame.stack.append(made_of("join", bare(left) + bare(right), (left, right)))
            return None
        if function in REPEATING and (kind, other) in REPEATED:
            frame.stack.append(made_of("repeat", computed(operator.mul, left, right), (left, right)))
            return None
        if kind in HOLDERS and other in HOLDERS and reads_values((left, right)):
            pin_nested((left, right))
        if (kind not in SIMPLE and kind not in TRACKED) or (other not in SIMPLE and other not in TRACKED):
            attempts = self.attempts(function, left, right, name, reflected)
            if attempts:
                return self.operate(frame, attempts, function, left, right)
            hidden(self.machine, left, name)
            if name == "__eq__" and not is_a(left, torch.Tensor):
                self.recorder.sources.guard_type(left)
        if kind in TRACKED and other not in NUMBERS and not is_a(right, torch.Tensor):
            left = left.plain()
        elif other in TRACKED and kind not in NUMBERS and not is_a(left, torch.Tensor):
            right = right.plain()
        elif kind is str or kind is bytes:
            pin_nested(right)
        sources, contents = self.recorder.sources, self.recorder.contents
        if (kind is str or kind is bytes) and function is operator.mod:
            shown(self.machine, right)
        elif (kind not in SIMPLE or is_a(left, PLAIN)) and not (kind in COMPARED and function in JOINING):
            alike = (kind is other and kind in COMPARED) or (kind in TUPLES and other in TUPLES)
            both = alike and function in EQUALITY
            if both and (self._may_move(left, right) or compares(self.machine, (left, right), ("__eq__",))):
                negated = PUSH_NEGATED if function is operator.ne else None
                return self.machine.calls.call(frame, equal_parts, (left, right), {}, negated)
            compared(self.machine, left, right)
        if sources.knows(left):
            contents.guard_deep_contents(left)
        if sources.knows(right):
            contents.guard_deep_contents(right)
        if decimal.Decimal in (kind, other):
            with Arithmetic(sources):
                frame.stack.append(function(left, right))
        elif "numpy" in (kind.__module__, other.__module__):  # whose C code warns
            if of_numbers(left, right):
                heed_errors(sources, function, (left, right), {})
            with Hearing(self.recorder.tell):
                frame.stack.append(function(left, right))
        else:
            frame.stack.append(function(left, right))
        return None

    def _may_move(self, *values: Value) -> bool:
        """Whether a number in containers from outside was seen to change: their parts are compared one by one."""
        sources = self.recorder.sources
        return bool(self.recorder.moving) and any(map(sources.knows, values))

    def iterate(self, frame: Frame, value: Value, stepped: bool = False) -> Outcome:
        """Pushes ``iter(value)``; ``stepped`` where nothing but FOR_ITER takes its elements."""
        kind = type(value)
        if kind is InterpretedGenerator:
            frame.stack.append(value)
            return None
        if not is_a(value, torch.Tensor):
            method = python_method(kind, "__iter__")
            if method is not None:
                self.recorder.sources.guard_type(value)
                self.recorder.sources.guard_version(kind)
                return self.machine.calls.call(frame, method, (value,), {}, PushChecked("__iter__", kind))
            if kind not in SIMPLE and goes_by_index(kind):
                self.recorder.sources.guard_type(value)
                self.recorder.sources.guard_version(kind)
                return self.machine.calls.call(frame, FORWARDS, (value,), {})
            if is_a(value, enum.EnumMeta) and kind.__iter__ is enum.EnumMeta.__iter__:
                value, kind = tuple(value), tuple
            if moves(self.machine, value):
                why = ("native-call", "The order of a set of objects")
                return self.machine.exits.opaque(frame, list, (value,), {}, PUSH_ITERATOR, *why)
            sources, contents = self.recorder.sources, self.recorder.contents
            plain = is_plain_sequence(kind)
            read_later = plain or is_a(value, dict)  # entry by entry
            (contents.guard_extent if read_later else contents.guard_shallow_contents)(value)
            if sources.knows(value):
                if plain and not contents.has_changed(value):
                    if kind is not list:
                        seen = [contents.item(value, number, part) for number, part in enumerate(value)]
                        if any(new is not old for new, old in zip(seen, value, strict=True)):
                            value = seen
                    elif not stepped:  # the list may change while it is iterated: its iterator gives what stands there
                        for number, part in enumerate(value):
                            plain_number(contents.item(value, number, part))
                elif (
                    not is_a(value, (list, tuple, dict, set, frozenset, str, bytes, range))
                    and kind not in NATIVE_ITERATORS
                    and self.recorder.alive
                ):
                    self.recorder.kill("argument", f"an iterator ({kind.__name__})")
        frame.stack.append(iter(value))
        return None

    def advance(self, frame: Frame, method: Value, iterator: Value, at_end: Recovery | None) -> Outcome:
        """Enters ``__next__`` of the program; where it raises StopIteration ``at_end`` says how the frame goes on."""
        depth = len(self.machine.frames)
        try:
            outcome = self.machine.calls.call(frame, method, (iterator,), {})
        except StopIteration:
            if at_end is None:
                raise
            at_end.recover(self.machine, frame)
            return None
        if len(self.machine.frames) > depth:
            self.machine.frames[-1].recovery = at_end
        return outcome

    def listed(self, frame: Frame, below: bool = False, most: float = math.inf, measured: bool = False) -> Outcome:
        """Takes what the program's own code gives the instruction at hand to iterate in frames, after which that runs
        again with the elements; MISSING where no such code is asked. ``below`` says where it lies on the stack.
        """
        value = frame.stack[-1 - below]
        kind = type(value)
        if kind is not InterpretedGenerator:
            own = kind not in SIMPLE and not is_a(value, torch.Tensor)
            if not own or (python_method(kind, "__iter__") is None and not goes_by_index(kind)):
                return MISSING
        if measured and is_measured(kind):
            return self.machine.calls.call(frame, LISTED, (value,), {}, Again(below))
        return self.machine.calls.call(frame, DRAWN, (value, most), {}, Again(below))

    def iterable(self, value: Value, most: float = math.inf, measured: bool = False) -> Value:
        """A value that native code may iterate: Python ``__iter__`` and ``__next__`` are called first, the latter until
        there are more than ``most`` elements, and known containers become facts. ``measured`` where that code asks for
        a length before.
        """
        kind = type(value)
        if kind not in SIMPLE:
            sources = self.recorder.sources
            if measured and is_measured(kind):
                return self.machine.call_nested(LISTED, (value,))
            method = python_method(kind, "__iter__")
            if method is not None:
                sources.guard_type(value)
                sources.guard_version(kind)
                value = checked("__iter__", kind, self.machine.call_nested(method, (value,)))
                if python_method(type(value), "__next__") is None:
                    return value
                sources.guard_version(type(value))
                return self.machine.call_nested(TAKEN, (value, most))
            if goes_by_index(kind):
                return self.machine.call_nested(WALKED, (value,))
        walked(self.machine, value)
        sources, contents = self.recorder.sources, self.recorder.contents
        if is_plain_sequence(kind) and sources.knows(value):
            contents.guard_extent(value)
            parts = [contents.item(value, number, part) for number, part in enumerate(value)]
            return value if all(map(operator.is_, parts, value)) else parts if kind is list else tuple(parts)
        contents.guard_shallow_contents(value)
        return value


def _undefined(function: Function, left: Value, right: Value) -> Value:
    """What an operator gives or raises when all methods declined."""
    if function is operator.eq or function is operator.ne:
        return (left is right) == (function is operator.eq)
    if is_a(left, SEQUENCES):
        return function(left, right)
    names = type(left).__name__, type(right).__name__
    if function in COMPARISONS:
        raise TypeError("'{}' not supported between instances of '{}' and '{}'".format(TEXTS[function], *names))
    raise TypeError("unsupported operand type(s) for {}: '{}' and '{}'".format(TEXTS[function], *names))
