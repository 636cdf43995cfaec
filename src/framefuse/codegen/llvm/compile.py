"""Turns a Kernel into a callable address: emits, compiles or takes from a cache, loads."""

from __future__ import annotations

import hashlib
import threading
import time
from collections import OrderedDict
from collections.abc import Iterable
from dataclasses import replace
from typing import TYPE_CHECKING, Any
from weakref import WeakValueDictionary

from framefuse.codegen.disk_cache import DiskCache
from framefuse.codegen.llvm import jit
from framefuse.codegen.llvm.target import host
from framefuse.errors import CompilerBug
from framefuse.ir.code import NativeCode
from framefuse.ir.late_imports import later
from framefuse.ir.loops import Kernel
from framefuse.ir.loops.key import key_of

if TYPE_CHECKING:
    from framefuse.codegen.llvm.emitter import emit
else:
    emit = later("framefuse.codegen.llvm.emitter", "emit")

# Object code kept in memory for kernels that were dropped and come again.
MOST_OBJECTS = 512


class Compiler:
    """The caches of one process: loaded code by kernel while somebody holds it, some object code, and the disk's."""

    def __init__(self, disk: DiskCache) -> None:
        self.disk = disk
        self.compiled = 0
        self._lock = threading.Lock()
        self._loaded: WeakValueDictionary[Any, jit.Code] = WeakValueDictionary()
        self._by_name: WeakValueDictionary[str, jit.Code] = WeakValueDictionary()
        self._objects: OrderedDict[str, bytes] = OrderedDict()

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
        data = self._known(name, keep_on_disk)
        if data is None:
            data = jit.object_code(module.text, target, seconds)
            self.compiled += 1
            if keep_on_disk:
                self.disk.write(name, data)
        return self._linked(name, data, module.imports, seconds)

    def kept(self, title: str, name: str, imports: Iterable[str]) -> NativeCode | None:
        """The code of an object that an earlier process kept; None where it is gone."""
        seconds: dict[str, float] = {}
        with self._lock:
            code = self._by_name.get(name)
            if code is None:
                data = self._known(name, keep_on_disk=True)
                if data is None:
                    return None
                code = self._linked(name, data, imports, seconds)
        return NativeCode(title, code.address, seconds, code.size, code)

    def _linked(self, name: str, data: bytes, imports: Iterable[str], seconds: dict[str, float]) -> jit.Code:
        """The loaded object, whose bytes are remembered for a while."""
        self._objects[name] = data
        self._objects.move_to_end(name)
        if len(self._objects) > MOST_OBJECTS:
            self._objects.popitem(last=False)
        code = self._by_name.get(name)
        if code is None:
            begun = time.perf_counter()
            code = self._by_name[name] = jit.Code(name, data, imports)
            seconds["load"] = time.perf_counter() - begun
        return code

    def _known(self, name: str, keep_on_disk: bool) -> bytes | None:
        return self._objects.get(name) or (self.disk.read(name) if keep_on_disk else None)

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


def kept_kernel(title: str, name: str, imports: Iterable[str]) -> NativeCode | None:
    """The machine code of the object ``name``, which an earlier process has left on disk; None where it is gone."""
    return PROCESS.kept(title, name, imports)


def object_of(code: NativeCode) -> tuple[str, tuple[str, ...]] | None:
    """The name of the object that code was loaded from, and what it calls; None for code of another origin."""
    return (code.keep.name, code.keep.imports) if isinstance(code.keep, jit.Code) else None


def object_file(kernel: Kernel, name: str) -> bytes:
    """Relocatable object code of ``kernel`` for this machine: the function ``name``, hidden outside of the library that
    it is linked into, which calls nothing but the C library's mathematical functions.
    """
    target = replace(host(), sleef=False)
    if not target.supported:
        raise CompilerBug(f"kernels need AVX2 with FMA and F16C, or ARM; this is {target.cpu}")
    code = emit(kernel, target).text.replace("define i64 @kernel(", f"define hidden i64 @{name}(")
    return jit.object_code(code, target, {})


def text(kernel: Kernel) -> str:
    """The LLVM IR of ``kernel`` for this machine, below its loop nest and the user's lines as comments."""
    module = emit(kernel, host())
    return module.heading(kernel) + module.text
