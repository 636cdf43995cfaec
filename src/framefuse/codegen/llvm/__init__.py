"""Turns loop nests into machine code of this CPU by way of LLVM IR."""

from framefuse.codegen.llvm.compile import compile_kernel, kept_kernels, object_file, object_of, text
from framefuse.codegen.llvm.target import host

__all__ = ["compile_kernel", "host", "kept_kernels", "object_file", "object_of", "text"]
