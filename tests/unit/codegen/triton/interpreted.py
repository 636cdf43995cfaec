"""Runs Triton kernels by its interpreter, for the tests of code generation."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from framefuse.codegen.specialisation import Place, Specialisation
from framefuse.codegen.triton import by_interpreter
from framefuse.ir.loops import Kernel


def run(kernel: Kernel, buffers: Sequence[torch.Tensor], numbers: Sequence[int | float] = (), pieces: int = 1) -> int:
    """What tests.unit.codegen.machine.run does, the Triton way: the grid is the ``pieces``. Blocks are chosen for the
    very numbers.
    """
    hints = {n.symbol: int(v) for n, v in zip(kernel.numbers, numbers, strict=True) if not n.real}
    compiled = by_interpreter(kernel, Specialisation(hints), Place("cpu"))
    extent = kernel.extent if compiled.code.programs is None else compiled.code.programs
    return compiled.run(buffers, numbers, extent.evaluate(hints))
