"""Walks the instructions of the frames, one handler each, and finds handlers of exceptions."""

from __future__ import annotations

import functools
import sys
from itertools import pairwise
from types import FunctionType
from typing import Any

from framefuse.capture.attributes import Attributes
from framefuse.capture.breaks import Break
from framefuse.capture.buckets import cut_before
from framefuse.capture.calls import Calls, exception_of
from framefuse.capture.frame import DONE, MISSING, Frame, enter
from framefuse.capture.generators import Generators
from framefuse.capture.host import HOST
from framefuse.capture.leaves import is_installed, library_of
from framefuse.capture.opcodes.iteration import iterate
from framefuse.capture.retreat import Before, watched
from framefuse.capture.settle import settle, settle_values
from framefuse.capture.stacks import is_framefuse
from framefuse.capture.tracebacks import entry, is_ours, users
from framefuse.errors import rethrow
from framefuse.ir.source import Line, Site

LONGEST = 3_000_000
OUR_FRAMES = 16  # of our own, at most, between two frames of the program where one loop runs in another
SHALLOW = 100  # frames that fit below any limit that a program may have
# Reasons for ending a recording that a break before the instruction heals: what was changed is real after it.
CUT_BEFORE = frozenset(("read-after-write", "data-size"))
# Reasons that are healed where the instruction runs as a step of its own.
STEPS = frozenset(
    ("item", "branch", "numpy", "tensor-attribute", "unknown-tensor", "random-state", "native-call", "autograd",
     "transform", "custom-function", "tensor-kind", "value", "argument", "write", "opcode", "autocast")
)  # fmt: skip


@functools.cache
def is_users(module: str) -> bool:
    """Whether lines of this module are shown as the user's."""
    return not module.startswith(("torch.", "framefuse.capture"))


