"""Reads where torch's functions put tensors that are asked for without a device, and by which of its modes."""

from __future__ import annotations

import torch
from torch.utils._device import DeviceContext


def default_device() -> str:
    """The default device as text; while function modes are active, what each is: torch's own for devices (of
    ``torch.set_default_device`` and ``with torch.device``) is its device.
    """
    count = torch._C._len_torch_function_stack()
    if not count:
        return str(torch.get_default_device())
    if count == 1 and type(mode := torch._C._get_function_stack_at(0)) is DeviceContext:  # asked at each call
        return str(mode.device)
    with torch._C.DisableTorchFunction():  # a mode of the program would be told
        return " ".join(map(_told, map(torch._C._get_function_stack_at, range(count))))


def _told(mode: object) -> str:
    return str(mode.device) if type(mode) is DeviceContext else f"under {type(mode).__qualname__}"


def device_of_mode() -> torch.device | None:
    """The device that torch's mode for it gives to functions that are asked for none; None without such a mode."""
    mode = torch._C._get_function_stack_at(0) if torch._C._len_torch_function_stack() else None
    return mode.device if type(mode) is DeviceContext else None
