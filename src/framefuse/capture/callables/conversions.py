"""Leaves a module as it is that is converted to the dtype which all of it has, or moved to the device where all of it
is (``self.head.to(x.dtype)(x)``, ``criterion.to(x.device)``).
"""

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


def unchanged(module: Module, dtype: torch.dtype | None, device: torch.device | None) -> Module:
    """The module; the interpreter runs this for the facts of what :func:`_is_there` looked at."""
    settings = torch.__future__
    if settings._swap_module_params_on_conversion or settings._overwrite_module_params_on_conversion:
        raise AssertionError("looked at before")
    for part in module.modules():
        if type(part)._apply is not APPLIES:
            raise AssertionError("looked at before")
    for tensors in (module.parameters(), module.buffers()):
        for tensor in tensors:
            if dtype is not None and tensor.dtype is not dtype and tensor.dtype.is_floating_point:
                raise AssertionError("looked at before")
            if device is not None and tensor.device != device:
                raise AssertionError("looked at before")
    return module


def _is_there(module: Module, dtype: torch.dtype | None, device: torch.device | None) -> bool:
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
                own, place = tensor.dtype, tensor.device
            if dtype is not None and (own.is_complex or (own.is_floating_point and own is not dtype)):
                return False
            if device is not None and place != device:
                return False
    return True


def _wanted(args: Arguments) -> tuple[torch.dtype | None, torch.device | None] | None:
    """The dtype and the device that a call asks for; None where it asks for something else."""
    dtype, device = None, None
    for part in args:
        if part == "cpu" and type(part) is str:
            part = torch.device("cpu")
        if type(part) is torch.dtype and dtype is None and part.is_floating_point:
            dtype = part
        elif type(part) is torch.device and device is None and dtype is None:
            device = part
        else:
            return None
    if device is not None and device.type != "cpu" and device.index is None:
        return None  # that of the moment
    return dtype, device


def enter_conversion(machine: Machine, args: Arguments, kwargs: Keywords, continuation: Pending | None) -> bool:
    """Enters :func:`unchanged` in place of ``module.to(...)``, where that does nothing."""
    if not args or not is_a(args[0], Module) or not machine.recorder.alive or not kwargs.keys() <= {"device", "dtype"}:
        return False
    named = [kwargs[name] for name in ("device", "dtype") if name in kwargs]
    if not 1 <= len(args) - 1 + len(named) <= 2:
        return False
    wanted = _wanted((*args[1:], *named))
    if wanted is None or not _is_there(args[0], *wanted):
        return False
    entered = enter(cast(types.FunctionType, unchanged), (args[0], *wanted), {})
    entered.continuation = continuation
    machine.push(entered)
    return True


SHORTCUTS[CONVERTS] = enter_conversion
