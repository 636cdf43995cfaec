"""Leaves a module as it is that is converted to the dtype which all of it has (``self.head.to(x.dtype)(x)``)."""

from __future__ import annotations

import types
from typing import cast

import torch
from torch.nn import Module

from framefuse.capture.interp.machine import Machine
from framefuse.capture.interp.registry import SHORTCUTS
from framefuse.capture.program.frame import Pending, enter
from framefuse.ir.own_class import is_a
from framefuse.ir.values import Arguments, Keywords

PLAIN = (torch.Tensor, torch.nn.Parameter)
CONVERTS = Module.to
APPLIES = Module._apply
# Settings of torch by which converting makes other tensors, whatever dtype they have.
SETTINGS = ("_swap_module_params_on_conversion", "_overwrite_module_params_on_conversion")


def unchanged(module: Module, dtype: torch.dtype) -> Module:
    """The module; the interpreter runs this for the facts of what :func:`_is_there` looked at."""
    settings = torch.__future__
    if settings._swap_module_params_on_conversion or settings._overwrite_module_params_on_conversion:
        raise AssertionError("looked at before")
    for part in module.modules():
        if type(part)._apply is not APPLIES:
            raise AssertionError("looked at before")
    for tensors in (module.parameters(), module.buffers()):
        for tensor in tensors:
            if tensor.dtype is not dtype and tensor.dtype.is_floating_point:
                raise AssertionError("looked at before")
    return module


def _is_there(module: Module, dtype: torch.dtype) -> bool:
    """Whether converting leaves every tensor of the module as it is."""
    if any(getattr(torch.__future__, name, True) for name in SETTINGS):
        return False
    for part in Module.modules(module):
        if type(part)._apply is not APPLIES or "_apply" in part.__dict__:
            return False
        for tensor in (*part._parameters.values(), *part._buffers.values()):
            if tensor is None:
                continue
            if type(tensor) not in PLAIN:
                return False
            with torch._C.DisableTorchFunction():
                own = tensor.dtype
            if own.is_complex or (own.is_floating_point and own is not dtype):
                return False
    return True


def enter_conversion(machine: Machine, args: Arguments, kwargs: Keywords, continuation: Pending | None) -> bool:
    """Enters :func:`unchanged` in place of ``module.to(dtype)``, where that does nothing."""
    if kwargs or len(args) != 2 or not is_a(args[0], Module) or type(args[1]) is not torch.dtype:
        return False
    if not machine.recorder.alive or not args[1].is_floating_point or not _is_there(*args):
        return False
    entered = enter(cast(types.FunctionType, unchanged), args, kwargs)
    entered.continuation = continuation
    machine.push(entered)
    return True


SHORTCUTS[CONVERTS] = enter_conversion
