"""Turns a bound method of C into its function and what that is bound to, and back: a subclass gives the name to others.
"""

from __future__ import annotations

import types

from framefuse.ir.classes import of_extension
from framefuse.ir.own_class import is_a
from framefuse.ir.values import Arguments, Value

BOUND_KINDS = (types.BuiltinMethodType, types.MethodWrapperType)
FUNCTIONS = (types.MethodDescriptorType, types.WrapperDescriptorType, types.ClassMethodDescriptorType)


def is_bound(value: Value) -> bool:
    """Whether a callable is bound to an object of the program: not a function of a module, nor of a class as such."""
    if not is_a(value, BOUND_KINDS):
        return False
    return not (is_a(value.__self__, (types.ModuleType, type, type(None))) or of_extension(value))


def taken_apart(method: Value) -> tuple[Value, Value] | None:
    """The function that lies on a class, and what it is bound to; None where no class has the function."""
    holder, name = method.__self__, method.__name__
    classes: tuple[type, ...] = type(holder).__mro__
    if is_a(holder, type):
        classes = (*holder.__mro__, *classes)
    for cls in classes:
        function = vars(cls).get(name)
        if is_a(function, FUNCTIONS) and _fits(function, holder) and bind(function, holder) == method:
            return function, holder
    return None


def _fits(function: Value, holder: Value) -> bool:
    if type(function) is types.ClassMethodDescriptorType:
        return is_a(holder, type) and issubclass(holder, function.__objclass__)
    return issubclass(type(holder), function.__objclass__)


def bind(function: Value, holder: Value) -> Value:
    """The method that ``function`` is for ``holder``; an object of the interpreter has it by its name."""
    if type(function) is types.ClassMethodDescriptorType:
        return function.__get__(None, holder)
    if issubclass(type(holder), function.__objclass__):
        return function.__get__(holder, type(holder))  # without it CPython 3.11 crashes on methods of heap types
    return getattr(holder, function.__name__)


def unbound(target: Value, args: Arguments) -> tuple[Value, Arguments]:
    """A callable that outlives the call, and its arguments: methods of C are functions that take their owner."""
    parts = taken_apart(target) if is_bound(target) else None
    return (parts[0], (parts[1], *args)) if parts is not None else (target, args)
