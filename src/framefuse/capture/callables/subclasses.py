"""Tensors of classes that say in Python what torch's functions do with them: what torch does by default, and the change
of a tensor's class.
"""

from __future__ import annotations

import types

import torch

from framefuse.capture.facts.nested_numbers import pin_nested, strip
from framefuse.capture.interp.machine import Machine
from framefuse.capture.interp.registry import special
from framefuse.capture.program.frame import Frame
from framefuse.capture.program.markers import MISSING, Outcome
from framefuse.capture.recording.tensors import is_held
from framefuse.capture.recording.wrappers import wraps_others
from framefuse.ir.classes import DEFAULT
from framefuse.ir.own_class import is_a
from framefuse.ir.values import Arguments, Function, Keywords, Value

OFF: Value = torch._C.DisableTorchFunctionSubclass
UNWRAPPED = torch.overrides.get_default_nowrap_functions()


@special(torch.Tensor.as_subclass)
def _as_subclass(machine: Machine, frame: Frame, args: Arguments, kwargs: Keywords) -> Outcome:
    """The same elements under another class, of which no torch function mode hears."""
    if len(args) != 2 or kwargs or not is_a(args[1], type) or not is_held(args[1]):
        return MISSING
    frame.stack.append(_under(machine, args[0], args[1]))
    return None


@special(torch.Tensor._make_subclass)
def _make_subclass(machine: Machine, frame: Frame, args: Arguments, kwargs: Keywords) -> Outcome:
    """The same elements without their history under another class."""
    if not 2 <= len(args) <= 3 or kwargs or not is_held(args[0]) or (len(args) > 2 and args[2] is not False):
        return MISSING
    if not machine.recorder.alive:
        return MISSING
    detached = args[1].detach()
    frame.stack.append(_under(machine, detached, args[0]))
    return None


@special(torch.Tensor._make_wrapper_subclass)
def _make_wrapper(machine: Machine, frame: Frame, args: Arguments, kwargs: Keywords) -> Outcome:
    """A tensor that holds its elements in others: an object of the program."""
    recorder = machine.recorder
    if not recorder.alive or len(args) != 2 or not wraps_others(args[0]):
        return MISSING
    pin_nested((args[0], kwargs))
    wrapper = torch.Tensor._make_wrapper_subclass(args[0], strip(args[1]), **strip(kwargs))
    recorder.sources.note_made(wrapper)
    recorder.wrappers[id(wrapper)] = (wrapper, args[1])
    frame.stack.append(wrapper)
    return None


@special(torch.Tensor.__new__)
def _new(machine: Machine, frame: Frame, args: Arguments, kwargs: Keywords) -> Outcome:
    """What a class without a constructor of its own makes of a tensor: the same elements under it."""
    if len(args) != 2 or kwargs or args[0] is torch.Tensor or not is_held(args[0]):
        return MISSING
    if not is_a(args[1], torch.Tensor) or not machine.recorder.alive:
        return MISSING
    frame.stack.append(_under(machine, args[1], args[0]))
    return None


def _under(machine: Machine, tensor: Value, cls: type) -> Value:
    recorder = machine.recorder
    if not recorder.alive:
        return tensor.as_subclass(cls)
    recorder.sources.guard_version(cls)
    with torch._C.DisableTorchFunction():
        return recorder.run(torch.Tensor.as_subclass, "as_subclass", (tensor, cls), {})


@special(DEFAULT)
def _by_default(machine: Machine, frame: Frame, args: Arguments, kwargs: Keywords) -> Outcome:
    """What torch does where a class does not say otherwise: the call on plain tensors, and what it gives under the
    class.
    """
    if kwargs or not 3 <= len(args) <= 5 or not machine.recorder.alive:
        return MISSING
    cls, function, kinds, *rest = args
    if not all(issubclass(cls, kind) for kind in kinds):
        frame.stack.append(NotImplemented)
        return None
    given, named = rest[0] if rest else (), (rest[1] if len(rest) > 1 else None) or {}
    with OFF():
        value = _called(machine, function, given, named)
    frame.stack.append(value if function in UNWRAPPED else _converted(machine, value, cls))
    return None


@special(torch._C._disabled_torch_function_impl)
def _as_plain(machine: Machine, frame: Frame, args: Arguments, kwargs: Keywords) -> Outcome:
    """What a class says that gives what plain tensors would."""
    if kwargs or not 3 <= len(args) <= 4 or not machine.recorder.alive:
        return MISSING
    function, _, given, *named = args
    with OFF():
        frame.stack.append(_called(machine, function, given, (named[0] if named else None) or {}))
    return None


@special(("__get__", types.GetSetDescriptorType))
def _attribute(machine: Machine, frame: Frame, args: Arguments, kwargs: Keywords) -> Outcome:
    """An attribute of a tensor as the function that torch hands to a ``__torch_function__``."""
    if kwargs or not 2 <= len(args) <= 3 or not is_a(args[1], torch.Tensor):
        return MISSING
    name = getattr(args[0], "__name__", "")
    if args[0] is not getattr(torch.Tensor, name, None):
        return MISSING
    frame.stack.append(machine.attributes.attribute_now(frame, args[1], name))
    return None


# Switched off by a with block ----------------------------------------------------------------------------------------


@special(torch._C.DisableTorchFunction)
def _off(machine: Machine, frame: Frame, args: Arguments, kwargs: Keywords) -> Outcome:
    """The mode of the recording is to hear what happens inside; where there is no other, classes alone are off."""
    if args or kwargs or not machine.recorder.alive or torch._C._len_torch_function_stack() > 1:
        return MISSING
    frame.stack.append(OFF())
    return None


@special(OFF)
def _off_for_classes(machine: Machine, frame: Frame, args: Arguments, kwargs: Keywords) -> Outcome:
    frame.stack.append(OFF())
    return None


@special(OFF.__enter__)
def _enter(machine: Machine, frame: Frame, args: Arguments, kwargs: Keywords) -> Outcome:
    """Begins a block inside of which no recording breaks: a later call would run the step with classes on."""
    machine.exits.sealed += 1
    frame.stack.append(args[0].__enter__())
    return None


@special(OFF.__exit__)
def _exit(machine: Machine, frame: Frame, args: Arguments, kwargs: Keywords) -> Outcome:
    machine.exits.sealed -= 1
    frame.stack.append(args[0].__exit__(*args[1:]))
    return None


def _called(machine: Machine, function: Function, args: Arguments, kwargs: Keywords) -> Value:
    """A function of torch's on plain tensors; those written in Python are interpreted."""
    if type(function) is types.FunctionType:
        return machine.call_nested(function, args, kwargs)
    return function(*args, **kwargs)


def _converted(machine: Machine, value: Value, cls: type) -> Value:
    """A result with its tensors under ``cls``."""
    if cls is torch.Tensor:
        return value
    if is_a(value, torch.Tensor) and not is_a(value, cls):
        return _under(machine, value, cls)
    if is_a(value, (tuple, list)):
        return type(value)(_converted(machine, part, cls) for part in value)
    return value
