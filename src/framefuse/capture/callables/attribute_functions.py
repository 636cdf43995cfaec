"""Builtins that read and write attributes and variables, in the interpreter's own terms."""

from __future__ import annotations

import types

import torch

from framefuse.capture.facts.kinds import is_plain
from framefuse.capture.facts.numbers import bare, plain_number
from framefuse.capture.interp.continuations import PUSH_TRUE, PushDefault
from framefuse.capture.interp.machine import Machine
from framefuse.capture.interp.registry import special
from framefuse.capture.program.frame import Frame
from framefuse.capture.program.lookups import type_get
from framefuse.capture.program.markers import MISSING, SWITCH, Outcome
from framefuse.capture.program.tracebacks import variables
from framefuse.ir.own_class import is_a
from framefuse.ir.values import Arguments, Keywords, Value


@special(getattr)
def _getattr(machine: Machine, frame: Frame, args: Arguments, kwargs: Keywords) -> Outcome:
    if kwargs or not 2 <= len(args) <= 3 or not is_a(args[1], str):
        return MISSING
    depth = len(machine.frames)
    try:
        attribute = machine.attributes.attribute(frame, args[0], plain_number(args[1]))
        if attribute is SWITCH and len(args) > 2:
            if machine.frames[-1].recovery is None:
                machine.frames[-1].recovery = PushDefault(args[2])
            else:
                attribute = (machine.entered_value(frame, depth),)
    except AttributeError:
        if len(args) < 3:
            raise
        frame.stack.append(args[2])
        return None
    if attribute is SWITCH:
        return SWITCH
    if is_a(attribute, tuple):
        frame.stack.append(attribute[0])
    return None


@special(hasattr)
def _hasattr(machine: Machine, frame: Frame, args: Arguments, kwargs: Keywords) -> Outcome:
    if len(args) != 2 or not is_a(args[1], str):
        return MISSING
    depth = len(machine.frames)
    try:
        attribute = machine.attributes.attribute(frame, args[0], plain_number(args[1]))
        if attribute is SWITCH:
            if machine.frames[-1].recovery is None and machine.frames[-1].continuation is None:
                machine.frames[-1].recovery = PushDefault(False)
                machine.frames[-1].continuation = PUSH_TRUE
                return SWITCH
            attribute = (machine.entered_value(frame, depth),)
    except AttributeError:
        frame.stack.append(False)
        return None
    if not is_a(attribute, tuple):
        frame.stack.pop()
    frame.stack.append(True)
    return None


@special(setattr)
def _setattr(machine: Machine, frame: Frame, args: Arguments, kwargs: Keywords) -> Outcome:
    if len(args) != 3 or not is_a(args[1], str):
        return MISSING
    frame.stack.append(None)
    return machine.attribute_writes.store(frame, args[0], plain_number(args[1]), args[2])


@special(delattr)
def _delattr(machine: Machine, frame: Frame, args: Arguments, kwargs: Keywords) -> Outcome:
    if len(args) != 2 or not is_a(args[1], str):
        return MISSING
    frame.stack.append(None)
    return machine.attribute_writes.delete(frame, args[0], plain_number(args[1]))


@special(object.__getattribute__, ("__getattribute__", object))
def _object_getattribute(machine: Machine, frame: Frame, args: Arguments, kwargs: Keywords) -> Outcome:
    if len(args) != 2:
        return MISSING
    holder, name = args
    kind = type(holder)
    if not is_plain(kind) and is_a(holder, (torch.Tensor, type, types.ModuleType)):
        return MISSING
    if (
        type_get(kind, name) is MISSING
        and name not in getattr(type(holder), "__dict__", ())
        and name not in _state(holder)
    ):
        machine.recorder.sources.guard_absent(holder, name)
        machine.recorder.sources.guard_version(kind)
        object.__getattribute__(holder, name)  # raises
    attribute = machine.attributes.generic_attribute(frame, holder, kind, name)
    if is_a(attribute, tuple):
        frame.stack.append(attribute[0])
        return None
    return attribute


@special(types.ModuleType.__getattribute__, ("__getattribute__", types.ModuleType))
def _module_getattribute(machine: Machine, frame: Frame, args: Arguments, kwargs: Keywords) -> Outcome:
    if len(args) != 2 or kwargs or not is_a(args[0], types.ModuleType) or type(args[1]) is not str:
        return MISSING
    attribute = machine.attributes.module_attribute(frame, args[0], args[1])
    if is_a(attribute, tuple):
        frame.stack.append(attribute[0])
        return None
    return attribute


def _state(holder: Value) -> Value:
    try:
        return object.__getattribute__(holder, "__dict__")
    except AttributeError:
        return ()


@special(object.__setattr__, ("__setattr__", object))
def _object_setattr(machine: Machine, frame: Frame, args: Arguments, kwargs: Keywords) -> Outcome:
    if len(args) != 3 or issubclass(type(args[0]), (torch.Tensor, type, types.ModuleType)):
        return MISSING
    frame.stack.append(None)
    return machine.attribute_writes.generic_store(frame, args[0], type(args[0]), args[1], args[2])


@special(object.__delattr__, ("__delattr__", object))
def _object_delattr(machine: Machine, frame: Frame, args: Arguments, kwargs: Keywords) -> Outcome:
    if len(args) != 2 or is_a(args[0], (torch.Tensor, type, types.ModuleType)):
        return MISSING
    frame.stack.append(None)
    return machine.attribute_writes.generic_delete(frame, *args)


@special(torch.nn.Module.__setattr__)
def _module_setattr(machine: Machine, frame: Frame, args: Arguments, kwargs: Keywords) -> Outcome:
    if len(args) != 3 or kwargs:
        return MISSING
    frame.stack.append(None)
    return machine.attribute_writes.store_in_module(frame, *args)


@special(torch.nn.Module.__getattr__)
def _module_getattr(machine: Machine, frame: Frame, args: Arguments, kwargs: Keywords) -> Outcome:
    if len(args) != 2 or kwargs:
        return MISSING
    frame.stack.append(machine.attributes.module_part(args[0], args[1], args[0].__dict__)[0])
    return None


@special(locals)
def _locals(machine: Machine, frame: Frame, args: Arguments, kwargs: Keywords) -> Outcome:
    frame.stack.append(variables(frame) if frame.space is None else frame.space)
    return None


@special(vars)
def _vars(machine: Machine, frame: Frame, args: Arguments, kwargs: Keywords) -> Outcome:
    if not args:
        return _locals(machine, frame, args, kwargs)
    holder = bare(args[0])
    kind = type(holder)
    if all(type_get(kind, name) is MISSING for name in ("__dict__", "__getattr__")):
        machine.recorder.sources.guard_type(args[0])
        vars(holder)  # raises what vars raises, not what a missing attribute does
    return _getattr(machine, frame, (args[0], "__dict__"), {})
