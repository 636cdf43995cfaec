"""Turns loop nests into Triton modules, one readable file a kernel, and these into code for a GPU."""

from framefuse.codegen.triton.candidates import candidates
from framefuse.codegen.triton.compile import compile_kernel, interpreted, launched_by_triton, signature, text

__all__ = ["candidates", "compile_kernel", "interpreted", "launched_by_triton", "signature", "text"]
