"""The interpreter of one recording: frames that are no part of Python's own stack, and the loop that runs them."""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable
from types import FunctionType
from typing import ClassVar, TypeAlias

from framefuse.capture.facts.settle import settle_values
from framefuse.capture.program.breaks import Break
from framefuse.capture.program.frame import Frame, Pending, enter
from framefuse.capture.program.host import HOST
from framefuse.capture.program.markers import DONE, MISSING, Outcome
from framefuse.capture.program.services import (
    AttributeProtocol,
    AttributeWriteProtocol,
    CallProtocol,
    ExitProtocol,
    GeneratorProtocol,
    NativePolicy,
    OperatorProtocol,
)
from framefuse.capture.program.tracebacks import entry, is_framefuse, is_ours, users
from framefuse.capture.recording.recorder import Recorder
from framefuse.errors import rethrow
from framefuse.ir.own_class import is_a
from framefuse.ir.source import Line, Site
from framefuse.ir.values import Arguments, Keywords, Value

LONGEST = 3_000_000
OUR_FRAMES = 16  # of our own, at most, between two frames of the program where one loop runs in another
SHALLOW = 100  # frames that fit below any limit that a program may have


# What only calls what others wrote, of Python and of torch: its lines tell nobody where he is.
PLUMBING = frozenset(
    "_collections_abc abc collections contextlib copy copyreg dataclasses enum functools inspect logging operator "
    "reprlib types typing warnings weakref".split()
)
CALLERS = "torch.nn.modules.module", "torch.nn.modules.container"  # that of the latter at least calls a layer


@functools.cache
def is_users(module: str) -> bool:
    """Whether lines of this module are shown as the user's."""
    return not module.startswith(("torch.", "framefuse.capture")) and not _is_plumbing(module)


@functools.cache
def _is_plumbing(module: str) -> bool:
    return module.partition(".")[0] in PLUMBING or module in CALLERS


class Continuation(Pending):
    """What becomes of a value that a call or an opaque step gives."""

    __slots__ = ()

    def finish(self, machine: Machine, frame: Frame, value: Value) -> None:
        """Does it in the frame that waited."""
        raise NotImplementedError


class Resumption(Pending):
    """What becomes of the values of a generator in the frame that goes on with it."""

    __slots__ = ()

    def yielded(self, machine: Machine, frame: Frame, value: Value) -> None:
        """The generator yields."""
        frame.stack.append(value)

    def returned(self, machine: Machine, frame: Frame, value: Value) -> None:
        """The generator ends."""
        raise NotImplementedError


class Recovery(Pending):
    """How a frame goes on after a call raised ``caught``: AttributeError of a lookup, StopIteration of an iterator."""

    __slots__ = ()
    caught: ClassVar[type[Exception]] = AttributeError

    def recover(self, machine: Machine, frame: Frame) -> None:
        """Pushes what stands for the attribute."""
        raise NotImplementedError


