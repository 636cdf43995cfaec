"""Turns loop nests into machine code of this CPU by way of LLVM IR."""

from framefuse.codegen.llvm.compile import compile_kernel, text

__all__ = ["compile_kernel", "text"]
