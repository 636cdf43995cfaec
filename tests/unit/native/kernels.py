"""Small kernels for plans: out[i] = scale * in[i] + in2[i] over float32, and one that reports an error in the data."""

from __future__ import annotations

import ctypes
from functools import cache
from typing import Any

import llvmlite.binding as llvm

# axpy: buffers (x, y, out), numbers (scale as the bits of a double). negative: 1 where an element is below zero.
TEXT = """
define i64 @axpy(ptr %b, ptr %n, i64 %begin, i64 %end) {
entry:
  %x = load ptr, ptr %b
  %py = getelementptr ptr, ptr %b, i64 1
  %y = load ptr, ptr %py
  %po = getelementptr ptr, ptr %b, i64 2
  %o = load ptr, ptr %po
  %wide = load double, ptr %n
  %s = fptrunc double %wide to float
  br label %head
head:
  %i = phi i64 [ %begin, %entry ], [ %next, %body ]
  %more = icmp slt i64 %i, %end
  br i1 %more, label %body, label %done
body:
  %xi = getelementptr float, ptr %x, i64 %i
  %yi = getelementptr float, ptr %y, i64 %i
  %oi = getelementptr float, ptr %o, i64 %i
  %xv = load float, ptr %xi
  %yv = load float, ptr %yi
  %m = fmul float %xv, %s
  %r = fadd float %m, %yv
  store float %r, ptr %oi
  %next = add i64 %i, 1
  br label %head
done:
  ret i64 0
}
define i64 @negative(ptr %b, ptr %n, i64 %begin, i64 %end) {
entry:
  %x = load ptr, ptr %b
  br label %head
head:
  %i = phi i64 [ %begin, %entry ], [ %next, %body ]
  %more = icmp slt i64 %i, %end
  br i1 %more, label %body, label %done
body:
  %xi = getelementptr float, ptr %x, i64 %i
  %xv = load float, ptr %xi
  %below = fcmp olt float %xv, 0.0
  %next = add i64 %i, 1
  br i1 %below, label %bad, label %head
bad:
  ret i64 1
done:
  ret i64 0
}
"""


@cache
def _engine() -> Any:
    llvm.initialize_native_target()
    llvm.initialize_native_asmprinter()
    machine = llvm.Target.from_default_triple().create_target_machine(opt=2)
    engine = llvm.create_mcjit_compiler(llvm.parse_assembly(TEXT), machine)
    engine.finalize_object()
    return engine


def address(name: str) -> int:
    """Where the kernel starts."""
    return int(_engine().get_function_address(name))


KERNEL = ctypes.CFUNCTYPE(
    ctypes.c_int64, ctypes.POINTER(ctypes.c_void_p), ctypes.POINTER(ctypes.c_int64), ctypes.c_int64, ctypes.c_int64
)
