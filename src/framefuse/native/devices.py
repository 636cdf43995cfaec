"""What native code must know of torch's devices: the numbers of their types, the keys of plain tensors, streams."""

from __future__ import annotations

import ctypes
from collections.abc import Iterable
from typing import Any

import torch

from framefuse.native.libraries import Libraries, Unknown

# By torch's name of the type: its number (c10::DeviceType) and its backend among the dispatch keys.
TYPES = {"cpu": 0, "cuda": 1, "xpu": 12, "mps": 13, "meta": 14}
BACKENDS = {"cpu": "CPU", "cuda": "CUDA", "xpu": "XPU", "mps": "MPS", "meta": "Meta"}


def keys_of(tensor: torch.Tensor) -> int:
    """The raw dispatch key set, by torch's own account."""
    return int(torch._C._dispatch_keys(tensor).raw_repr())


def number(device: torch.device) -> int:
    """The number of a device's type, -1 for one that no plan runs on."""
    return TYPES.get(device.type, -1)


def device(kind: int, index: int) -> torch.device:
    """The device of a type's number; a negative index is the current one."""
    name = next(name for name, code in TYPES.items() if code == kind)
    return torch.device(name) if index < 0 or kind == 0 else torch.device(name, index)


def plain_keys(plain: Iterable[torch.Tensor]) -> dict[int, int]:
    """By number of a type: the key bits that a plain dense tensor there may carry.

    ``plain`` are tensors of the CPU, whose keys are believed. The other types have the same keys with their own backend
    in place of the CPU's, if that is how the CPU's come about; else they are left out, and no tensor there counts as
    plain. No device is touched: most programs use none, and a process that has may not fork.
    """
    keys = 0
    for tensor in plain:
        keys |= keys_of(tensor)
    known = {TYPES["cpu"]: keys}
    if _composed("CPU") == keys:
        known |= {TYPES[name]: _composed(backend) for name, backend in BACKENDS.items() if name != "cpu"}
    return known


def _composed(backend: str) -> int:
    """The keys of torch's rule: the backend, its autograd and autocast, and the counting of writes."""
    keys: Any = torch._C.DispatchKeySet(torch._C.DispatchKey.ADInplaceOrView)
    for name in (backend, f"Autograd{backend}", f"Autocast{backend}"):
        key = getattr(torch._C.DispatchKey, name, None)
        if key is not None:  # some backends have no autocast
            keys = keys | torch._C.DispatchKeySet(key)
    return int(keys.raw_repr())


def default_key(libraries: Libraries) -> dict[str, int]:
    """What gives the dispatch key of the default tensor type, and what it gives while that is the CPU's."""
    function = Libraries.find(libraries.python, "_ZN5torch7tensors24get_default_dispatch_keyEv")
    function.restype, function.argtypes = ctypes.c_uint16, []
    keys: Any = torch._C.DispatchKey
    on_cpu = int(keys.CPU)
    if torch._C._get_default_device() != "cpu" or function() != on_cpu:
        raise Unknown("the default device is not the CPU")
    return {"default_key": Libraries.address(function), "default_key_on_cpu": on_cpu}


def current_stream(libraries: Libraries) -> dict[str, int]:
    """The stable function that gives the current stream of a GPU; native code compares it with :func:`stream` first."""
    function = Libraries.find(libraries.cuda, "aoti_torch_get_current_cuda_stream")
    return {"current_stream": Libraries.address(function)}


def stream(index: int) -> int:
    """The address of the current stream of a GPU; 0, the default stream, in a build of torch without GPUs."""
    read = getattr(torch._C, "_cuda_getCurrentRawStream", None)
    return int(read(index)) if read is not None else 0
