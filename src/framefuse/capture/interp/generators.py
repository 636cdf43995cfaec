"""Drives the interpreter's generators: next, send, throw and close, through the iterators that they delegate to."""

from __future__ import annotations

from framefuse.capture.interp.machine import Machine
from framefuse.capture.interp.stacks import show
from framefuse.capture.program.decoded import HANDLERS
from framefuse.capture.program.frame import Frame, InterpretedGenerator, Pending
from framefuse.capture.program.lookups import python_method
from framefuse.errors import let_go, rethrow
from framefuse.ir.own_class import is_a
from framefuse.ir.values import Function, Value


class Generators:
    """The generator protocol of the interpreter."""

    def __init__(self, machine: Machine) -> None:
        self.machine = machine
        self.frames = machine.frames

    def drive(self, generator: InterpretedGenerator, value: Value, error: BaseException | None = None) -> Value:
        """Goes on with a generator from native code, in a loop of its own."""
        if generator.state == "done":
            if error is not None:
                rethrow(error)
            raise StopIteration
        if generator.state == "running":
            raise ValueError("generator already executing")
        base, handled = len(self.frames), self.machine.handled
        generator.frame.stack.append(value)
        self.wake(generator, True, None)
        if error is not None:
            self.machine.chain(error, always=True)
        try:
            result = self.machine.loop(base, error)
        finally:
            del self.frames[base:]
            self.machine.handled = handled
        if generator.state == "done":
            raise StopIteration(result) if result is not None else StopIteration
        return result

    def resume(self, generator: InterpretedGenerator, value: Value, how: Pending) -> None:
        """Goes on with a generator by a switch of frames; ``how`` says what the caller does with the outcome."""
        if generator.state == "running":
            raise ValueError("generator already executing")
        generator.frame.stack.append(value)
        self.wake(generator, False, how)

    def wake(self, generator: InterpretedGenerator, bottom: bool, how: Pending | None) -> None:
        """Puts a generator's frame on top."""
        frame = generator.frame
        frame.bottom, frame.resumption = bottom, how
        frame.generator = generator
        generator.state = "running"
        generator.arguments = []
        frame.handled, self.machine.handled = self.machine.handled, frame.handled
        self.machine.exits.enter(frame)
        self.frames.append(frame)

    def suspend(self, frame: Frame, generator: InterpretedGenerator) -> None:
        """Takes the frame that yields from the top."""
        self.frames.pop()
        frame.handled, self.machine.handled = self.machine.handled, frame.handled
        frame.generator = None
        generator.state = "suspended"

    def throw_into(self, generator: InterpretedGenerator, error: BaseException) -> Value:
        """Raises ``error`` where the generator yields, or in the iterator that it delegates to."""
        if generator.state == "new":
            generator.frame.step = 1  # the line of the function
            return self.drive(generator, None, error)
        inner = self.delegate(generator)
        if inner is not None:
            if is_a(error, GeneratorExit):
                error = self._closed(generator, inner, error)
            else:
                throw = self._method(inner, "throw")
                if throw is not None:
                    return self._through(generator, throw, error)
        return self.drive(generator, None, error)

    def _through(self, generator: InterpretedGenerator, throw: Function, error: BaseException) -> Value:
        """Throws into the inner iterator; when that ends, the generator goes on behind its delegation."""
        generator.state = "running"
        try:
            value = throw(error)
        except BaseException as raised:
            end: BaseException = raised
        else:
            generator.state = "suspended"
            return value
        generator.state = "suspended"
        if not is_a(end, StopIteration):
            return self.drive(generator, None, end)
        frame = generator.frame
        frame.stack.pop()
        frame.step = frame.code.steps[frame.code.steps[frame.step][1]][1]
        return self.drive(generator, end.value)

    def close(self, generator: InterpretedGenerator) -> None:
        """Ends a generator by GeneratorExit at its yield."""
        if generator.state in ("new", "done"):
            generator.state = "done"
            return
        inner = self.delegate(generator)
        error: BaseException = GeneratorExit()
        if inner is not None:
            error = self._closed(generator, inner, error)
        try:
            self.drive(generator, None, error)
        except (StopIteration, GeneratorExit) as ended:
            let_go(ended)
            generator.frame.locals.clear()  # what only its names held goes now
            return
        finally:
            del error
        raise RuntimeError("generator ignored GeneratorExit")

    def _closed(self, generator: InterpretedGenerator, inner: Value, error: BaseException) -> BaseException:
        """Closes the inner iterator; what that raises goes on in place of ``error``."""
        close = self._method(inner, "close")
        generator.state = "running"
        try:
            if close is not None:
                close()
        except BaseException as raised:
            return raised
        finally:
            generator.state = "suspended"
        return error

    def _method(self, inner: Value, name: str) -> Value:
        """A method of the iterator that a generator delegates to, None where there is none."""
        method = python_method(type(inner), name)
        if method is None:
            return getattr(inner, name, None)
        return lambda *args: self.machine.call_nested(method, (inner, *args))

    def delegate(self, generator: InterpretedGenerator) -> Value:
        """The iterator that a suspended generator delegates to by ``yield from``, None where it yields itself."""
        if generator.state != "suspended":
            return None
        frame = generator.frame
        # Behind the yield of a delegation stands the jump back to its SEND.
        handler, argument = frame.code.steps[frame.step]
        jumps = handler is HANDLERS["JUMP_BACKWARD_NO_INTERRUPT"]
        return frame.stack[-1] if jumps and frame.code.steps[argument][0] is HANDLERS["SEND"] else None

    def show(self, frame: Frame) -> Value:
        """A frame object of Python's that shows where a frame stands: a sleeping generator's, or one that runs."""
        return show(self.machine, frame)
