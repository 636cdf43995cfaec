"""Makes functions and classes, returns from frames, and matches patterns."""

from __future__ import annotations

import builtins
import collections.abc
import sys
from types import FunctionType

from framefuse.capture.interp.machine import Machine, Resumption
from framefuse.capture.interp.registry import handles
from framefuse.capture.program.frame import Frame
from framefuse.capture.program.lookups import python_method
from framefuse.capture.program.markers import DONE, MISSING, SWITCH, Outcome
from framefuse.ir.own_class import is_a
from framefuse.ir.values import Value


@handles("MAKE_FUNCTION")
def make_function(machine: Machine, frame: Frame, argument: int) -> None:
    stack = frame.stack
    code = stack.pop()
    closure = stack.pop() if argument & 8 else None
    annotations = stack.pop() if argument & 4 else None
    named = stack.pop() if argument & 2 else None
    defaults = stack.pop() if argument & 1 else None
    function = FunctionType(code, frame.globals, code.co_name, defaults, closure)
    function.__kwdefaults__ = named
    if annotations:
        function.__annotations__ = dict(zip(annotations[::2], annotations[1::2], strict=True))
    if machine.recorder.alive:
        machine.recorder.sources.note_made(function)
    stack.append(function)


@handles("LOAD_BUILD_CLASS")
def load_build_class(machine: Machine, frame: Frame, argument: int) -> None:
    frame.stack.append(builtins.__build_class__)


@handles("RETURN_VALUE")
def return_value(machine: Machine, frame: Frame, argument: int) -> Outcome:
    value = frame.stack.pop()
    frames = machine.frames
    frames.pop()
    machine.handled = frame.handled
    generator = frame.generator
    if generator is not None:
        frame.end()
        resumption = frame.resumption
        if frame.bottom or resumption is None:
            machine.returned = value
            return DONE
        assert is_a(resumption, Resumption)
        resumption.returned(machine, frames[-1], value)
        return SWITCH
    if frame.bottom:
        if machine.recorder.generators:  # those that only its names held close now, which is part of the call
            frame.locals.clear()
        machine.returned = value
        return DONE
    if frame.continuation is None:
        frames[-1].stack.append(value)
    else:
        machine.finish(frames[-1], value, frame.continuation)
    return SWITCH


@handles("MATCH_MAPPING")
def match_mapping(machine: Machine, frame: Frame, argument: int) -> None:
    machine.recorder.sources.guard_type(frame.stack[-1])
    frame.stack.append(is_a(frame.stack[-1], collections.abc.Mapping))


@handles("MATCH_SEQUENCE")
def match_sequence(machine: Machine, frame: Frame, argument: int) -> None:
    value = frame.stack[-1]
    machine.recorder.sources.guard_type(value)
    frame.stack.append(is_a(value, collections.abc.Sequence) and not is_a(value, (str, bytes, bytearray)))


@handles("MATCH_KEYS")
def match_keys(machine: Machine, frame: Frame, argument: int) -> None:
    keys, subject = frame.stack[-1], frame.stack[-2]
    seen: set[Value] = set()
    given: list[Value] = []
    for key in keys:
        if key in seen:
            raise ValueError(f"mapping pattern checks duplicate key ({key!r})")
        seen.add(key)
        value = _mapped(machine, subject, key)
        if value is MISSING:
            frame.stack.append(None)
            return
        given.append(value)
    frame.stack.append(tuple(given))


def _mapped(machine: Machine, subject: Value, key: Value) -> Value:
    """What the method ``get`` of a mapping gives for ``key``, which lets no default grow."""
    contents = machine.recorder.contents
    get = python_method(type(subject), "get")
    if get is not None:
        return machine.call_nested(get, (subject, key, MISSING))
    if is_a(subject, dict):
        if not contents.guard_membership(subject, key):
            contents.guard_shallow_contents(subject)
        value = dict.get(subject, key, MISSING)
        return value if value is MISSING else contents.item(subject, key, value)
    return machine.natives.value(machine.frames[-1], subject.get, (key, MISSING), {})


MATCHES_ITSELF = 1 << 22  # the type flag of classes whose only positional pattern is the whole


CLASS = "class" if sys.version_info >= (3, 12) else "type"


@handles("MATCH_CLASS")
def match_class(machine: Machine, frame: Frame, argument: int) -> None:
    names = frame.stack.pop()
    cls = frame.stack.pop()
    subject = frame.stack.pop()
    if not is_a(cls, type):
        raise TypeError(f"called match pattern must be a {CLASS}")
    machine.recorder.sources.guard_type(subject)
    check = python_method(type(cls), "__instancecheck__")
    if not (machine.call_nested(check, (cls, subject)) if check is not None else is_a(subject, cls)):
        frame.stack.append(None)
        return
    given: list[Value] = []
    places: tuple[Value, ...] = ()
    if argument:
        places = _places(machine, frame, cls, argument)
        if places == (None,):
            given.append(subject)
            places = ()
    seen: set[str] = set()
    for name in (*places, *names):
        if type(name) is not str:
            raise TypeError(f"__match_args__ elements must be strings (got {type(name).__name__})")
        if name in seen:
            raise TypeError(f"{cls.__name__}() got multiple sub-patterns for attribute {name!r}")
        seen.add(name)
        try:
            given.append(machine.attributes.attribute_now(frame, subject, name))
        except AttributeError:
            frame.stack.append(None)
            return
    frame.stack.append(tuple(given))


def _places(machine: Machine, frame: Frame, cls: type, count: int) -> tuple[Value, ...]:
    """The attributes that ``count`` positional patterns of a class stand for; (None,) is the subject itself."""
    try:
        places = machine.attributes.attribute_now(frame, cls, "__match_args__")
    except AttributeError:
        places = (None,) if cls.__flags__ & MATCHES_ITSELF else ()
    if type(places) is not tuple:
        raise TypeError(f"{cls.__name__}.__match_args__ must be a tuple (got {type(places).__name__})")
    if count > len(places):
        plural = "" if len(places) == 1 else "s"
        raise TypeError(f"{cls.__name__}() accepts {len(places)} positional sub-pattern{plural} ({count} given)")
    return places[:count]
