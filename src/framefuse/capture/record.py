"""Runs a function for real under the interpreter, and turns what the recorder saw into a Trace."""

from __future__ import annotations

import inspect
import time
import types
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

from framefuse.capture import opcodes
from framefuse.capture.attributes import type_get
from framefuse.capture.code import COROUTINE_FLAGS, decode
from framefuse.capture.frame import Frame, InterpretedGenerator, bind_locals, native_generator
from framefuse.capture.leaves import runs_natively
from framefuse.capture.recipe import Recipes, settle
from framefuse.capture.recorder import Recorder
from framefuse.capture.run import Machine
from framefuse.capture.state import refusal
from framefuse.capture.stops import reason
from framefuse.capture.tracebacks import users
from framefuse.capture.versions import CURRENT
from framefuse.errors import Reason
from framefuse.ir.facts import Assumptions, Source
from framefuse.ir.source import Line
from framefuse.ir.trace import Trace


@dataclass(slots=True)
class Recording:
    """What a run gave: ``value`` or the user's ``exception`` of the call, and its ``trace`` or the ``reason`` why
    there is none.
    """

    value: Any = None
    exception: BaseException | None = None
    trace: Trace | None = None
    reason: Reason | None = None


@dataclass(frozen=True, slots=True)
class Entry:
    """The Python function that a call of an object enters, with the arguments that come first."""

    function: types.FunctionType
    leading: tuple[Any, ...]


def entry(function: Any) -> Entry | None:
    """What to interpret for a call of ``function``; None when it is not written in Python."""
    leading: tuple[Any, ...] = ()
    for _ in range(8):
        if isinstance(function, types.FunctionType):
            return Entry(function, leading)
        if isinstance(function, types.MethodType):
            leading, function = (function.__self__, *leading), function.__func__
            continue
        if isinstance(function, type):
            return None
        method = type_get(type(function), "__call__")
        if not isinstance(method, types.FunctionType):
            return None
        leading, function = (function, *leading), method
    return None


