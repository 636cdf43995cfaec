"""Turns loop nests into machine code of this CPU by way of LLVM IR."""

from typing import TYPE_CHECKING

from framefuse.codegen.llvm.compile import compile_kernel, kept_kernels, object_file, object_of, text
from framefuse.ir.late_imports import later

if TYPE_CHECKING:
    from framefuse.codegen.llvm.target import host
else:
    host = later("framefuse.codegen.llvm.target", "host")

__all__ = ["compile_kernel", "host", "kept_kernels", "object_file", "object_of", "text"]
