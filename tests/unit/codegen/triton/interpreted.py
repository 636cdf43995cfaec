"""Runs Triton kernels by its interpreter, for the tests of code generation."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from framefuse.codegen.specialisation import Place, Specialisation
from framefuse.codegen.triton import compile_kernel
from framefuse.ir.loops import Kernel


def run(kernel: Kernel, buffers: Sequence[torch.Tensor], numbers: Sequence[int | float] = (), pieces: int = 1) -> int:
    """What tests.unit.codegen.machine.run does, the Triton way: the grid is the ``pieces``. Blocks are chosen for the
    very numbers.
    """
    hints = {n.symbol: int(v) for n, v in zip(kernel.numbers, numbers, strict=True) if not n.real}
    compiled = compile_kernel(kernel, Specialisation(hints), Place("cpu"))
    assert compiled.by_python is not None, "TRITON_INTERPRET was not set before Triton was imported"
    extent = kernel.extent if compiled.programs is None else compiled.programs
    return compiled.by_python(buffers, numbers, extent.evaluate(hints))
