"""Makes generators, yields, and delegates to other iterators."""

from __future__ import annotations

from typing import Any

from framefuse.capture.code import handles
from framefuse.capture.frame import DONE, SWITCH, Frame, InterpretedGenerator


@handles("RETURN_GENERATOR")
def return_generator(machine: Any, frame: Frame, argument: int) -> Any:
    generator = InterpretedGenerator(machine, frame)
    machine.frames.pop()
    then, frame.then = frame.then, None
    if frame.bottom:
        machine.returned = generator
        return DONE
    machine.finish(machine.frames[-1], generator, then)
    return SWITCH


@handles("YIELD_VALUE")
def yield_value(machine: Any, frame: Frame, argument: int) -> Any:
    value = frame.stack.pop()
    machine.frames.pop()
    machine.handled = frame.handled
    generator = frame.generator
    assert generator is not None
    generator.state = "suspended"
    if frame.bottom or frame.resume is None:
        machine.returned = value
        return DONE
    machine.frames[-1].stack.append(value)
    if frame.resume[0] == "send":
        # The received value lies below: SEND leaves the iterator and the yielded value.
        del machine.frames[-1].stack[-2]
    return SWITCH


@handles("SEND")
def send(machine: Any, frame: Frame, argument: int) -> Any:
    value, receiver = frame.stack[-1], frame.stack[-2]
    if type(receiver) is InterpretedGenerator and receiver.state != "done":
        machine.resume(receiver, value, ("send", argument))
        return SWITCH
    try:
        frame.stack[-1] = next(receiver) if value is None else receiver.send(value)
    except StopIteration as stop:
        frame.stack[-2:] = [stop.value]
        frame.step = argument
    return None
