"""Makes iterators and takes their next elements."""

from __future__ import annotations

from typing import Any

import torch

from framefuse.capture.attributes import python_method
from framefuse.capture.code import handles
from framefuse.capture.frame import SWITCH, Ended, Frame, InterpretedGenerator
from framefuse.capture.iterators import NATIVE_ITERATORS
from framefuse.capture.numbers import plain_number
from framefuse.capture.unseen import moves

ListIterator: type = type(iter([]))


@handles("GET_ITER")
def get_iter(machine: Any, frame: Frame, argument: int) -> Any:
    return machine.iterate(frame, frame.stack.pop(), True)


@handles("GET_YIELD_FROM_ITER")
def get_yield_from_iter(machine: Any, frame: Frame, argument: int) -> Any:
    return machine.iterate(frame, frame.stack.pop())


def iterate(machine: Any, frame: Frame, value: Any, stepped: bool = False) -> Any:
    """Pushes ``iter(value)``; ``stepped`` where nothing but FOR_ITER takes its elements."""
    kind = type(value)
    if kind is InterpretedGenerator:
        frame.stack.append(value)
        return None
    if not isinstance(value, torch.Tensor):
        method = python_method(kind, "__iter__")
        if method is not None:
            machine.recorder.sources.guard_type(value)
            machine.recorder.sources.guard_version(kind)
            return machine.call(frame, method, (value,), {}, ("checked", "__iter__", kind))
        if moves(machine, value):
            why = ("native-call", "The order of a set of objects")
            return machine.opaque(frame, list, (value,), {}, ("iterator",), *why)
        sources, contents = machine.recorder.sources, machine.recorder.contents
        read_later = type(value) in (list, tuple) or isinstance(value, dict)  # entry by entry
        (contents.guard_extent if read_later else contents.guard_shallow_contents)(value)
        if sources.knows(value):
            if type(value) in (list, tuple) and not contents.has_changed(value):
                if type(value) is tuple:
                    seen = [contents.item(value, number, part) for number, part in enumerate(value)]
                    if any(new is not old for new, old in zip(seen, value, strict=True)):
                        value = seen
                elif not stepped:  # the list may change while it is iterated: its iterator gives what stands there
                    for number, part in enumerate(value):
                        plain_number(contents.item(value, number, part))
            elif (
                not isinstance(value, (list, tuple, dict, set, frozenset, str, bytes, range))
                and kind not in NATIVE_ITERATORS
                and machine.recorder.alive
            ):
                machine.recorder.kill("argument", f"an iterator ({kind.__name__})")
    frame.stack.append(iter(value))
    return None


@handles("FOR_ITER")
def for_iter(machine: Any, frame: Frame, argument: int) -> Any:
    iterator = frame.stack[-1]
    kind = type(iterator)
    if kind is InterpretedGenerator:
        if iterator.state == "done":
            frame.stack.pop()
            frame.step = argument
            return None
        machine.resume(iterator, None, ("for", argument))
        return SWITCH
    method = python_method(kind, "__next__")
    if method is not None:
        machine.recorder.sources.guard_type(iterator)
        try:
            frame.stack.append(machine.call_nested(method, (iterator,)))
        except StopIteration:
            frame.stack.pop()
            frame.step = argument
        return None
    sources, contents = machine.recorder.sources, machine.recorder.contents
    if sources.knows(iterator) and machine.recorder.alive:  # what it gives is no part of this recording
        return machine.opaque(
            frame, next, (iterator, Ended), {}, ("next", argument), "native-call", f"next of a {kind.__name__}"
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
def get_len(machine: Any, frame: Frame, argument: int) -> None:
    machine.recorder.contents.guard_length(frame.stack[-1])
    frame.stack.append(len(frame.stack[-1]))
