"""Makes functions and classes, returns from frames, and matches patterns."""

from __future__ import annotations

import builtins
import collections.abc
from types import FunctionType
from typing import Any

from framefuse.capture.code import handles
from framefuse.capture.frame import DONE, SWITCH, Frame


@handles("MAKE_FUNCTION")
def make_function(machine: Any, frame: Frame, argument: int) -> None:
    stack = frame.stack
    code = stack.pop()
    closure = stack.pop() if argument & 8 else None
    annotations = stack.pop() if argument & 4 else None
    named = stack.pop() if argument & 2 else None
    defaults = stack.pop() if argument & 1 else None
    made = FunctionType(code, frame.globals, code.co_name, defaults, closure)
    made.__kwdefaults__ = named
    made.__qualname__ = code.co_qualname
    made.__module__ = frame.globals.get("__name__")  # type: ignore[assignment]
    if annotations:
        made.__annotations__ = dict(zip(annotations[::2], annotations[1::2], strict=True))
    if code.co_consts and isinstance(code.co_consts[0], str):
        made.__doc__ = code.co_consts[0]
    if machine.recorder.alive:
        machine.recorder.sources.made[id(made)] = made
    stack.append(made)


@handles("LOAD_BUILD_CLASS")
def load_build_class(machine: Any, frame: Frame, argument: int) -> None:
    frame.stack.append(builtins.__build_class__)


@handles("RETURN_VALUE")
def return_value(machine: Any, frame: Frame, argument: int) -> Any:
    value = frame.stack.pop()
    frames = machine.frames
    frames.pop()
    machine.handled = frame.handled
    generator = frame.generator
    if generator is not None:
        generator.state = "done"
        resume = frame.resume
        if frame.bottom or resume is None:
            machine.returned = value
            return DONE
        caller = frames[-1]
        if resume[0] == "for":
            caller.stack.pop()
            caller.step = resume[1]
        elif resume[0] == "send":
            caller.stack[-2:] = [value]
            caller.step = resume[1]
        elif resume[1]:
            caller.stack.append(resume[1][0])
        else:
            machine.raised = StopIteration(value) if value is not None else StopIteration()
        return SWITCH
    if frame.bottom:
        machine.returned = value
        return DONE
    if frame.then is None:
        frames[-1].stack.append(value)
    else:
        machine.finish(frames[-1], value, frame.then)
    return SWITCH


@handles("MATCH_MAPPING")
def match_mapping(machine: Any, frame: Frame, argument: int) -> None:
    machine.recorder.sources.typed(frame.stack[-1])
    frame.stack.append(isinstance(frame.stack[-1], collections.abc.Mapping))


@handles("MATCH_SEQUENCE")
def match_sequence(machine: Any, frame: Frame, argument: int) -> None:
    value = frame.stack[-1]
    machine.recorder.sources.typed(value)
    frame.stack.append(isinstance(value, collections.abc.Sequence) and not isinstance(value, (str, bytes, bytearray)))


@handles("MATCH_KEYS")
def match_keys(machine: Any, frame: Frame, argument: int) -> None:
    keys, subject = frame.stack[-1], frame.stack[-2]
    found = []
    for key in keys:
        machine.recorder.sources.membership(subject, key)
        if key not in subject:
            frame.stack.append(None)
            return
        found.append(machine.recorder.sources.item(subject, key, subject[key]))
    frame.stack.append(tuple(found))


@handles("MATCH_CLASS")
def match_class(machine: Any, frame: Frame, argument: int) -> None:
    names = frame.stack.pop()
    cls = frame.stack.pop()
    subject = frame.stack.pop()
    machine.recorder.sources.typed(subject)
    if not isinstance(subject, cls):
        frame.stack.append(None)
        return
    places: tuple[str, ...] = getattr(cls, "__match_args__", ())
    found: list[Any] = []
    if argument:
        if not places and cls in (bool, bytearray, bytes, dict, float, frozenset, int, list, set, str, tuple):
            found.append(subject)
            argument -= 1
        if argument > len(places):
            plural = "" if len(places) == 1 else "s"
            raise TypeError(f"{cls.__name__}() accepts {len(places)} positional sub-pattern{plural} ({argument} given)")
    for name in (*places[:argument], *names):
        try:
            value = machine.attribute(frame, subject, name)
            if value is SWITCH:
                machine.frames.pop()
                machine.recorder.kill("opcode", "a class pattern over a computed attribute")
                value = (getattr(subject, name),)
        except AttributeError:
            frame.stack.append(None)
            return
        found.append(value[0])
    frame.stack.append(tuple(found))
