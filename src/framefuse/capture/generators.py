"""Drives the interpreter's generators: next, send, throw and close, through the iterators that they delegate to."""

from __future__ import annotations

from typing import Any

from framefuse.capture.attributes import python_method
from framefuse.capture.code import HANDLERS
from framefuse.capture.frame import Frame, InterpretedGenerator
from framefuse.capture.stacks import show
from framefuse.errors import rethrow


class Generators:
    """The generator protocol of the interpreter."""

    frames: list[Frame]
    handled: BaseException | None

    def drive_generator(self, generator: InterpretedGenerator, value: Any, error: BaseException | None = None) -> Any:
        """Goes on with a generator from native code, in a loop of its own."""
        if generator.state == "done":
            if error is not None:
                rethrow(error)
            raise StopIteration
        if generator.state == "running":
            raise ValueError("generator already executing")
        base, handled = len(self.frames), self.handled
        generator.frame.stack.append(value)
        self.wake(generator, True, None)
        if error is not None:
            self.chain(error, always=True)  # type: ignore[attr-defined]
        try:
            result = self.loop(base, error)  # type: ignore[attr-defined]
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
        generator.frame.stack.append(value)
        self.wake(generator, False, how)

    def wake(self, generator: InterpretedGenerator, bottom: bool, how: tuple[Any, ...] | None) -> None:
        """Puts a generator's frame on top."""
        frame = generator.frame
        frame.bottom, frame.resume = bottom, how
        frame.generator = generator
        generator.state = "running"
        generator.arguments = []
        frame.handled, self.handled = self.handled, frame.handled
        self.teach(frame)  # type: ignore[attr-defined]
        self.frames.append(frame)

    def suspend(self, frame: Frame, generator: InterpretedGenerator) -> None:
        """Takes the frame that yields from the top."""
        self.frames.pop()
        frame.handled, self.handled = self.handled, frame.handled
        frame.generator = None
        generator.state = "suspended"

    def throw_into(self, generator: InterpretedGenerator, error: BaseException) -> Any:
        """Raises ``error`` where the generator yields, or in the iterator that it delegates to."""
        if generator.state == "new":
            generator.state = "done"
        inner = self.delegate(generator)
        if inner is not None:
            if isinstance(error, GeneratorExit):
                error = self._closed(generator, inner, error)
            else:
                throw = self._method(inner, "throw")
                if throw is not None:
                    return self._through(generator, throw, error)
        return self.drive_generator(generator, None, error)

    def _through(self, generator: InterpretedGenerator, throw: Any, error: BaseException) -> Any:
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
        if not isinstance(end, StopIteration):
            return self.drive_generator(generator, None, end)
        frame = generator.frame
        frame.stack.pop()
        frame.step = frame.code.steps[frame.code.steps[frame.step][1]][1]
        return self.drive_generator(generator, end.value)

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
            self.drive_generator(generator, None, error)
        except (StopIteration, GeneratorExit):
            return
        raise RuntimeError("generator ignored GeneratorExit")

    def _closed(self, generator: InterpretedGenerator, inner: Any, error: BaseException) -> BaseException:
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

    def _method(self, inner: Any, name: str) -> Any:
        """A method of the iterator that a generator delegates to, None where there is none."""
        method = python_method(type(inner), name)
        if method is None:
            return getattr(inner, name, None)
        return lambda *args: self.call_nested(method, (inner, *args))  # type: ignore[attr-defined]

    def delegate(self, generator: InterpretedGenerator) -> Any:
        """The iterator that a suspended generator delegates to by ``yield from``, None where it yields itself."""
        if generator.state != "suspended":
            return None
        frame = generator.frame
        # Behind the yield of a delegation stands the jump back to its SEND.
        handler, argument = frame.code.steps[frame.step]
        jumps = handler is HANDLERS["JUMP_BACKWARD_NO_INTERRUPT"]
        return frame.stack[-1] if jumps and frame.code.steps[argument][0] is HANDLERS["SEND"] else None

    def show(self, frame: Frame) -> Any:
        """A frame object of Python's that shows where a frame stands: a sleeping generator's, or one that runs."""
        return show(self, frame)
