"""Makes calls that look at their callers as frames of the program would: code stands for each, at its file and line."""

from __future__ import annotations

import dis
import functools
import logging
import sys
import types
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from framefuse.capture.program.host import HOST
from framefuse.capture.program.tracebacks import StandIn, is_framefuse
from framefuse.ir.repeated_calls import Repeated
from framefuse.ir.values import Arguments, Function, Keywords, Value

# Methods of loggers that first ask whether their level is heard, and do nothing where it is not.
LEVELS: dict[Function, int] = {
    logging.Logger.debug: logging.DEBUG, logging.Logger.info: logging.INFO, logging.Logger.warning: logging.WARNING,
    logging.Logger.error: logging.ERROR, logging.Logger.critical: logging.CRITICAL,
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Place:
    """Where an interpreted frame stands: ``code`` shows its names and position and calls its first constant."""

    code: types.CodeType
    globals: dict[str, Value]


def on_places(places: tuple[Place, ...]) -> Function:
    """``call(target, args, kwargs, locals=())`` as frames at these places would make it, innermost first."""
    return functools.partial(HOST.call_on_frame, functools.partial(_prepare, places))


class Once:
    """The same for calls of a cached function: frames stand there only where its cache lacks the call."""

    __slots__ = ("known", "places")

    def __init__(self, places: tuple[Place, ...]) -> None:
        self.places = places
        self.known: Repeated | None = None

    def __call__(self, target: Function, args: Arguments, kwargs: Keywords) -> Value:
        known = self.known
        if known is None or known.function is not target or known.args != args or known.kwargs != kwargs:
            known = self.known = Repeated(target, args, kwargs)
        return on_places(self.places)(target, args, kwargs) if known.lacks else target(*args, **kwargs)


def places_of(call: Value) -> tuple[str, list[tuple[tuple[Value, ...], dict[str, Value]]]] | None:
    """Which of the two a call is, "said" or "once", with what its places show and their variables; None for others."""
    if type(call) is Once:
        how, places = "once", call.places
    elif type(call) is functools.partial and call.func is HOST.call_on_frame:
        prepare = call.args[0]
        if type(prepare) is not functools.partial or prepare.func is not _prepare:
            return None
        how, places = "said", prepare.args[0]
    else:
        return None
    return how, [(tuple([getattr(place.code, name) for name in SHOWN]), place.globals) for place in places]


def from_places(how: str, shown: Sequence[tuple[tuple[Value, ...], dict[str, Value]]]) -> Function:
    """The call of which :func:`places_of` told."""
    places = tuple([Place(_standing_as(*each), variables) for each, variables in shown])
    return Once(places) if how == "once" else on_places(places)


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


def standing(code: types.CodeType, offset: int, line: int) -> types.CodeType:
    """Code that calls its first constant, at one position of ``code``."""
    positions = list(code.co_positions())
    at = positions[offset // 2] if offset // 2 < len(positions) else (line, line, None, None)
    table, before = b"", code.co_firstlineno
    for start in range(0, len(CALLING.co_code) // 2, 8):
        table += _location(min(8, len(CALLING.co_code) // 2 - start), at, before, line)
        before = line
    return _standing_as(code.co_filename, code.co_name, code.co_qualname, code.co_firstlineno, table)


def _standing_as(*shown: Value) -> types.CodeType:
    """Code that calls its first constant, and shows a file, names, a first line and lines."""
    return CALLING.replace(**dict(zip(SHOWN, shown, strict=True)))


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
SHOWN = ("co_filename", "co_name", "co_qualname", "co_firstlineno", "co_linetable")
