"""Runs compiled kernels on tensors, for the tests of code generation."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence

import torch

from framefuse.codegen.llvm import compile_kernel
from framefuse.codegen.llvm.emitter import emit
from framefuse.codegen.llvm.jit import object_code
from framefuse.codegen.llvm.loading import Code, Object, load
from framefuse.codegen.llvm.target import Target, host
from framefuse.driver.wiring import connect
from framefuse.ir.loops import Kernel

connect()  # native code loads what runs here
FUNCTION = ctypes.CFUNCTYPE(ctypes.c_int64, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int64, ctypes.c_int64)


def compiled_for(kernel: Kernel, target: Target) -> Code:
    """The code that ``target`` would get, for this machine."""
    module = emit(kernel, target)
    (code,) = load([Object("", tuple(module.imports), object_code(module.text, host(), {}))])
    return code


def run(
    kernel: Kernel,
    buffers: Sequence[torch.Tensor],
    numbers: Sequence[int | float] = (),
    pieces: int = 1,
    target: Target | None = None,
) -> int:
    """Compiles and runs ``kernel``, its parallel range in ``pieces``; what interpret does, on the machine."""
    compiled = compile_kernel(kernel, False) if target is None else compiled_for(kernel, target)
    function = FUNCTION(compiled.address)
    pointers = (ctypes.c_void_p * max(1, len(buffers)))(*[buffer.data_ptr() for buffer in buffers])
    words = (ctypes.c_int64 * max(1, len(numbers)))()
    for k, (number, value) in enumerate(zip(kernel.numbers, numbers, strict=True)):
        words[k] = ctypes.c_int64.from_buffer(ctypes.c_double(value)).value if number.real else int(value)
    ints = {n.symbol: int(v) for n, v in zip(kernel.numbers, numbers, strict=True) if not n.real}
    extent = kernel.extent.evaluate(ints)
    bounds = [extent * piece // pieces for piece in range(pieces + 1)]
    failed = [function(pointers, words, *bounds[k : k + 2]) for k in range(pieces)]
    return int(any(failed))
