"""Turns loop nests into Triton modules, one readable file a kernel, and these into code for a GPU."""

from framefuse.codegen.triton.blocks import Choice
from framefuse.codegen.triton.candidates import candidates
from framefuse.codegen.triton.compile import TritonKernel, compile_kernel, launched_by_triton, signature, text

__all__ = ["Choice", "TritonKernel", "candidates", "compile_kernel", "launched_by_triton", "signature", "text"]
