"""Launches generated kernels by Triton's own launcher, on devices whose driver no plan knows."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import nullcontext
from types import ModuleType

import torch
import triton

from framefuse.codegen.triton.emitter import Module
from framefuse.codegen.unsupported import Unsupported
from framefuse.ir.code import Run
from framefuse.ir.loops import Kernel


def launcher(module: ModuleType, kernel: Kernel, emitted: Module) -> Run:
    """A function of (tensors in the order of the kernel's buffers, its numbers in order, the extent of its parallel
    axis) that launches the kernel on the current stream of the tensors' device and returns 0. Raises Unsupported for
    kernels with floats among their numbers: Triton's launcher makes float32 of them.
    """
    if any(number.real for number in kernel.numbers):
        raise Unsupported("a float that is known only at run time, where Triton launches the kernel")
    numbers = list(emitted.parameters[len(kernel.buffers) :])
    # A number that is 1 would be a constant, which generated code does not expect.
    function = triton.jit(getattr(module, emitted.name).fn, do_not_specialize=numbers)
    options = {**dict(emitted.constants), "num_warps": emitted.blocks.warps}
    if emitted.stages is not None:
        options["num_stages"] = emitted.stages
    if emitted.checks:
        options["debug"] = True

    def launch(tensors: Sequence[torch.Tensor], numbers: Sequence[int | float], extent: int) -> int:
        programs = -(-extent // emitted.blocks.points)
        if programs:
            device = tensors[0].device
            current = getattr(torch.get_device_module(device), "device", lambda device: nullcontext())
            with current(device):
                function[(programs,)](*known(tensors), *numbers, **options)
        return 0

    return launch


def known(tensors: Sequence[torch.Tensor]) -> list[torch.Tensor]:
    """The tensors, of dtypes that Triton has a name for: complex numbers, which kernels only move, as words."""
    return [tensor.view(torch.int64) if tensor.dtype is torch.complex64 else tensor for tensor in tensors]
