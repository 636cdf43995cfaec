"""Makes iterators and takes their next elements."""

from __future__ import annotations

from framefuse.capture.interp.continuations import EndLoop, ForLoop, PushNext
from framefuse.capture.interp.machine import Machine
from framefuse.capture.interp.registry import handles
from framefuse.capture.program.frame import Frame, InterpretedGenerator
from framefuse.capture.program.lookups import python_method
from framefuse.capture.program.markers import SWITCH, Ended, Outcome

ListIterator: type = type(iter([]))


@handles("GET_ITER")
def get_iter(machine: Machine, frame: Frame, argument: int) -> Outcome:
    return machine.operations.iterate(frame, frame.stack.pop(), True)


@handles("GET_YIELD_FROM_ITER")
def get_yield_from_iter(machine: Machine, frame: Frame, argument: int) -> Outcome:
    return machine.operations.iterate(frame, frame.stack.pop())


@handles("FOR_ITER")
def for_iter(machine: Machine, frame: Frame, argument: int) -> Outcome:
    iterator = frame.stack[-1]
    kind = type(iterator)
    if kind is InterpretedGenerator:
        if iterator.state == "done":
            frame.stack.pop()
            frame.step = argument
            return None
        machine.generators.resume(iterator, None, ForLoop(argument))
        return SWITCH
    method = python_method(kind, "__next__")
    if method is not None:
        machine.recorder.sources.guard_type(iterator)
        return machine.operations.advance(frame, method, iterator, EndLoop(argument))
    sources, contents = machine.recorder.sources, machine.recorder.contents
    if sources.knows(iterator) and machine.recorder.alive:  # what it gives is no part of this recording
        return machine.exits.opaque(
            frame, next, (iterator, Ended), {}, PushNext(argument), "native-call", f"next of a {kind.__name__}"
        )
    place = iterator.__reduce__()[1:] if kind is ListIterator else None
    try:
        value = next(iterator)
    except StopIteration:
        frame.stack.pop()
        frame.step = argument
        return None
    if place is not None:
        (container,), index = place
        value = contents.item(container, index, value) if type(container) is list else value
    frame.stack.append(value)
    return None


@handles("GET_LEN")
def get_len(machine: Machine, frame: Frame, argument: int) -> None:
    machine.recorder.contents.guard_length(frame.stack[-1])
    frame.stack.append(len(frame.stack[-1]))
