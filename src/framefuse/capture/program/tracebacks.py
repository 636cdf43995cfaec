"""Keeps the tracebacks of exceptions as the user's program would have them: interpreted frames in, our own out."""

from __future__ import annotations

import functools
import inspect
import os
import types
from collections.abc import Iterator

import torch
from torch.overrides import handle_torch_function

from framefuse.capture.program.frame import Frame, InterpretedGenerator
from framefuse.capture.program.leaves import INTERPRETED_OURS
from framefuse.capture.program.markers import UNBOUND
from framefuse.ir.own_class import is_a
from framefuse.ir.source import Line
from framefuse.ir.values import Value

TORCH = os.path.dirname(torch.__file__) + os.sep
OURS = ("framefuse.capture", "framefuse.errors")


class StandIn(functools.partial[Value]):
    """What the code of a frame calls that stands for an interpreted one; its presence marks such code."""


def is_ours(variables: dict[str, Value]) -> bool:
    """Whether a frame with these globals is the interpreter's own, which no program sees."""
    name = variables.get("__name__")
    return is_a(name, str) and name.startswith(OURS)


def is_framefuse(frame: types.FrameType) -> bool:
    """Whether a real frame is one of framefuse's own, which no program sees."""
    name = frame.f_globals.get("__name__")
    return is_a(name, str) and name.startswith("framefuse.") and not name.startswith(INTERPRETED_OURS)


def raised_at(traceback: types.TracebackType | None) -> Line | None:
    """The innermost line of the program's own in a traceback, or the innermost where all are torch's."""
    lines = []
    while traceback is not None:
        code = traceback.tb_frame.f_code
        lines.append(Line(code.co_filename, traceback.tb_lineno, code.co_qualname))
        traceback = traceback.tb_next
    own = [line for line in lines if not line.file.startswith(TORCH)] or lines
    return own[-1] if own else None


def users(traceback: types.TracebackType | None) -> types.TracebackType | None:
    """The traceback without our own frames, and without torch's way into the function mode that records."""
    entries = []
    foreign = True
    here = traceback
    while here is not None:
        if not is_ours(here.tb_frame.f_globals) and not _stands_in(here.tb_frame.f_code):
            entries.append(here)
        else:
            foreign = False
            if entries and entries[-1].tb_frame.f_code is handle_torch_function.__code__:
                del entries[-2:]  # the function of torch that asked the mode stands again further in
        here = here.tb_next
    if foreign:
        return traceback
    chain: types.TracebackType | None = None
    for entry in reversed(entries):
        chain = types.TracebackType(chain, entry.tb_frame, entry.tb_lasti, entry.tb_lineno)
    return chain


def _stands_in(code: types.CodeType) -> bool:
    return len(code.co_consts) == 1 and type(code.co_consts[0]) is StandIn


def entry(following: types.TracebackType | None, frame: Frame) -> types.TracebackType | None:
    """The traceback entry of an interpreted frame before those of the frames that it called. It holds the generators of
    the frame, which close when the exception is let go.
    """
    if is_ours(frame.globals):
        return following
    step = frame.step - 1
    held = [value for value in frame.locals if type(value) is InterpretedGenerator]
    real = shown(frame, {"held": held} if held else None)
    return types.TracebackType(following, real, frame.code.offsets[step], frame.code.line_number(step))


def shown(frame: Frame, local: dict[str, Value] | None = None) -> types.FrameType:
    """A frame object of Python's that shows the function, file and lines of an interpreted frame, and ``local`` as its
    locals.

    It is that of a generator that was never started, with the user's names and lines: it has no frame before it. Others
    keep the frames of those who called them, so that a program that keeps an exception would keep the recorder's.
    """
    code = frame.code
    if code.stub is None:
        code.stub = _stub(code.code)
    return eval(code.stub, frame.globals, {} if local is None else local).gi_frame  # type: ignore[no-any-return]


def variables(frame: Frame) -> dict[str, Value]:
    """The bound local variables of an interpreted frame by name."""
    bound = {}
    for name, value in zip(frame.code.local_names, frame.locals, strict=True):
        if is_a(value, types.CellType):
            try:
                value = value.cell_contents
            except ValueError:
                continue
        if value is not UNBOUND:
            bound[name] = value
    return bound


def _never_started() -> Iterator[None]:
    yield


def _stub(code: types.CodeType) -> types.CodeType:
    """The code of a generator under the name and lines of ``code`` and as long as that."""
    stub = _never_started.__code__
    body = stub.co_code
    body += body[-2:] * ((len(code.co_code) - len(body)) // 2)
    return stub.replace(
        co_code=body, co_filename=code.co_filename, co_name=code.co_name, co_qualname=code.co_qualname,
        co_firstlineno=code.co_firstlineno, co_linetable=code.co_linetable, co_exceptiontable=b"",
        co_flags=inspect.CO_GENERATOR,
    )  # fmt: skip
