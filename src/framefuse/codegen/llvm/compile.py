"""Turns a Kernel into a callable address: emits, compiles or takes from a cache, loads."""

from __future__ import annotations

import hashlib
import threading
import time
from collections import OrderedDict
from typing import Any
from weakref import WeakValueDictionary

from framefuse.codegen.disk_cache import DiskCache
from framefuse.codegen.llvm import jit
from framefuse.codegen.llvm.emitter import Module, emit
from framefuse.codegen.llvm.target import host
from framefuse.errors import CompilerBug
from framefuse.ir.code import NativeCode
from framefuse.ir.loops import Kernel
from framefuse.ir.loops.key import key_of

# Object code kept in memory for kernels that were dropped and come again.
MOST_OBJECTS = 512


class Compiler:
    """The caches of one process: loaded code by kernel while somebody holds it, some object code, and the disk's."""

    def __init__(self, disk: DiskCache) -> None:
        self.disk = disk
        self.compiled = 0
        self._lock = threading.Lock()
        self._loaded: WeakValueDictionary[Any, jit.Code] = WeakValueDictionary()
        self._objects: OrderedDict[str, tuple[bytes, frozenset[str]]] = OrderedDict()

    def compile(self, kernel: Kernel, keep_on_disk: bool) -> NativeCode:
        key = key_of(kernel)
        seconds: dict[str, float] = {}
        with self._lock:
            code = self._loaded.get(key)
            if code is None:
                code = self._load(kernel, keep_on_disk, seconds)
                self._loaded[key] = code
        return NativeCode(kernel.title, code.address, seconds, code.size, code)

    def _load(self, kernel: Kernel, keep_on_disk: bool, seconds: dict[str, float]) -> jit.Code:
        target = host()
        if not target.supported:
            raise CompilerBug(f"kernels need AVX2 with FMA and F16C, or ARM; this is {target.cpu}")
        begun = time.perf_counter()
        module = emit(kernel, target)
        seconds["emit"] = time.perf_counter() - begun
        name = hashlib.sha256(f"{target.key}\n{module.text}".encode()).hexdigest()
        data = self._object(name, module, keep_on_disk, seconds)
        begun = time.perf_counter()
        code = jit.Code(data, module.imports)
        seconds["load"] = time.perf_counter() - begun
        return code

    def _object(self, name: str, module: Module, keep_on_disk: bool, seconds: dict[str, float]) -> bytes:
        found = self._objects.get(name)
        data = found[0] if found else self.disk.read(name) if keep_on_disk else None
        if data is None:
            data = jit.object_code(module.text, host(), seconds)
            self.compiled += 1
            if keep_on_disk:
                self.disk.write(name, data)
        self._objects[name] = data, module.imports
        self._objects.move_to_end(name)
        if len(self._objects) > MOST_OBJECTS:
            self._objects.popitem(last=False)
        return data

    def after_fork(self) -> None:
        """A child must not wait for a lock that a thread of its parent held."""
        self._lock = threading.Lock()


PROCESS = Compiler(DiskCache())
jit.AFTER_FORK.append(PROCESS.after_fork)


def compile_kernel(kernel: Kernel, keep_on_disk: bool = False) -> NativeCode:
    """Machine code for ``kernel``; equal kernels share it while one of them is held. Thread-safe.

    ``keep_on_disk`` says whether object code is read from and written to the user's cache folder. Raises CompilerBug
    for a kernel that breaks the rules of :mod:`framefuse.ir.loops`, and on a CPU without the vector instructions that
    kernels need.
    """
    return PROCESS.compile(kernel, keep_on_disk)


def text(kernel: Kernel) -> str:
    """The LLVM IR of ``kernel`` for this machine, below its loop nest and the user's lines as comments."""
    module = emit(kernel, host())
    return module.heading(kernel) + module.text