class Machine:
    """The frames and the loop. What an instruction does is said by handlers, which find here what they work on: the
    frames, the recorder, and the services.

    A handler returns SWITCH after it changed the stack of frames and DONE when the frame at the bottom has returned.
    """

    attributes: AttributeProtocol
    attribute_writes: AttributeWriteProtocol
    calls: CallProtocol
    natives: NativePolicy
    operations: OperatorProtocol
    generators: GeneratorProtocol
    exits: ExitProtocol

    def __init__(self, recorder: Recorder) -> None:
        self.recorder = recorder
        self.depth = 0  # of loops: more than one where native code called back
        self.below: int | None = None
        self.frames: list[Frame] = []
        self.opcodes = 0
        self.inlined = 0
        self.ranges: list[str] = []  # what parts of the program are called to a profiler
        self.returned: Value = None
        self.raised: BaseException | None = None
        # The exception that the running handler is for: of the innermost generator, else of the frames at the bottom.
        self.handled: BaseException | None = None
        self.outer = sys.exc_info()[1]
        # Set where a recording was given up: what the instruction under way had in its hands holds numbers still.
        self.unsettled: dict[int, Value] | None = None
        self.again: BaseException | None = None

    def line(self) -> Line | None:
        """The user's line that runs: of the innermost frame outside torch, else of torch's outermost ``forward``."""
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
        """The user's line around a frame of torch or Python; it stays while the frame runs, unless that can yield."""
        if top.around is not None:
            return top.around
        for frame in reversed(self.frames):
            if is_users(frame.globals.get("__name__", "")):
                break
        else:  # a module of torch's was compiled: the line of its own forward, else the one that calls a layer
            names = [each.globals.get("__name__", "") for each in self.frames]
            own = (each for each, name in zip(self.frames, names, strict=True) if not _is_plumbing(name))
            calling = (each for each, name in zip(self.frames, names, strict=True) if name != CALLERS[0])
            frame = next(own, next(calling, self.frames[0]))
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
            site = frame.site
            if site is not None and site.step == frame.step - 1:
                break  # a frame that called another one stays where it is
            missing.append(frame)
        else:
            site = None
        for frame in reversed(missing):
            site = frame.site = Site(frame.code.code, frame.step - 1, site)
        return site

    def settle(self, memo: dict[int, Value]) -> None:
        """Takes tracked numbers out of what the frames hold: nobody records any longer, and they would reach the user's
        objects. ``memo`` names the objects that hold none.
        """
        for interpreted in (False, True):  # a generator that lies in a container too is a real one by now
            for frame in self.frames:
                settle_values(frame.locals, memo, interpreted)
                settle_values(frame.stack, memo, interpreted)

    def loop(self, base: int, error: BaseException | None = None) -> Value:
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
                outcome: Outcome = None
                try:
                    while self.unsettled is None:
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
                generator.state, frame.generator = "done", None
                if is_a(error, StopIteration):
                    ended = RuntimeError("generator raised StopIteration")
                    ended.__cause__ = ended.__context__ = error
                    error, trace = ended, None  # CPython makes it where the generator was called
            if frame.bottom or len(frames) == base:
                error.__traceback__ = trace
                rethrow(error)
            if is_a(frame.recovery, Recovery) and is_a(error, frame.recovery.caught):
                try:
                    self.recover(frames[-1], frame.recovery)
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

    def throw(self, error: BaseException, cause: Value = MISSING) -> None:
        """Raises ``error`` in the frame on top, as the statement ``raise error from cause`` does."""
        if is_a(cause, type) and issubclass(cause, BaseException):
            cause = exception_of(cause, cause())
        if cause is not MISSING:
            if cause is not None and not is_a(cause, BaseException):
                raise TypeError("exception causes must derive from BaseException")
            error.__cause__ = cause
        self.chain(error, always=True)
        self.raised = error

    # Frames ---------------------------------------------------------------------------------------------------------

    def start(self, frame: Frame) -> None:
        """Puts the first frame in its place."""
        self.exits.start(frame)
        self.frames.append(frame)

    def release(self) -> None:
        """The run is over here: what it worked on may go. Generators of it may still use this machine; where there are
        none it ends with its last reference, as its services let go of it.
        """
        self.frames.clear()
        self.returned = None
        self.exits.release()
        self.recorder.detach()
        if not self.recorder.generators:
            del self.attributes, self.attribute_writes, self.calls, self.natives, self.operations
            del self.generators, self.exits

    def push(self, frame: Frame) -> None:
        """Enters a frame."""
        self.exits.enter(frame)
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
        self, function: FunctionType, args: Arguments = (), kwargs: Keywords | None = None
    ) -> Value:
        """Calls a Python function from where frames cannot be switched: in a loop of its own."""
        self.recorder.functions.enter(function)
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

    def finish(self, frame: Frame, value: Value, continuation: Pending | None) -> None:
        """Does with a returned value what ``continuation`` says; without one the value is pushed."""
        if continuation is None:
            frame.stack.append(value)
        else:
            assert is_a(continuation, Continuation)
            continuation.finish(self, frame, value)

    def recover(self, frame: Frame, recovery: Pending) -> None:
        """Goes on in ``frame`` after the call that it waited for raised what is caught."""
        assert is_a(recovery, Recovery)
        recovery.recover(self, frame)

    def entered_value(self, frame: Frame, depth: int) -> Value:
        """Runs the frame that was just entered above ``depth`` to its end, and gives what it would push."""
        entered = self.frames[-1]
        continuation, recovery = entered.continuation, entered.recovery
        entered.continuation, entered.recovery, entered.bottom = None, None, True
        try:
            value = self.loop(depth)
        except AttributeError:
            if recovery is None:
                raise
            self.recover(frame, recovery)
            return frame.stack.pop()
        finally:
            del self.frames[depth:]
        self.finish(frame, value, continuation)
        return frame.stack.pop()


def exception_of(kind: type, instance: Value) -> BaseException:
    """What the exception class ``kind`` made when it was raised."""
    if not is_a(instance, BaseException):
        raise TypeError(f"calling {kind!r} should have returned an instance of BaseException, not {type(instance)!r}")
    return instance


Handler: TypeAlias = Callable[[Machine, Frame, int], Outcome]  # of an opcode, with its argument
# Of a callable with its arguments: pushes the result, or MISSING where native code shall do it.
Special: TypeAlias = Callable[[Machine, Frame, Arguments, Keywords], Outcome]
