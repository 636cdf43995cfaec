"""Makes generators, yields, and delegates to other iterators."""

from __future__ import annotations

from framefuse.capture.interp.continuations import Delegation
from framefuse.capture.interp.machine import Machine, Resumption
from framefuse.capture.interp.registry import handles
from framefuse.capture.program.frame import Frame, InterpretedGenerator
from framefuse.capture.program.lookups import python_method
from framefuse.capture.program.markers import DONE, SWITCH, Outcome
from framefuse.ir.own_class import is_a
from framefuse.ir.values import Value


@handles("RETURN_GENERATOR")
def return_generator(machine: Machine, frame: Frame, argument: int) -> Outcome:
    generator = InterpretedGenerator(machine, frame)
    machine.recorder.generators = True
    machine.frames.pop()
    continuation, frame.continuation = frame.continuation, None
    if frame.bottom:
        machine.returned = generator
        return DONE
    machine.finish(machine.frames[-1], generator, continuation)
    return SWITCH


@handles("YIELD_VALUE")
def yield_value(machine: Machine, frame: Frame, argument: int) -> Outcome:
    value = frame.stack.pop()
    generator, bottom = frame.generator, frame.bottom  # one that nobody holds ends by this handler
    resumption = frame.resumption
    assert generator is not None
    machine.generators.suspend(frame, generator)
    if bottom or resumption is None:
        machine.returned = value
        return DONE
    assert is_a(resumption, Resumption)
    resumption.yielded(machine, machine.frames[-1], value)
    return SWITCH


@handles("SEND")
def send(machine: Machine, frame: Frame, argument: int) -> Outcome:
    value, receiver = frame.stack[-1], frame.stack[-2]
    if type(receiver) is InterpretedGenerator and receiver.state != "done":
        machine.generators.resume(receiver, value, Delegation(argument))
        return SWITCH
    try:
        frame.stack[-1] = _sent(machine, receiver, value)
    except StopIteration as stop:
        frame.stack[-2:] = [stop.value]
        frame.step = argument
    return None


@handles("CLEANUP_THROW")
def cleanup_throw(machine: Machine, frame: Frame, argument: int) -> Outcome:
    """An exception at a ``yield from``: StopIteration ends the delegation with its value."""
    error = frame.stack[-1]
    if not is_a(error, StopIteration):
        machine.again = machine.raised = error
        return SWITCH
    frame.stack[-3:] = [error.value]
    return None


@handles("STOPITERATION_ERROR")
def stopiteration_error(machine: Machine, frame: Frame, argument: int) -> None:
    """What leaves a generator: StopIteration would end the loop that drives it."""
    error = frame.stack[-1]
    if is_a(error, StopIteration):
        ended = RuntimeError("generator raised StopIteration")
        ended.__cause__ = ended.__context__ = error
        frame.stack[-1] = ended


def _sent(machine: Machine, receiver: Value, value: Value) -> Value:
    """The next value of the iterator that a generator delegates to."""
    method = python_method(type(receiver), "__next__" if value is None else "send")
    if method is not None:
        return machine.call_nested(method, (receiver,) if value is None else (receiver, value))
    return next(receiver) if value is None else receiver.send(value)
