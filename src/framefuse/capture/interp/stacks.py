"""Lets calls that look at their callers find the user's frames: stand-ins for interpreted ones, on top of real ones."""

from __future__ import annotations

import inspect
import logging
import sys
import traceback
import types
import warnings
from collections.abc import Iterable

from framefuse.capture.facts.numbers import bare
from framefuse.capture.interp.machine import Machine
from framefuse.capture.program import leaves
from framefuse.capture.program.callers import Once, Place, on_places, standing
from framefuse.capture.program.debuggers import enters_debugger
from framefuse.capture.program.frame import Frame, FrameView, Pending
from framefuse.capture.program.tracebacks import is_ours, shown, variables
from framefuse.ir.values import Arguments, Function, Keywords, Value

# Calls that look at their callers and change nothing: True for those that show the local variables too.
LOOKS: dict[Function, bool] = {
    sys._getframe: True, inspect.currentframe: True, inspect.stack: True, traceback.extract_stack: False,
    traceback.format_stack: False,
}  # fmt: skip
# Calls that look at their callers, and speak to the world outside.
SPEAKS: frozenset[Function] = frozenset(
    (
        warnings.warn, traceback.print_stack, logging.debug, logging.info, logging.warning, logging.error,
        logging.critical, logging.log, logging.exception, logging.Logger.debug, logging.Logger.info,
        logging.Logger.warning, logging.Logger.error, logging.Logger.critical, logging.Logger.log,
        logging.Logger.exception,
    )
)  # fmt: skip
if hasattr(sys, "_getframemodulename"):
    LOOKS[sys._getframemodulename] = False


def looks(target: Function) -> bool:
    """Whether a callable looks at the frames of its callers."""
    try:
        return target in LOOKS or target in SPEAKS or enters_debugger(target)
    except TypeError:
        return False


def frames(machine: Machine) -> list[Frame]:
    """The interpreted frames of the user's functions, innermost first."""
    return [frame for frame in reversed(machine.frames) if not is_ours(frame.globals)]


def from_callers(machine: Machine) -> Function:
    """``call(target, args, kwargs, locals=())`` as the interpreted function on top would make it, now or on later
    calls; ``locals`` are those of the frames, innermost first.
    """
    return on_places(_places(machine))


def once_from_callers(machine: Machine) -> Function:
    """The same ``call(target, args, kwargs)`` of a cached function that says a thing once."""
    return Once(_places(machine))


def _places(machine: Machine) -> tuple[Place, ...]:
    return tuple([_place(frame) for frame in frames(machine)])


def look(
    machine: Machine,
    frame: Frame,
    target: Function,
    args: Arguments,
    kwargs: Keywords,
    continuation: Pending | None,
    base: bool = False,
) -> None:
    """An opaque step: a call that looks at its callers or at frame objects of interpreted frames; on the frame that
    called the compiled function itself where it is for the ``base``.
    """
    call = on_places(()) if base else from_callers(machine)
    local = () if base or not LOOKS.get(target, True) else local_variables(machine)
    if any(type(part) is FrameView for part in (*args, *kwargs.values())):
        target, args, kwargs = _with_frames, _without_views(machine, target, args, kwargs), {}
    machine.recorder.sources.root(call)
    machine.exits.opaque(frame, call, (target, args, kwargs, local), {}, continuation, "stack", leaves.title(target))


def from_here(
    machine: Machine, target: Function, args: Arguments, kwargs: Keywords
) -> tuple[Function, Arguments, Keywords]:
    """The same call, where nothing is recorded any longer: callable, arguments and keyword arguments."""
    local = _bare_variables(machine) if LOOKS.get(target) else ()
    return from_callers(machine), (target, args, kwargs, local), {}


def _bare_variables(machine: Machine) -> tuple[dict[str, Value], ...]:
    return tuple([{name: bare(value) for name, value in each.items()} for each in local_variables(machine)])


def show(machine: Machine, frame: Frame) -> types.FrameType:
    """A frame object of Python's that shows where an interpreted frame stands, with those that called it."""
    stack = frames(machine)
    depth = next((depth for depth, other in enumerate(stack) if other is frame), None)
    if depth is None:
        return shown(frame, {name: bare(value) for name, value in variables(frame).items()})
    shown_frame: types.FrameType = from_callers(machine)(sys._getframe, (depth,), {}, _bare_variables(machine))
    return shown_frame


def local_variables(machine: Machine) -> tuple[dict[str, Value], ...]:
    """The local variables of the interpreted frames, innermost first."""
    return tuple([variables(frame) for frame in frames(machine)])


def _without_views(machine: Machine, target: Function, args: Arguments, kwargs: Keywords) -> Arguments:
    """The arguments of :func:`_with_frames` for a call with frame objects of interpreted frames."""
    depths: dict[int | str, int] = {}
    stack = frames(machine)
    places: Iterable[tuple[int | str, Value]] = (*enumerate(args), *kwargs.items())
    for name, part in places:
        if type(part) is FrameView:
            depth = next((depth for depth, frame in enumerate(stack) if frame is part.frame), None)
            if depth is None:
                machine.recorder.kill("stack", leaves.title(target))
                depth = 0
            depths[name] = depth
    plain = tuple([None if type(part) is FrameView else part for part in args])
    return target, plain, {name: None if name in depths else part for name, part in kwargs.items()}, depths


def _with_frames(target: Function, args: Arguments, kwargs: Keywords, depths: dict[int | str, int]) -> Value:
    """Calls with the frame objects, of those above this one, that belong in these places of the arguments."""
    shown_frames: dict[int | str, types.FrameType] = {}
    for place, depth in depths.items():  # no comprehension: on 3.11 it has a frame of its own
        shown_frames[place] = sys._getframe(depth + 1)
    placed = [shown_frames.get(place, part) for place, part in enumerate(args)]
    return target(*placed, **{name: shown_frames.get(name, part) for name, part in kwargs.items()})


def _place(frame: Frame) -> Place:
    code, step = frame.code, max(frame.step - 1, 0)
    stand_in = code.standing.get(step)
    if stand_in is None:
        stand_in = code.standing[step] = standing(code.code, code.offsets[step], code.line_number(step))
    return Place(stand_in, frame.globals)