class Machine(Calls, Attributes, Generators):
    """The interpreter of one recording: a stack of frames that is no part of Python's own.

    A handler returns SWITCH after it changed the stack of frames and DONE when the frame at the bottom has returned.
    """

    def __init__(self, recorder: Any, points: Any = None) -> None:
        self.recorder = recorder
        self.points = points  # None: a break ends the recording
        self.depth = 0
        self.below: int | None = None
        self.sealed = 0
        self.learnt = False
        self.boundaries: dict[int, dict[int, Any]] = {}  # by DistributedDataParallel: modules before which to cut
        self.before: Before | None = None  # what the instruction at hand found, once numbers were read from tensors
        self.watching = self.renewed = False
        self.reads_elements = points is None or not points.replayed
        self.forced: tuple[str, str] | None = None  # the call of this instruction is a step, for this reason
        self.skip: tuple[Frame, int] | None = None
        self.frames: list[Frame] = []
        self.opcodes = 0
        self.inlined = 0
        self.returned: Any = None
        self.raised: BaseException | None = None
        # The exception that the running handler is for: of the innermost generator, else of the frames at the bottom.
        self.handled: BaseException | None = None
        self.outer = sys.exc_info()[1]
        # Set where a recording was given up: what the instruction under way had in its hands holds numbers still.
        self.unsettled: dict[int, Any] | None = None
        self.again: BaseException | None = None

    def line(self) -> Line | None:
        """The user's line that runs: of the innermost frame outside torch, else of the innermost."""
        if not self.frames:
            return None
        top = self.frames[-1]
        if top.shown is None or top.shown[0] != top.step:  # one instruction states many facts
            if top.around is None and is_users(top.globals.get("__name__", "")):
                top.shown = (top.step, top.code.line(top.step - 1))
            else:
                top.shown = (top.step, self._around(top))
        return top.shown[1]

    def _around(self, top: Frame) -> Line:
        """The user's line around a frame of torch; it stays where it is while the frame runs, unless that can yield."""
        if top.around is not None:
            return top.around
        for frame in reversed(self.frames):
            if is_users(frame.globals.get("__name__", "")):
                break
        else:
            frame = self.frames[0]
        line = frame.code.line(frame.step - 1)
        if top.generator is None and frame is not top:
            top.around = line
        return line

    def site(self) -> Site | None:
        """The instruction that runs, or the innermost around it at which a recording can break."""
        frames = self.frames
        end = len(frames)
        if self.depth > 1:  # a call from native code cannot be taken apart
            end = next((place for place in range(1, end) if frames[place].bottom), end)
        missing = []
        for frame in reversed(frames if end == len(frames) else frames[:end]):
            found = frame.site
            if found is not None and found.step == frame.step - 1:
                break  # a frame that called another one stays where it is
            missing.append(frame)
        else:
            found = None
        for frame in reversed(missing):
            found = frame.site = Site(frame.code.code, frame.step - 1, found)
        return found

    def settle(self, memo: dict[int, Any]) -> None:
        """Takes tracked numbers out of what the frames hold: nobody records any longer, and they would reach the user's
        objects. ``memo`` names the objects that hold none.
        """
        for interpreted in (False, True):  # a generator that lies in a container too is a real one by now
            for frame in self.frames:
                settle_values(frame.locals, memo, interpreted)
                settle_values(frame.stack, memo, interpreted)

    def loop(self, base: int, error: BaseException | None = None) -> Any:
        """Runs until the frame at index ``base`` returns; gives its value or raises its exception."""
        frames, count = self.frames, 0
        self.depth += 1
        HOST.add_headroom(OUR_FRAMES)
        try:
            while True:
                if error is not None:
                    current, error = error, None
                    self.unwind(current, base)
                    del current
                if self.unsettled is not None:
                    memo, self.unsettled = self.unsettled, None
                    self.settle(memo)
                    del memo  # it holds what it names
                frame = frames[-1]
                steps = frame.code.steps
                try:
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
                except Break:
                    raise
                except BaseException as raised:
                    caught = raised
                else:
                    continue
                self.unwind(caught, base)
                del caught
        finally:
            HOST.add_headroom(-OUR_FRAMES)
            self.depth -= 1
            self.opcodes += count
            if self.opcodes > LONGEST:
                self.recorder.kill("too-long", str(LONGEST))

    def unwind(self, error: BaseException, base: int) -> None:
        """Goes to the innermost handler of ``error`` above ``base``; raises it when there is none."""
        frames = self.frames
        again, self.again = error is self.again, None
        if not again:
            self.chain(error)
        trace = users(error.__traceback__)
        while True:
            frame = frames[-1]
            if not again:
                trace = entry(trace, frame)
            again = False
            error.__traceback__ = trace
            offset = frame.code.offsets[frame.step - 1]
            for row in frame.code.handlers:
                if row.start <= offset < row.end:
                    del frame.stack[row.depth :]
                    if row.lasti:
                        frame.stack.append(frame.step - 1)
                    frame.stack.append(error)
                    frame.step = frame.code.index[row.target]
                    del error  # its traceback may hold this frame, as one of those below a frame that stands in
                    return
            frames.pop()
            self.handled = frame.handled
            generator = frame.generator
            if generator is not None:
                generator.state = "done"
                if isinstance(error, StopIteration):
                    made = RuntimeError("generator raised StopIteration")
                    made.__cause__ = made.__context__ = error
                    error, trace = made, entry(None, frame)
            if frame.bottom or len(frames) == base:
                error.__traceback__ = trace
                rethrow(error)
            if frame.guard is not None and isinstance(error, AttributeError):
                if len(frame.guard) == 1:
                    frames[-1].stack.append(frame.guard[0])
                    return
                try:
                    self.fall_back(frames[-1], *frame.guard[1:])
                    return
                except BaseException as other:
                    error = other
                self.chain(error)
                trace = users(error.__traceback__)

    def current(self) -> BaseException | None:
        """The exception that is being handled where the program stands, as ``sys.exc_info`` tells it."""
        if self.handled is not None:
            return self.handled
        for frame in reversed(self.frames):
            if frame.generator is not None and frame.handled is not None:
                return frame.handled
        return self.outer

    def chain(self, error: BaseException, always: bool = False) -> None:
        """Notes the handled exception as the context of one that is raised; C code knows of no interpreted handler."""
        handled = self.current()
        if handled is None or handled is error:
            return
        if not always and error.__context__ is not None and error.__context__ is not self.outer:
            return
        inner, seen = handled, 0
        while inner.__context__ is not None and seen < 1000:
            if inner.__context__ is error:
                inner.__context__ = None
                break
            inner, seen = inner.__context__, seen + 1
        error.__context__ = handled

    def throw(self, error: BaseException, cause: Any = MISSING) -> None:
        """Raises ``error`` in the frame on top, as the statement ``raise error from cause`` does."""
        if isinstance(cause, type) and issubclass(cause, BaseException):
            cause = exception_of(cause, cause())
        if cause is not MISSING:
            if cause is not None and not isinstance(cause, BaseException):
                raise TypeError("exception causes must derive from BaseException")
            error.__cause__ = cause
        self.chain(error, always=True)
        self.raised = error

    # Breaks ---------------------------------------------------------------------------------------------------------

    def start(self, frame: Frame) -> None:
        """Puts the first frame in its place."""
        if self.points is not None and self.points.learnt:
            frame.code = self.points.cut(frame.code)
        self.frames.append(frame)

    def resumed(self) -> None:
        """The frames were put together again: a cut at the instruction that comes next was made already."""
        if self.points is not None and self.points.learnt:
            for frame in self.frames:
                frame.code = self.points.cut(frame.code)
        self.skip = (self.frames[-1], self.frames[-1].step)

    def release(self) -> None:
        """The run is over here: what it worked on may go. Generators of it may still use this machine."""
        self.frames.clear()
        self.skip, self.returned = None, None
        self.recorder.machine = None

    def breakable(self) -> bool:
        """Whether all frames between here and the caller can be taken apart at this instruction."""
        return self.points is not None and self.depth == 1 and not self.sealed and bool(self.recorder.alive)

    def opaque(
        self,
        frame: Frame,
        target: Any,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        then: Any,
        code: str,
        detail: str,
    ) -> None:
        """Runs a call that cannot be recorded: as a step between two segments, else as the end of the recording."""
        if self.breakable():
            raise Break(target, args, kwargs, then, code, detail)
        memo = self.recorder.settled()
        self.recorder.kill(code, detail)
        args, kwargs = self.hand_over(args, kwargs, memo)
        self.finish(frame, self.handling(target, args, kwargs), then)

    def hand_over(
        self, args: tuple[Any, ...], kwargs: dict[str, Any], memo: dict[int, Any]
    ) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """The arguments of native code after the recording ended: containers stay the very objects, as that may change
        them, and generators become real ones wherever the frames have them.
        """
        memo.update(self.recorder.stand_ins)
        args = settle(args, memo)
        kwargs = {key: settle(part, memo) for key, part in kwargs.items()}
        if self.recorder.generators:
            self.settle(memo)
        return args, kwargs

    def cut(self, frame: Frame, handler: Any, argument: int) -> Any:
        """Breaks before an instruction at which an earlier recording ended, once for each time that it is met."""
        here = (frame, frame.step - 1)
        if self.skip == here or not self.breakable():
            self.skip = None
            return handler(self, frame, argument)
        frame.step -= 1
        raise Break(None, (), {}, None, "cut", frame.code.line(frame.step).text)

    def learn(self, code: str, detail: str) -> None:
        """The recording ends at this instruction: the next one shall break here instead."""
        if not self.breakable():
            return
        frame = self.frames[-1]
        if code in CUT_BEFORE:
            self.learnt |= self.points.learn(frame.code.code, frame.step - 1, None)
        elif code in STEPS:
            self.learn_step(frame, code, detail)

    def place(self) -> tuple[Any, int] | None:
        """The instruction at hand, where it can be made a step of its own."""
        frame = self.frames[-1]
        return (frame.code.code, frame.step - 1) if self.breakable() else None

    def learn_step(self, frame: Frame, code: str, detail: str) -> None:
        """The next recording runs the instruction at hand of this frame, where it could have broken, as a step."""
        self.learnt |= self.points.learn(frame.code.code, frame.step - 1, (code, detail))
        library = library_of(frame.code.code)
        if library is not None and self.points.crowded(library):
            self._learn_entry(library, code, detail)

    def _learn_entry(self, library: str, code: str, detail: str) -> None:
        """Many recordings have ended in a library: the next one runs the call that went into it as a step."""
        for caller, called in reversed(list(pairwise(self.frames))):
            if library_of(caller.code.code) == library or library_of(called.code.code) != library:
                continue
            if called.generator is None and self.points.learn(caller.code.code, caller.step - 1, (code, detail)):
                self.points.forget()
            return

    def learn_call(self, code: str, detail: str) -> None:
        """No break is possible here: the next recording runs the call that led here as a step. That is the call by
        which the program went into a library, or else the innermost that can be one.
        """
        callers = [frame for frame, called in pairwise(self.frames) if called.generator is None]
        own = [frame for frame in callers if not is_installed(frame.code.code)]
        if own and is_installed(self.frames[-1].code.code):
            callers.append(own[-1])
        for frame in reversed(callers):
            if not is_ours(frame.globals) and self.points.learn(frame.code.code, frame.step - 1, (code, detail)):
                self.learnt = True
                self.points.forget()
                return

    def learn_readers(self, places: list[tuple[Any, int] | None], detail: str) -> bool:
        """The next recording runs the instructions that read numbers from tensors as steps; False where none can be."""
        if self.points is None:
            return False
        found = [self.points.learn(*place, ("item", detail)) for place in places if place is not None]
        self.learnt |= any(found)
        return any(found)

    def watch(self) -> None:
        """A number was read from a tensor: from here on an instruction that looks at it can be taken back."""
        if not self.watching and self.points is not None:
            self.watching = self.renewed = True
            for frame in self.frames:
                frame.code = watched(frame.code)

    def later(self, detail: str) -> None:
        """The program makes what it needs from its second call on, as optimizers make their state: the next call is
        worth more than this one.
        """
        if self.breakable() and self.points.waits(self.frames[-1].code.code):
            self.learnt = True
        self.recorder.kill("first-use", detail)

    def settle_outcome(self, outcome: Any, then: Any) -> None:
        """The top frame takes the outcome of an opaque step."""
        if then is not None:  # what follows asks which object it is, and a tensor has only facts that were asked for
            self.recorder.sources.guard_type(outcome)
        try:
            self.finish(self.frames[-1], outcome, then)
        except Break:
            raise
        except BaseException as error:
            self.unwind(error, 0)

    # Frames ---------------------------------------------------------------------------------------------------------

    def teach(self, frame: Frame) -> None:
        """Has a frame that is about to run, or to go on, break where earlier recordings learnt to."""
        if self.points is None:
            return
        if self.points.learnt:
            frame.code = self.points.cut(frame.code)
        cut_before(self, frame)
        if self.watching:
            frame.code = watched(frame.code)

    def push(self, frame: Frame) -> None:
        """Enters a frame."""
        self.teach(frame)
        frame.handled = self.handled
        self.frames.append(frame)
        self.inlined += 1
        if len(self.frames) > SHALLOW and self._too_deep():
            self.frames.pop()
            raise RecursionError("maximum recursion depth exceeded")

    def _too_deep(self) -> bool:
        """Whether the program's frames, with those of whoever called the compiled function, are more than it may have.
        """
        if self.below is None:
            self.below, outer = 0, sys._getframe()
            while outer.f_back is not None:
                outer = outer.f_back
                self.below += not is_framefuse(outer)
        room = sys.getrecursionlimit() - self.below
        return len(self.frames) > room and sum(not is_ours(frame.globals) for frame in self.frames) > room

    def call_nested(
        self, function: FunctionType, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        """Calls a Python function from where frames cannot be switched: in a loop of its own."""
        self.recorder.sources.enter_function(function)
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

    def iterate(self, frame: Frame, value: Any, stepped: bool = False) -> Any:
        """Pushes ``iter(value)``; SWITCH after a frame was entered that will push it."""
        return iterate(self, frame, value, stepped)
