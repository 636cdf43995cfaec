"""Lets calls that look at their callers find the user's frames: stand-ins for interpreted ones, on top of real ones."""

from __future__ import annotations

import dis
import functools
import inspect
import logging
import sys
import traceback
import types
import warnings
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from framefuse.capture.facts.numbers import bare
from framefuse.capture.interp.machine import Machine
from framefuse.capture.program import leaves
from framefuse.capture.program.debuggers import enters_debugger
from framefuse.capture.program.frame import Frame, FrameView, Pending
from framefuse.capture.program.host import HOST
from framefuse.capture.program.tracebacks import StandIn, is_framefuse, is_ours, shown, variables
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
# Methods of loggers that first ask whether their level is heard, and do nothing where it is not.
LEVELS: dict[Function, int] = {
    logging.Logger.debug: logging.DEBUG, logging.Logger.info: logging.INFO, logging.Logger.warning: logging.WARNING,
    logging.Logger.error: logging.ERROR, logging.Logger.critical: logging.CRITICAL,
}  # fmt: skip
if hasattr(sys, "_getframemodulename"):
    LOOKS[sys._getframemodulename] = False


@dataclass(frozen=True, slots=True)
class Place:
    """Where an interpreted frame stands: ``code`` shows its names and position and calls its first constant."""

    code: types.CodeType
    globals: dict[str, Value]


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
    return _on(tuple([_place(frame) for frame in frames(machine)]))


def _on(places: tuple[Place, ...]) -> Function:
    return functools.partial(HOST.call_on_frame, functools.partial(_prepare, places))


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
    call = _on(()) if base else from_callers(machine)
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


def _prepare(
    places: tuple[Place, ...],
    target: Function,
    args: Arguments,
    kwargs: Keywords,
    local: tuple[dict[str, Value], ...] = (),
) -> tuple[types.FrameType, Callable[[], Value]]:
    """The frame that called compiled code, and a call through one frame for each of ``places``."""
    if target in LEVELS and not args[0].isEnabledFor(LEVELS[target]):
        return sys._getframe(), _nothing
    call: Callable[[], Value] = functools.partial(target, *args, **kwargs)
    for depth, place in enumerate(places):
        code = place.code.replace(co_consts=(StandIn(call),))
        call = functools.partial(eval, code, place.globals, local[depth] if local else {})
    outer: types.FrameType = sys._getframe()
    while outer.f_back is not None and is_framefuse(outer):
        outer = outer.f_back
    return outer, call


def _nothing() -> None:
    return None


# Code that stands in --------------------------------------------------------------------------------------------------


def _place(frame: Frame) -> Place:
    code, step = frame.code, max(frame.step - 1, 0)
    stand_in = code.standing.get(step)
    if stand_in is None:
        stand_in = code.standing[step] = _standing(code.code, code.offsets[step], code.line_number(step))
    return Place(stand_in, frame.globals)


def _standing(code: types.CodeType, offset: int, line: int) -> types.CodeType:
    """Code that calls its first constant, at one position of ``code``."""
    positions = list(code.co_positions())
    at = positions[offset // 2] if offset // 2 < len(positions) else (line, line, None, None)
    table, before = b"", code.co_firstlineno
    for start in range(0, len(CALLING.co_code) // 2, 8):
        table += _location(min(8, len(CALLING.co_code) // 2 - start), at, before, line)
        before = line
    return CALLING.replace(
        co_filename=code.co_filename, co_name=code.co_name, co_qualname=code.co_qualname,
        co_firstlineno=code.co_firstlineno, co_linetable=table,
    )  # fmt: skip


def _location(units: int, at: tuple[int | None, ...], before: int, line: int) -> bytes:
    """One entry of a table of locations: ``units`` of code at ``line``, after those at line ``before``."""
    _, end, column, end_column = at
    delta = line - before
    parts, form = [delta << 1 if delta >= 0 else -delta << 1 | 1], 13
    if end is not None and column is not None and end_column is not None and end >= line:
        parts, form = [*parts, end - line, column + 1, end_column + 1], 14
    return bytes((0x80 | form << 3 | units - 1,)) + b"".join(map(_varint, parts))


def _varint(value: int) -> bytes:
    parts = []
    while value > 63:
        parts.append(0x40 | value & 63)
        value >>= 6
    return bytes((*parts, value))


def _calling() -> types.CodeType:
    """Code that calls its first constant and gives what that gives."""
    code = compile("f()", "", "eval")
    body = bytearray(code.co_code)
    for place in range(0, len(body), 2):
        if body[place] == dis.opmap["LOAD_NAME"]:
            body[place] = dis.opmap["LOAD_CONST"]
    return code.replace(co_code=bytes(body), co_names=(), co_consts=(None,))


CALLING = _calling()
