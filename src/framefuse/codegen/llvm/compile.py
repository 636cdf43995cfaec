"""Turns a Kernel into a callable address: emits, compiles or takes from a cache, loads."""

from __future__ import annotations

import hashlib
import threading
import time
from dataclasses import dataclass
from typing import Any
from weakref import WeakValueDictionary

from framefuse.codegen.llvm import disk_cache, jit
from framefuse.codegen.llvm.emitter import emit
from framefuse.codegen.llvm.target import host
from framefuse.errors import CompilerBug
from framefuse.ir.loops import Kernel


@dataclass(frozen=True, slots=True)
class Compiled:
    """Machine code of one kernel: ``int64_t kernel(char **buffers, const int64_t *numbers, int64_t begin, end)``.

    The code at ``address`` lives as long as ``keep``. ``seconds`` by step (emit, parse, generate, load) are those of
    this call: an equal kernel compiled before takes none. ``size`` is that of the object code in bytes.
    """

    name: str
    address: int
    seconds: dict[str, float]
    size: int
    keep: Any


_lock = threading.Lock()
_loaded: WeakValueDictionary[str, jit.Code] = WeakValueDictionary()


def text(kernel: Kernel) -> str:
    """The annotated LLVM IR of ``kernel`` for this machine, headed by its loop nest and the user's lines."""
    return emit(kernel, host()).text


def compile_kernel(kernel: Kernel) -> Compiled:
    """Machine code for ``kernel``; equal ones share it while it lives. Thread-safe.

    Raises CompilerBug for a kernel that breaks the rules of :mod:`framefuse.ir.loops`.
    """
    target = host()
    if not target.supported:
        raise CompilerBug(f"kernels need AVX2 with FMA and F16C, or ARM; this is {target.cpu}")
    begun = time.perf_counter()
    module = emit(kernel, target)
    seconds = {"emit": time.perf_counter() - begun}
    body = module.text[module.text.index("target triple") :]
    key = hashlib.sha256(f"{target.key}\n{body}".encode()).hexdigest()
    with _lock:
        code = _loaded.get(key)
        if code is None:
            data = disk_cache.read(key)
            if data is None:
                data = jit.object_code(body, target, seconds)
                disk_cache.write(key, data)
            begun = time.perf_counter()
            code = jit.Code(data, module.imports)
            seconds["load"] = time.perf_counter() - begun
            _loaded[key] = code
    return Compiled(kernel.title, code.address, seconds, code.size, code)
