"""Walks the instructions of the frames, one handler each, and finds handlers of exceptions."""

from __future__ import annotations

import functools
import sys
from types import FunctionType
from typing import Any

from framefuse.capture.attributes import Attributes
from framefuse.capture.calls import Calls
from framefuse.capture.frame import DONE, Frame, InterpretedGenerator, enter
from framefuse.capture.opcodes.iteration import iterate
from framefuse.capture.tracebacks import Trail
from framefuse.ir.source import Line

LONGEST = 3_000_000


@functools.cache
def is_users(module: str) -> bool:
    """Whether lines of this module are shown as the user's."""
    return not module.startswith(("torch.", "framefuse.capture"))


class Machine(Calls, Attributes):
    """The interpreter of one recording: a stack of frames that is no part of Python's own.

    A handler returns SWITCH after it changed the stack of frames and DONE when the frame at the bottom has returned.
    """

    def __init__(self, recorder: Any) -> None:
        self.recorder = recorder
        self.frames: list[Frame] = []
        self.opcodes = 0
        self.inlined = 0
        self.returned: Any = None
        self.raised: BaseException | None = None
        self.handled: BaseException | None = None
        self.trail = Trail()

    def line(self) -> Line | None:
        """The user's line that runs: of the innermost frame outside torch, else of the innermost."""
        for frame in reversed(self.frames):
            if is_users(frame.globals.get("__name__", "")):
                return frame.code.line(frame.step - 1)
        if self.frames:
            frame = self.frames[0]
            return frame.code.line(frame.step - 1)
        return None

    def loop(self, base: int, error: BaseException | None = None) -> Any:
        """Runs until the frame at index ``base`` returns; gives its value or raises its exception."""
        frames, count = self.frames, 0
        try:
            while True:
                frame = frames[-1]
                steps = frame.code.steps
                try:
                    if error is not None:
                        current, error = error, None
                        raise current
                    while True:
                        handler, argument = steps[frame.step]
                        frame.step += 1
                        count += 1
                        outcome = handler(self, frame, argument)
                        if outcome is not None:
                            break
                    if outcome is DONE:
                        return self.returned
                    if self.raised is not None:
                        error, self.raised = self.raised, None
                except BaseException as raised:
                    caught = raised
                else:
                    continue
                self.unwind(caught, base)
                del caught
        finally:
            self.opcodes += count
            if self.opcodes > LONGEST:
                self.recorder.kill("too-long", str(LONGEST))

    def unwind(self, error: BaseException, base: int) -> None:
        """Goes to the innermost handler of ``error`` above ``base``; raises it when there is none."""
        frames = self.frames
        handled = self.handled
        if error.__context__ is None and handled is not None and handled is not error:
            error.__context__ = handled
        while True:
            frame = frames[-1]
            self.trail.add(error, frame)
            offset = frame.code.offsets[frame.step - 1]
            for row in frame.code.handlers:
                if row.start <= offset < row.end:
                    del frame.stack[row.depth :]
                    if row.lasti:
                        frame.stack.append(frame.step - 1)
                    frame.stack.append(error)
                    frame.step = frame.code.index[row.target]
                    return
            frames.pop()
            self.handled = frame.handled
            generator = frame.generator
            if generator is not None:
                generator.state = "done"
                if isinstance(error, StopIteration):
                    made = RuntimeError("generator raised StopIteration")
                    made.__cause__ = made.__context__ = error
                    error = made
            if frame.bottom or len(frames) == base:
                raise error
            if frame.guard is not None and isinstance(error, AttributeError):
                frames[-1].stack.append(frame.guard[0])
                return

    def push(self, frame: Frame) -> None:
        """Enters a frame."""
        frame.handled = self.handled
        self.frames.append(frame)
        self.inlined += 1
        if len(self.frames) > sys.getrecursionlimit() - 100:
            self.frames.pop()
            raise RecursionError("maximum recursion depth exceeded")

    def call_nested(
        self, function: FunctionType, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        """Calls a Python function from where frames cannot be switched: in a loop of its own."""
        frame = enter(function, args, kwargs or {})
        frame.bottom = True
        base = len(self.frames)
        self.push(frame)
        handled = self.handled
        try:
            return self.loop(base)
        finally:
            del self.frames[base:]
            self.handled = handled

    def drive_generator(self, generator: InterpretedGenerator, value: Any, error: BaseException | None = None) -> Any:
        """Goes on with a generator from native code, in a loop of its own."""
        if generator.state == "done":
            if error is not None:
                raise error
            raise StopIteration
        if generator.state == "running":
            raise ValueError("generator already executing")
        frame = generator.frame
        frame.bottom, frame.resume = True, None
        if error is None:
            frame.stack.append(value)
        generator.state = "running"
        base, handled = len(self.frames), self.handled
        self.frames.append(frame)
        try:
            result = self.loop(base, error)
        finally:
            del self.frames[base:]
            self.handled = handled
        if generator.state == "done":
            raise StopIteration(result) if result is not None else StopIteration
        return result

    def resume(self, generator: InterpretedGenerator, value: Any, how: tuple[Any, ...]) -> None:
        """Goes on with a generator by a switch of frames; ``how`` says what the caller does with the outcome."""
        if generator.state == "running":
            raise ValueError("generator already executing")
        frame = generator.frame
        frame.bottom, frame.resume = False, how
        frame.stack.append(value)
        generator.state = "running"
        frame.handled = self.handled
        self.frames.append(frame)

    def iterate(self, frame: Frame, value: Any) -> Any:
        """Pushes ``iter(value)``; SWITCH after a frame was entered that will push it."""
        return iterate(self, frame, value)
