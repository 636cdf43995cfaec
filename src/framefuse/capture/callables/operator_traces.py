"""Runs functions that the user marked as they are, and records the operators that torch runs in them."""

from __future__ import annotations

import functools

import numpy as np
import torch

from framefuse.capture.callables.marks import mark
from framefuse.capture.callables.transforms import below, region_of
from framefuse.capture.facts.atoms import ATOMS, CONTAINERS
from framefuse.capture.facts.nested_numbers import strip
from framefuse.capture.facts.numbers import TRACKED
from framefuse.capture.interp.machine import Machine
from framefuse.capture.program.frame import Frame
from framefuse.capture.recording.recorder import Recorder
from framefuse.ir.containers import held
from framefuse.ir.own_class import is_a
from framefuse.ir.values import Arguments, Function, Keywords, Value

DEEP = 6  # containers in containers that may be given


def trace_operators(function: Function) -> Function:
    """What calls ``function``; in a recording that runs as it is, and what torch computes in it is recorded."""
    name = getattr(function, "__name__", "") or type(function).__name__

    def plainly(*args: Value, **kwargs: Value) -> Value:
        return function(*args, **kwargs)

    def run(machine: Machine, frame: Frame, args: Arguments, kwargs: Keywords) -> None:
        recorder = machine.recorder
        recorder.sources.tie()  # no later process can tell that it is the same function
        for value in (*args, *kwargs.values()):
            _hold(recorder, value)
        plain, named = strip(args), strip(kwargs)
        if not recorder.alive:
            frame.stack.append(function(*plain, **named))
            return
        region = region_of(recorder)
        for value in (*args, *kwargs.values()):
            region.take(value)
        frame.stack.append(
            below(machine, frame, region, lambda: function(*plain, **named), "native-call", name)
        )

    mark(plainly, run)

    @functools.wraps(function, updated=())
    def call(*args: Value, **kwargs: Value) -> Value:
        return plainly(*args, **kwargs)

    call.__name__ = name
    call.__qualname__ = getattr(function, "__qualname__", name)
    return call


def _hold(recorder: Recorder, value: Value, depth: int = 0) -> None:
    """States what the function finds in something that it is given, or ends the recording."""
    if not recorder.alive or type(value) in ATOMS or type(value) in TRACKED or is_a(value, (torch.Tensor, range)):
        return
    source = recorder.sources.source_of(value)
    if is_a(value, CONTAINERS) and depth < DEEP:
        recorder.contents.guard_shallow_contents(value)
        for part in held(value):
            _hold(recorder, part, depth + 1)
    elif source is not None and not is_a(value, np.ndarray):
        recorder.sources.fact(source, "is", value, id(value))
    else:
        recorder.kill("argument", f"A {type(value).__name__}")
