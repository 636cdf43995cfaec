"""Runs torch's function transforms (``torch.func``): their own code natively, the program's function in frames."""

from __future__ import annotations

import functools
import types
from collections.abc import Callable

from framefuse.capture.facts.atoms import CONTAINERS
from framefuse.capture.interp.machine import Machine
from framefuse.capture.interp.registry import TRANSFORMS
from framefuse.capture.program.frame import Frame
from framefuse.capture.program.markers import Outcome
from framefuse.capture.recording.recorder import Recorder
from framefuse.capture.recording.transformed import Transformed
from framefuse.ir.values import Arguments, Function, Keywords, Value

# How parameters or variables are called that hold the function to transform.
GIVEN = frozenset(("func", "score_mod", "mask_mod"))
# What only gives a function, in which the function to transform is a variable.
MAKERS = frozenset(("vmap", "chunk_vmap", "grad", "grad_and_value", "jacrev", "jacfwd", "hessian"))


@functools.partial(TRANSFORMS.append)
def _transform(machine: Machine, frame: Frame, args: Arguments, kwargs: Keywords) -> Outcome:
    """A call of a Python function of torch's transforms, which stands before its arguments."""
    target, args = args[0], args[1:]
    recorder = machine.recorder
    recorder.functions.enter(target)
    if target.__code__.co_qualname in MAKERS:
        value = target(*args, **kwargs)
        if recorder.alive:
            _note_made(recorder, value, (*args, *kwargs.values()))
        frame.stack.append(value)
        return None
    region = region_of(recorder)
    for value in (*args, *kwargs.values()):
        region.take(value)
        if isinstance(value, CONTAINERS):
            recorder.contents.guard_deep_contents(value)
    function, args, kwargs = _with_frames(machine, target, args, kwargs)
    value = below(machine, frame, region, lambda: function(*args, **kwargs), "transform", target.__name__)
    for part in value if type(value) is tuple else (value,):
        if type(part) is types.FunctionType and recorder.alive and not recorder.sources.knows(part):
            recorder.sources.note_made(part)
    frame.stack.append(value)
    return None


def region_of(recorder: Recorder) -> Transformed:
    """The region in which a call of native code runs whose operators are recorded: a new one, or that around it."""
    outer = recorder.transformed
    assert outer is None or isinstance(outer, Transformed), "there is one kind"
    return Transformed(recorder) if outer is None else outer


def below(
    machine: Machine, frame: Frame, region: Transformed, call: Callable[[], Value], code: str, name: str
) -> Value:
    """What ``call`` gives, while the operators that torch runs in it become calls of the trace. Where that ends the
    recording, the next one leaves the instruction to a step, for this reason.
    """
    recorder, breakable = machine.recorder, machine.exits.breakable()
    outer, recorder.transformed = recorder.transformed, region
    machine.exits.sealed += 1
    try:
        if outer is not None:
            value = call()
        else:
            with region:
                value = call()
                region.end(value)
    finally:
        recorder.transformed = outer
        machine.exits.sealed -= 1
    if breakable and not recorder.alive:  # the next recording leaves the whole call to torch
        inner = f" ({recorder.reason.code})" if recorder.reason is not None else ""
        machine.exits.learn_step(frame, code, f"{name}{inner}")
    return value


def _note_made(recorder: Recorder, value: Value, given: Arguments) -> None:
    """This call made the function, and those of torch's own that it transforms in turn (``hessian``)."""
    while type(value) is types.FunctionType and all(value is not one for one in given):
        recorder.sources.note_made(value)
        cells = zip(value.__code__.co_freevars, value.__closure__ or (), strict=True)
        value = next((cell.cell_contents for name, cell in cells if name in GIVEN), None)


def _with_frames(
    machine: Machine, target: types.FunctionType, args: Arguments, kwargs: Keywords
) -> tuple[Function, Arguments, Keywords]:
    """The function with its arguments, with what runs in frames in the place of the program's own functions."""
    code = target.__code__
    names = code.co_varnames[: code.co_argcount]
    args = tuple(
        [_in_frames(machine, value) if name in GIVEN else value for name, value in zip(names, args, strict=False)]
        + list(args[len(names) :])
    )
    kwargs = {name: _in_frames(machine, value) if name in GIVEN else value for name, value in kwargs.items()}
    if target.__closure__ is None:
        return target, args, kwargs
    cells = []
    for name, cell in zip(code.co_freevars, target.__closure__, strict=True):
        value = machine.recorder.functions.read_cell(cell, cell.cell_contents, 0)
        if isinstance(value, CONTAINERS):
            machine.recorder.contents.guard_deep_contents(value)
        cells.append(types.CellType(_in_frames(machine, value)) if name in GIVEN else cell)
    copy = types.FunctionType(code, target.__globals__, target.__name__, target.__defaults__, tuple(cells))
    copy.__kwdefaults__ = target.__kwdefaults__
    return copy, args, kwargs


def _in_frames(machine: Machine, function: Function) -> Function:
    """What calls ``function`` as the interpreter does."""
    if not callable(function):
        return function

    @functools.wraps(function)
    def call(*args: Value, **kwargs: Value) -> Value:
        return machine.call_nested(CALL, (function, args, kwargs))

    return call


def call_(function: Function, args: Arguments, kwargs: Keywords) -> Value:
    return function(*args, **kwargs)


assert isinstance(call_, types.FunctionType), "it runs in frames"
CALL = call_
