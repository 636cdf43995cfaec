"""Methods of CPython's own classes that call the program's functions, and those of the interpreter's own iterators."""

from __future__ import annotations

import functools
import types
from collections.abc import Callable

from framefuse.capture.interp.continuations import PUSH_NONE, PushChecked
from framefuse.capture.interp.machine import Machine, Special
from framefuse.capture.interp.registry import special
from framefuse.capture.program import equivalents, special_methods
from framefuse.capture.program.frame import Frame
from framefuse.capture.program.iterators import RangeIterator
from framefuse.capture.program.lookups import python_method, type_get
from framefuse.capture.program.markers import MISSING, SWITCH, Outcome
from framefuse.ir.own_class import is_a
from framefuse.ir.values import Arguments, Function, Keywords


@special(special_methods.of_class)
def _of_class(machine: Machine, frame: Frame, args: Arguments, kwargs: Keywords) -> Outcome:
    """Binds a special method, which attributes of the object do not hide."""
    holder, name = args
    kind = type(holder)
    machine.recorder.sources.guard_type(holder)
    machine.recorder.sources.guard_version(kind)
    found = machine.attributes.bound_method(frame, holder, name)
    if is_a(found, tuple):
        frame.stack.append(found[0])
    return None if found is not SWITCH else SWITCH


def slot(name: str, *kinds: type) -> Callable[[Special], Special]:
    def register(function: Special) -> Special:
        for kind in kinds:
            special(vars(kind)[name], (name, kind))(function)
        return function

    return register


def _accessor(name: str, part: str, count: int) -> None:
    @slot(name, property)
    def call(machine: Machine, frame: Frame, args: Arguments, kwargs: Keywords) -> Outcome:
        """Calls the function of a property."""
        if kwargs or not 1 < len(args) <= count or type(args[0]) is not property or args[1] is None:
            return MISSING
        function = getattr(args[0], part)
        if function is None:
            return MISSING
        given = args[1:2] if name == "__get__" else args[1:]
        return machine.calls.call(frame, function, given, {}, None if name == "__get__" else PUSH_NONE)


_accessor("__get__", "fget", 3)
_accessor("__set__", "fset", 3)
_accessor("__delete__", "fdel", 2)


def _member(name: str, plain: Function, count: int) -> None:
    @slot(name, types.MemberDescriptorType)
    def call(machine: Machine, frame: Frame, args: Arguments, kwargs: Keywords) -> Outcome:
        """What a slot of a class does, as ``object`` does it by the slot's name."""
        if kwargs or not 1 < len(args) <= count or type(args[0]) is not types.MemberDescriptorType:
            return MISSING
        member, holder = args[:2]
        if type_get(type(holder), member.__name__) is not member:
            return MISSING
        given = args[2:] if name == "__set__" else ()
        return machine.calls.call(frame, plain, (holder, member.__name__, *given), {})


_member("__get__", object.__getattribute__, 3)
_member("__set__", object.__setattr__, 3)
_member("__delete__", object.__delattr__, 2)


@slot("__call__", types.FunctionType, types.MethodType, functools.partial)
def _call(machine: Machine, frame: Frame, args: Arguments, kwargs: Keywords) -> Outcome:
    return machine.calls.call(frame, args[0], args[1:], kwargs) if args else MISSING


@slot("__call__", type)
def _make(machine: Machine, frame: Frame, args: Arguments, kwargs: Keywords) -> Outcome:
    """Makes an instance, as metaclasses do that call a class by way of ``type``."""
    if not args or not is_a(args[0], type):
        return MISSING
    return machine.calls.make(frame, args[0], args[1:], kwargs, None)


@slot("__str__", object)
def _text(machine: Machine, frame: Frame, args: Arguments, kwargs: Keywords) -> Outcome:
    kind = type(args[0]) if len(args) == 1 else object
    method = python_method(kind, "__repr__")
    if kwargs or method is None:
        return MISSING
    machine.recorder.sources.guard_type(args[0])
    return machine.calls.call(frame, method, args, {}, PushChecked("__repr__", kind))


@slot("__ne__", object)
def _unequal(machine: Machine, frame: Frame, args: Arguments, kwargs: Keywords) -> Outcome:
    method = python_method(type(args[0]), "__eq__") if len(args) == 2 else None
    if kwargs or method is None:
        return MISSING
    machine.recorder.sources.guard_type(args[0])
    equal = machine.call_nested(method, args)
    frame.stack.append(equal if equal is NotImplemented else not machine.operations.truth(equal))
    return None


def _of_range(name: str) -> None:
    method = getattr(RangeIterator, name)

    @special(method)
    def call(machine: Machine, frame: Frame, args: Arguments, kwargs: Keywords) -> Outcome:
        if kwargs or len(args) != 1 or type(args[0]) is not RangeIterator:
            return MISSING
        frame.stack.append(method(args[0]))
        return None



for _name in ("__iter__", "__next__", "__length_hint__"):
    _of_range(_name)


@special(tuple.__new__)
def _named_tuple(machine: Machine, frame: Frame, args: Arguments, kwargs: Keywords) -> Outcome:
    """A named tuple of what is iterated over, in which run-time numbers stay such."""
    if kwargs or len(args) != 2 or not (is_a(args[0], type) and issubclass(args[0], tuple)):
        return MISSING
    if type(args[1]) is not tuple or machine.recorder.sources.knows(args[1]):
        return machine.calls.call(frame, equivalents.new_tuple, args, {})
    frame.stack.append(tuple.__new__(*args))
    return None
