"""Turns the interpreted frames that an exception passed into real traceback entries of the user's program."""

from __future__ import annotations

import types
from typing import Any

from framefuse.capture.frame import Frame


class Trail:
    """The frames that the exception under way has left, innermost first."""

    def __init__(self) -> None:
        self.error: BaseException | None = None
        self.passed: list[tuple[Frame, int]] = []

    def add(self, error: BaseException, frame: Frame) -> None:
        """``error`` passes ``frame``; raised again in the frame that caught it, it adds no second entry."""
        if self.error is not error:
            self.error, self.passed = error, []
        if not self.passed or self.passed[-1][0] is not frame:
            self.passed.append((frame, frame.code.line_number(frame.step - 1)))

    def clear(self) -> None:
        """Forgets the exception and the frames."""
        self.error, self.passed = None, []

    def finish(self, error: BaseException) -> BaseException:
        """``error`` with a traceback of the user's frames, then of the native ones inside them."""
        traceback = native_part(error.__traceback__)
        if self.error is error:
            for frame, line in self.passed:
                if not frame.globals.get("__name__", "").startswith("framefuse.capture"):
                    traceback = types.TracebackType(traceback, real_frame(frame, line), -1, line)
        self.clear()
        return error.with_traceback(traceback)


def native_part(traceback: types.TracebackType | None) -> types.TracebackType | None:
    """The entries after the interpreter's own last one."""
    found, here = traceback, traceback
    while here is not None:
        if here.tb_frame.f_globals.get("__name__", "").startswith("framefuse.capture"):
            found = here.tb_next
        here = here.tb_next
    return found


def _template() -> Any:
    return 1 // 0


def real_frame(frame: Frame, line: int) -> types.FrameType:
    """A frame object of Python's that shows the function, file and line of an interpreted frame.

    A code object with the user's names is run until it fails: Python makes frames in no other way.
    """
    code = frame.code.code
    stub = _template.__code__.replace(
        co_filename=code.co_filename, co_name=code.co_name, co_qualname=code.co_qualname, co_firstlineno=line
    )
    try:
        types.FunctionType(stub, frame.globals)()
    except ZeroDivisionError as error:
        assert error.__traceback__ is not None and error.__traceback__.tb_next is not None
        return error.__traceback__.tb_next.tb_frame
    raise AssertionError("the stub returned")
