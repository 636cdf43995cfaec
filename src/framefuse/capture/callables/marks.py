"""Acts on functions that the user marked: kept whole in the graph, taken as constants, or ending the graph."""

from __future__ import annotations

from collections.abc import Callable

import torch

from framefuse.capture.facts.nested_numbers import strip
from framefuse.capture.interp.machine import Machine, Special
from framefuse.capture.interp.registry import marked
from framefuse.capture.program.frame import Frame
from framefuse.capture.program.markers import Outcome
from framefuse.capture.recording import number_results
from framefuse.capture.recording.call_names import kept_name
from framefuse.ir.own_class import is_a
from framefuse.ir.values import Arguments, Function, Keywords


def mark(function: Function, call: Special) -> None:
    """Registers what calls of a function do, of this object: others may have its code."""

    def held_call(machine: Machine, frame: Frame, args: Arguments, kwargs: Keywords) -> Outcome:
        sources = machine.recorder.sources
        source = sources.source_of(function)
        if source is not None:
            sources.fact(source, "is", function, id(function))
        return call(machine, frame, args, kwargs)

    marked(function, held_call)


def keep_in_graph(function: Function) -> None:
    """Calls of ``function`` are recorded as one call each, and its Python code is not looked into."""

    name = kept_name(function)

    def call(machine: Machine, frame: Frame, args: Arguments, kwargs: Keywords) -> None:
        recorder = machine.recorder
        if recorder.alive:
            frame.stack.append(number_results.call(recorder, function, name, args, kwargs))
            return
        with torch._C.DisableTorchFunction():  # the calls inside are the function's own business
            frame.stack.append(function(*strip(args), **strip(kwargs)))

    mark(function, call)


def take_as_constant(function: Function) -> None:
    """What ``function`` gives when it is recorded is what it gives."""

    def call(machine: Machine, frame: Frame, args: Arguments, kwargs: Keywords) -> None:
        machine.recorder.sources.tie()
        with torch._C.DisableTorchFunction():
            value = function(*strip(args), **strip(kwargs))
        if machine.recorder.alive and not is_a(value, (int, float, str, bool, type(None))):
            machine.recorder.sources.root(value)
        frame.stack.append(value)

    mark(function, call)


def break_at(function: Callable[[], None]) -> None:
    """Calls of ``function`` end the graph; the next one begins after it."""

    def call(machine: Machine, frame: Frame, args: Arguments, kwargs: Keywords) -> None:
        machine.exits.opaque(frame, function, args, kwargs, None, "graph-break", function.__name__)

    mark(function, call)
