"""Takes callables and arguments from the stack and calls."""

from __future__ import annotations

from framefuse.capture.interp.machine import Machine
from framefuse.capture.interp.registry import handles
from framefuse.capture.opcodes.build import callable_title
from framefuse.capture.program.frame import Frame
from framefuse.capture.program.markers import MISSING, NULL, SWITCH, Outcome
from framefuse.ir.own_class import is_a


@handles("KW_NAMES")
def kw_names(machine: Machine, frame: Frame, argument: int) -> None:
    frame.keywords = frame.code.constants[argument]


@handles("CALL")
def call(machine: Machine, frame: Frame, argument: int) -> Outcome:
    stack, keywords = frame.stack, frame.keywords
    start = len(stack) - argument
    args = stack[start:]
    target, second = stack[start - 2], stack[start - 1]
    del stack[start - 2 :]
    if target is NULL:
        target = second
    elif second is not NULL:  # 3.13 puts it above the callable
        args.insert(0, second)
    if not keywords:
        outcome = machine.calls.call(frame, target, tuple(args), {})
    else:
        frame.keywords = ()
        split = len(args) - len(keywords)
        outcome = machine.calls.call(frame, target, tuple(args[:split]), dict(zip(keywords, args[split:], strict=True)))
    if machine.exits.renewed:  # the loop takes the handlers of the frame anew
        machine.exits.renewed = False
        return SWITCH if outcome is None else outcome
    return outcome


@handles("CALL_KW")
def call_kw(machine: Machine, frame: Frame, argument: int) -> Outcome:
    frame.keywords = frame.stack.pop()
    return call(machine, frame, argument)


@handles("CALL_FUNCTION_EX")
def call_function_ex(machine: Machine, frame: Frame, argument: int) -> Outcome:
    listed = machine.operations.listed(frame, bool(argument & 1), measured=True)
    if listed is not MISSING:
        return listed
    kwargs = frame.stack.pop() if argument & 1 else {}
    args = frame.stack.pop()
    target, below = frame.stack.pop(), frame.stack.pop()
    if target is NULL:
        target = below
    sources, contents = machine.recorder.sources, machine.recorder.contents
    if type(args) is not tuple:
        if not hasattr(type(args), "__iter__") and not hasattr(type(args), "__getitem__"):
            raise TypeError(f"{callable_title(target)} argument after * must be an iterable, not {type(args).__name__}")
        args = tuple(machine.operations.iterable(args, measured=True))
    elif sources.knows(args):
        contents.guard_extent(args)
        args = tuple([contents.item(args, number, value) for number, value in enumerate(args)])
    if sources.knows(kwargs):
        contents.guard_extent(kwargs)
        kwargs = {key: contents.item(kwargs, key, value) for key, value in kwargs.items()}
    if kwargs and not all(is_a(key, str) for key in kwargs):
        raise TypeError("keywords must be strings")
    return machine.calls.call(frame, target, args, dict(kwargs))
