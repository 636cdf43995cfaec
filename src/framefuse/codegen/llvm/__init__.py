"""Turns loop nests into machine code of this CPU by way of LLVM IR."""

from framefuse.codegen.llvm.compile import Compiled, compile_kernel, text

__all__ = ["Compiled", "compile_kernel", "text"]
