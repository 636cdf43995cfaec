"""Chooses the methods that compute a binary operator or comparison, in CPython's order, where Python takes part."""

from __future__ import annotations

import operator
import types
from collections import deque
from typing import Any

import torch

from framefuse.capture.attributes import python_method, type_get
from framefuse.capture.frame import Frame
from framefuse.capture.numbers import NUMBERS, plain_kind

# (method, its arguments, whether its answer is to be negated)
Attempt = tuple[Any, tuple[Any, Any], bool]
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


class Operations:
    """Binary operators of the interpreter whose operands are objects of the user."""

    recorder: Any

    def attempts(self, function: Any, left: Any, right: Any, name: str, reflected: str | None) -> tuple[Attempt, ...]:
        """The methods to ask one after the other; none where no Python code takes part."""
        kind, other = plain_kind(type(left)), plain_kind(type(right))
        compares = function in COMPARISONS
        own = self._operator_method(kind, name)
        back = self._operator_method(other, reflected) if reflected and (compares or other is not kind) else None
        if not (own and type(own[0]) is types.FunctionType) and not (back and type(back[0]) is types.FunctionType):
            return ()
        for value in (left, right):
            if type(value) not in NUMBERS and not isinstance(value, torch.Tensor):
                self.recorder.sources.guard_type(value)
                self.recorder.sources.guard_version(type(value))
        found: list[Attempt] = []
        if own is not None and kind not in NUMBERS and not (name in ("__add__", "__mul__") and kind in SEQUENCES):
            found.append((own[0], (left, right), own[1]))
        if back is not None:
            first = issubclass(other, kind) and other is not kind
            if first and not compares:
                first = back[0] is not type_get(kind, reflected)  # type: ignore[arg-type]
            found.insert(0 if first else len(found), (back[0], (right, left), back[1]))
        return tuple(found)

    def _operator_method(self, kind: type, name: str) -> tuple[Any, bool] | None:
        """The method of a class behind an operator; ``object.__ne__`` is ``__eq__`` negated."""
        found = type_get(kind, name)
        if name == "__ne__" and found is object.__ne__:
            equal = python_method(kind, "__eq__")
            return (equal, True) if equal is not None else (found, False)
        return (found, False) if isinstance(found, (types.FunctionType, types.WrapperDescriptorType)) else None

    def operate(
        self, frame: Frame, attempts: tuple[Attempt, ...], function: Any, left: Any, right: Any, nested: bool = False
    ) -> Any:
        """Pushes what the first method gives that does not decline; ``nested`` calls run at once."""
        for number, (method, args, negate) in enumerate(attempts):
            if type(method) is types.FunctionType:
                if not negate and not nested:
                    then = ("binary", attempts[number + 1 :], function, left, right)
                    return self.call(frame, method, args, {}, then)  # type: ignore[attr-defined]
                value = self.call_nested(method, args)  # type: ignore[attr-defined]
            elif isinstance(args[0], torch.Tensor):
                with torch._C.DisableTorchFunction():
                    value = method(*args)
                if value is not NotImplemented:
                    value = function(left, right)  # the same again, for the record
            else:
                value = method(*args)
            if value is not NotImplemented:
                if negate:
                    value = not self.truth(value)  # type: ignore[attr-defined]
                frame.stack.append(value)
                return None
        frame.stack.append(_undefined(function, left, right))
        return None


def _undefined(function: Any, left: Any, right: Any) -> Any:
    """What an operator gives or raises when all methods declined."""
    if function is operator.eq or function is operator.ne:
        return (left is right) == (function is operator.eq)
    if isinstance(left, SEQUENCES):
        return function(left, right)
    names = type(left).__name__, type(right).__name__
    if function in COMPARISONS:
        raise TypeError("'{}' not supported between instances of '{}' and '{}'".format(TEXTS[function], *names))
    raise TypeError("unsupported operand type(s) for {}: '{}' and '{}'".format(TEXTS[function], *names))