def bind(function: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> list[Any]:
    """The arguments in the order of the bound locals: parameters, then ``*args`` as a tuple and ``**kwargs`` as a dict.

    Raises the TypeError that the call itself raises.
    """
    found = entry(function)
    if found is None:
        raise TypeError(f"{function!r} is not a Python function")
    return bind_locals(found.function, (*found.leading, *args), kwargs)


def record(
    function: Callable[..., Any],
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    *,
    owner: Any = None,
    dynamic: bool | None = None,
    moving: frozenset[Source] = frozenset(),
) -> Recording:
    """Calls ``function`` once, for real, and records the call.

    ``owner`` is a long-lived object among the arguments: what lies under it is held by identity. ``dynamic`` False
    makes sizes constants; ``moving`` are the places of numbers that become symbols. Whatever cannot be recorded costs
    the trace only; the call completes and behaves as it does without framefuse.
    """
    found = entry(function)
    refused = _refusal(function, found)
    if refused is not None or found is None:
        return _run_natively(function, args, kwargs, refused)
    try:
        slots = bind_locals(found.function, (*found.leading, *args), kwargs)
    except TypeError:
        return _run_natively(function, args, kwargs, reason("raises", "a TypeError", _line(found.function)))
    return _Run(found.function, slots, owner, Recorder(dynamic, moving)).run()


def _refusal(function: Any, found: Entry | None) -> Reason | None:
    if CURRENT is None:
        return reason("python", "this version of Python", None)
    if found is None:
        return reason("not-python", getattr(function, "__qualname__", type(function).__name__), None)
    line, code = _line(found.function), found.function.__code__
    if code.co_flags & (COROUTINE_FLAGS | inspect.CO_GENERATOR):
        return reason("coroutine", code.co_qualname, line)
    missing = decode(code).missing
    if missing is not None:
        return reason("opcode", missing, line)
    if runs_natively(found.function):
        return reason("not-python", code.co_qualname, line)
    mode = refusal()
    return reason("torch-mode", mode, line) if mode is not None else None


def _line(function: types.FunctionType) -> Line:
    code = function.__code__
    return Line(code.co_filename, code.co_firstlineno, code.co_qualname)


def _run_natively(function: Any, args: tuple[Any, ...], kwargs: dict[str, Any], why: Reason | None) -> Recording:
    try:
        return Recording(value=function(*args, **kwargs), reason=why)
    except BaseException as error:
        return Recording(exception=error, reason=why)


class _Run:
    """One recording: the recorder, the machine, and the slots of the entered function."""

    def __init__(self, function: types.FunctionType, slots: list[Any], owner: Any, recorder: Recorder) -> None:
        self.function = function
        self.slots = slots
        self.owner = owner
        self.recorder = recorder
        self.machine = Machine(self.recorder)
        self.recorder.machine = self.machine

    def run(self) -> Recording:
        started = time.perf_counter()
        recorder, machine = self.recorder, self.machine
        frame = Frame(self.function, decode(self.function.__code__))
        frame.bottom = True
        machine.frames.append(frame)
        grad_enabled = torch.is_grad_enabled()
        try:
            sources = recorder.sources
            sources.root(self.function)
            sources.function(self.function)
            sources.closure(self.function)
            frame.locals[: len(self.slots)] = self._arguments()
            with recorder.mode:
                value = machine.loop(0)
        except BaseException as error:
            recorder.kill("raises", f"{type(error).__name__}")
            recorder.drop()
            machine.frames.clear()
            return Recording(exception=error.with_traceback(users(error.__traceback__)), reason=recorder.reason)
        machine.frames.append(frame)
        if torch.is_grad_enabled() != grad_enabled:
            recorder.kill("grad-mode", "gradient mode")
        return self._finish(value, started)

    def _finish(self, value: Any, started: float) -> Recording:
        recorder = self.recorder
        trace = self._trace(value, started) if recorder.alive else None
        journal = recorder.journal
        if type(value) is InterpretedGenerator:
            value = native_generator(value) if value.state == "new" else value
        if recorder.tracked:
            memo: dict[int, Any] = {}
            value = settle(value, memo)
            journal.settle(memo)
        why = recorder.reason
        recorder.alive = False
        recorder.drop()
        self.machine.frames.clear()
        return Recording(value=value, trace=trace, reason=None if trace is not None else why)

    def _arguments(self) -> list[Any]:
        """The slots with sources, facts and symbols."""
        sources, code = self.recorder.sources, self.function.__code__
        slots = self.slots
        plain = code.co_argcount + code.co_kwonlyargcount
        given: list[Any] = []
        for number, value in enumerate(slots):
            source = Source("arg", None, number)
            if value is self.owner and value is not None:
                sources.fact(source, "is", value, id(value))
                sources.root(value)
                given.append(value)
            elif number < plain:
                given.append(sources.learn(source, value, free=True))
            else:
                given.append(self._extra(source, value))
        return given

    def _extra(self, source: Source, value: Any) -> Any:
        """``*args`` or ``**kwargs``: made for this call, elements are arguments of their own."""
        sources = self.recorder.sources
        if isinstance(value, tuple):
            sources.fact(source, "length", len(value))
            return tuple([sources.learn(Source("item", source, n), part, free=True) for n, part in enumerate(value)])
        if value:
            sources.fact(source, "keys", tuple(value))
        else:
            sources.fact(source, "length", 0)
        return {key: sources.learn(Source("item", source, key), part, free=True) for key, part in value.items()}

    def _trace(self, value: Any, started: float) -> Trace | None:
        recorder = self.recorder
        build = Recipes(recorder).build
        effects = recorder.journal.effects(lambda made: _effect_value(build, made))
        result = build(value)
        recorder.journal.separate()
        recorder.journal.separate_tensors()
        if not recorder.alive:
            return None
        inputs = recorder.final_inputs()
        if not recorder.alive:
            return None
        code = self.function.__code__
        return Trace(
            name=code.co_qualname,
            line=_line(self.function),
            assumptions=Assumptions(
                recorder.state, tuple(recorder.sources.facts.values()), inputs, tuple(recorder.relations.values())
            ),
            calls=tuple(recorder.calls),
            metas=tuple(recorder.metas),
            size_symbols=dict(recorder.size_symbols),
            hints=dict(recorder.hints),
            real_hints=dict(recorder.real_hints),
            result=result,
            effects=effects,
            opcodes=self.machine.opcodes,
            inlined=self.machine.inlined,
            seconds={"capture": time.perf_counter() - started},
        )


def _effect_value(build: Any, value: Any) -> Any:
    return build(value)


__all__ = ["Recording", "bind", "opcodes", "record"]
