"""Launches of the user's Triton kernels: their grids and heuristics run in frames, and the launch is one call."""

from __future__ import annotations

import inspect
import sys
import types
from collections.abc import Iterator

import torch

from framefuse.capture.interp.machine import Machine
from framefuse.capture.interp.registry import SPECIALS, special
from framefuse.capture.program.equivalents import CALLED
from framefuse.capture.program.frame import Frame
from framefuse.capture.program.kernel_stores import Unread, stored_to
from framefuse.capture.program.markers import MISSING, Outcome
from framefuse.capture.recording import kernel_launches
from framefuse.ir.values import Arguments, Keywords, Value

# Where the classes are whose ``run`` launches a kernel, in modules that only the user imports.
CLASSES = (
    ("triton.runtime.jit", "JITFunction"),
    ("triton.runtime.interpreter", "InterpretedFunction"),
    ("triton.runtime.autotuner", "Autotuner"),
    ("triton.runtime.autotuner", "Heuristics"),
)
MOST = 64  # choices of autotuners, for each of which a grid is computed
Choice = tuple[tuple[str, Value], ...]


def meet() -> None:
    """Gives the launches of Triton their row, once that was imported."""
    for module, name in CLASSES:
        kind = getattr(sys.modules.get(module), name, None)
        run = getattr(kind, "run", None)
        if run is not None and run not in SPECIALS:
            special(run)(_launch)


@special(torch.library.wrap_triton)
def _wrap(machine: Machine, frame: Frame, args: Arguments, kwargs: Keywords) -> Outcome:
    """``wrap_triton(kernel)`` is for torch's own tracer: launches of what it gives are those of the kernel."""
    named = (type(args[0]).__module__, type(args[0]).__name__) if len(args) == 1 and not kwargs else None
    if not machine.recorder.alive or named not in CLASSES:
        return MISSING
    frame.stack.append(args[0])
    return None


def _launch(machine: Machine, frame: Frame, args: Arguments, kwargs: Keywords) -> Outcome:
    """``kernel[grid](...)``; MISSING where it must be a step."""
    kernel, recorder = args[0], machine.recorder
    wrappers = list(_wrappers(kernel))
    function = getattr(wrappers[-1], "fn", None)
    if not recorder.alive or type(function) is not types.FunctionType or kwargs.get("warmup"):
        return MISSING
    options = {name: value for name, value in kwargs.items() if name not in ("grid", "warmup")}
    names = list(inspect.signature(function).parameters)
    given = {**dict(zip(names, args[1:], strict=False)), **options}
    if len(args) - 1 > len(names) or "grid" not in kwargs:
        return MISSING
    try:
        if not kernel_launches.may_record(recorder, kernel, given):
            return MISSING
        stored_to(function)
    except Unread:
        return MISSING
    grids, choices = _grids(machine, wrappers, function, given, kwargs["grid"])
    if grids is None:
        return MISSING
    if not recorder.alive:
        wrappers[0].run(**given, grid=tuple(grids[0]) if len(grids) == 1 else kwargs["grid"], warmup=False)
    else:
        kernel_launches.record(recorder, kernel, function, given, grids, choices)
    frame.stack.append(None)
    return None


def _wrappers(kernel: Value) -> Iterator[Value]:
    """A kernel with what stands within it, down to what is compiled."""
    yield kernel
    while type(kernel).__name__ in ("Autotuner", "Heuristics"):
        kernel = kernel.fn
        yield kernel


def _grids(
    machine: Machine, wrappers: list[Value], function: types.FunctionType, given: Keywords, grid: Value
) -> tuple[tuple[Value, ...] | None, tuple[Choice, ...]]:
    """The grid for each choice that autotuners may make, with these choices; None where they are too many."""
    if not callable(grid):
        return (machine.operations.iterable(grid),), ((),)
    metas: list[tuple[Keywords, Choice]] = [(dict(given), ())]
    for wrapper in wrappers:
        if type(wrapper).__name__ == "Heuristics":
            for meta, _ in metas:
                for name, heuristic in wrapper.values.items():
                    meta[name] = machine.call_nested(CALLED, (heuristic, dict(meta)))
        elif type(wrapper).__name__ == "Autotuner":
            metas = [
                ({**meta, **config.kwargs}, (*choice, *config.kwargs.items()))
                for meta, choice in metas
                for config in wrapper.configs
            ]
    if len(metas) > MOST:
        return None, ()
    grids = []
    for meta, _ in metas:
        for name, parameter in inspect.signature(function).parameters.items():
            if parameter.default is not parameter.empty:
                meta.setdefault(name, parameter.default)
        grids.append(machine.operations.iterable(machine.call_nested(CALLED, (grid, meta))))
    return tuple(grids), tuple(choice for _, choice in metas)
