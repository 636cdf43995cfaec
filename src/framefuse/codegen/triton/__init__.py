"""Turns loop nests into Triton modules, one readable file a kernel, and these into code for a GPU."""

from framefuse.codegen.triton.compile import TritonKernel, compile_kernel, text

__all__ = ["TritonKernel", "compile_kernel", "text"]
