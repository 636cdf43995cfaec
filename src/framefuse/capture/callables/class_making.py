"""Makes classes in the steps of ``type.__new__``, with whatever Python they call run by the interpreter."""

from __future__ import annotations

import abc
import builtins
import collections
import functools
import sys
import types

from framefuse.capture.facts.nested_numbers import pin_nested
from framefuse.capture.facts.questions import Question, answered
from framefuse.capture.facts.settle import settle
from framefuse.capture.interp.machine import Machine
from framefuse.capture.interp.registry import CLASS_MAKERS, special
from framefuse.capture.program import equivalents
from framefuse.capture.program.frame import Frame, enter
from framefuse.capture.program.leaves import runs_natively
from framefuse.capture.program.lookups import is_python_metaclass, python_method, type_get
from framefuse.capture.program.markers import MISSING, SWITCH, Marker, Outcome
from framefuse.capture.recording.made_classes import enter_made
from framefuse.ir.own_class import is_a
from framefuse.ir.values import Arguments, Function, Keywords, Value

# What makes a class in one native step that calls nothing but ``__set_name__`` and ``__init_subclass__``.
MAKERS = (type.__new__, abc.ABCMeta.__new__)


class _Stand:
    """Lends its layout to a class whose bases are set once it is made."""


@special(builtins.__build_class__)
def _build_class(machine: Machine, frame: Frame, args: Arguments, kwargs: Keywords) -> Outcome:
    """A class statement; one whose metaclass is native code of a library is left to it."""
    if len(args) < 2 or type(args[0]) is not types.FunctionType or type(args[1]) is not str:
        return MISSING
    metas = [kwargs["metaclass"]] if "metaclass" in kwargs else []
    metas += [type(base) for base in args[2:] if is_a(base, type)]
    if not all(is_a(meta, type) and is_python_metaclass(meta) for meta in metas):
        return MISSING
    return machine.calls.call(frame, equivalents.build_class, args, kwargs)


@special(type.__subclasses__)
def _subclasses(machine: Machine, frame: Frame, args: Arguments, kwargs: Keywords) -> Outcome:
    """The direct subclasses of a class, which are asked for again at later calls: they come and go without a trace."""
    recorder = machine.recorder
    if len(args) != 1 or kwargs or not recorder.alive or recorder.sources.is_made(args[0]):
        return MISSING
    answered(recorder.sources, Question(functools.partial(_addresses_of_subclasses, args[0])))
    recorder.sources.tie()  # another process has others
    listed = type.__subclasses__(args[0])
    for cls in listed:
        recorder.sources.root(cls)  # which keeps its address
    frame.stack.append(listed)
    return None


def _addresses_of_subclasses(cls: type) -> str:
    listed: list[type] = type.__subclasses__(cls)
    return " ".join([str(id(each)) for each in listed])


@special(equivalents.run_body)
def _run_body(machine: Machine, frame: Frame, args: Arguments, kwargs: Keywords) -> Outcome:
    """Enters the body of a class statement with its namespace."""
    function, space = args
    entered = enter(function, (), {})
    if entered.code.missing is not None:
        machine.recorder.kill("opcode", f"{entered.code.missing} in {function.__qualname__}")
    entered.space = space
    machine.push(entered)
    return SWITCH


@special(*MAKERS)
def _new(machine: Machine, frame: Frame, args: Arguments, kwargs: Keywords) -> Outcome:
    """``type.__new__(meta, name, bases, namespace, **kwargs)``."""
    cls = new_class(machine, type.__new__, args, kwargs)
    if is_a(cls, Marker):
        return cls
    frame.stack.append(cls)
    return None


@special(("__init__", type))
def _init(machine: Machine, frame: Frame, args: Arguments, kwargs: Keywords) -> Outcome:
    """``type.__init__(cls, name, bases, namespace, **kwargs)`` does nothing."""
    if len(args) != 4:
        return MISSING
    frame.stack.append(None)
    return None


def new_class(machine: Machine, maker: Function, args: Arguments, kwargs: Keywords) -> Value:
    """A new class; MISSING where native code shall make it, since it cannot be made in steps."""
    if len(args) != 4 or not is_a(args[0], type) or not is_a(args[2], tuple):
        return MISSING
    meta, name, bases, given = args
    if type(name) is not str or not is_a(given, dict) or not all(is_a(base, type) for base in bases):
        return MISSING
    sources, contents = machine.recorder.sources, machine.recorder.contents
    contents.guard_shallow_contents(given)
    for base in bases:
        sources.guard_version(base)
    space = dict(given)
    if "__module__" not in space and "__name__" in machine.frames[-1].globals:
        space["__module__"] = machine.frames[-1].globals["__name__"]
    named = {key: value for key, value in space.items() if python_method(type(value), "__set_name__") is not None}
    hooks = [_subclass_hook(base) for base in bases]
    hook = next((each for each in hooks if each is not None), None)
    stripped = {key: None if key in named else value for key, value in space.items()}
    if hook is None:
        cls = maker(meta, name, bases, stripped, **kwargs)
    else:
        cls = maker(meta, name, (_Stand,), stripped)
        try:
            cls.__bases__ = bases
        except TypeError:  # another layout
            machine.recorder.kill("native-call", f"The making of {name}")
            return maker(meta, name, bases, given, **kwargs)
    enter_made(machine.recorder, cls)
    for key, value in named.items():
        type.__setattr__(cls, key, value)
    for key, value in named.items():
        _set_name(machine, cls, key, value)
    if hook is not None:
        machine.call_nested(super(cls, cls).__init_subclass__.__func__, (cls,), kwargs)
    return cls


def _subclass_hook(base: type) -> Value:
    """The Python function that ``__init_subclass__`` of a base is, None where native code is all that runs."""
    method = type_get(base, "__init_subclass__")
    function = method.__func__ if type(method) is classmethod else method
    return function if type(function) is types.FunctionType and not runs_natively(function) else None


def _set_name(machine: Machine, cls: type, key: str, value: Value) -> None:
    method = python_method(type(value), "__set_name__")
    assert method is not None
    try:
        machine.call_nested(method, (value, cls, key))
    except Exception as error:
        text = f"Error calling __set_name__ on '{type(value).__name__}' instance {key!r} in '{cls.__name__}'"
        if sys.version_info >= (3, 12):
            error.add_note(text)
            raise
        raise RuntimeError(text) from error


@special(collections.namedtuple, pure=True)
def _named_tuple(machine: Machine, frame: Frame, args: Arguments, kwargs: Keywords) -> Outcome:
    """A kind of tuple; its methods come from native code."""
    for part in (*args, *kwargs.values()):
        machine.recorder.contents.guard_deep_contents(part)
        pin_nested(part)
    kwargs = {"module": frame.globals.get("__name__", "__main__"), **kwargs}
    cls = collections.namedtuple(*settle(args), **settle(kwargs))  # type: ignore[misc]
    enter_made(machine.recorder, cls)
    frame.stack.append(cls)
    return None


CLASS_MAKERS.update(dict.fromkeys(MAKERS, new_class))
