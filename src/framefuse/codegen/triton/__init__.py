"""Turns loop nests into Triton modules, one readable file a kernel, and these into code for a GPU."""

from framefuse.codegen.triton.candidates import candidates
from framefuse.codegen.triton.compile import (
    by_interpreter,
    compile_kernel,
    compiled,
    emitted,
    launched_by_triton,
    signature,
    text,
)
from framefuse.codegen.triton.pool import PROCESS

prepare, threads = PROCESS.prepare, PROCESS.threads

__all__ = [
    "by_interpreter", "candidates", "compile_kernel", "compiled", "emitted", "launched_by_triton", "prepare",
    "signature", "text", "threads",
]  # fmt: skip
