"""Turns a Kernel into a callable address: emits, compiles or takes from a cache, loads."""

from __future__ import annotations

import hashlib
import threading
import time
from collections import OrderedDict
from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any
from weakref import WeakValueDictionary

from framefuse.codegen.disk_cache import DiskCache
from framefuse.codegen.llvm.loading import Code, Object, load, symbol
from framefuse.codegen.llvm.lock import AFTER_FORK
from framefuse.errors import CompilerBug
from framefuse.ir.late_imports import later
from framefuse.ir.native_code import NativeCode

if TYPE_CHECKING:
    from framefuse.codegen.llvm.emitter import Module, emit
    from framefuse.codegen.llvm.jit import object_code
    from framefuse.codegen.llvm.target import host
    from framefuse.ir.loops import Kernel
    from framefuse.ir.loops.key import key_of
else:
    key_of = later("framefuse.ir.loops.key", "key_of")
    host = later("framefuse.codegen.llvm.target", "host")
    object_code = later("framefuse.codegen.llvm.jit", "object_code")
    emit = later("framefuse.codegen.llvm.emitter", "emit")

# Object code kept in memory for kernels that were dropped and come again.
MOST_OBJECTS = 512
NAMING = "each object's function has its name"  # part of the names: no object that was made otherwise is taken for one


class Compiler:
    """The caches of one process: loaded code by kernel while somebody holds it, some object code, and the disk's."""

    def __init__(self, disk: DiskCache) -> None:
        self.disk = disk
        self.compiled = 0
        self._lock = threading.Lock()
        self._loaded: WeakValueDictionary[Any, Code] = WeakValueDictionary()
        self._by_name: WeakValueDictionary[str, Code] = WeakValueDictionary()
        self._objects: OrderedDict[str, bytes] = OrderedDict()
        # Code that was compiled quickly, and the text of the kernels that are still to be compiled better.
        self._quick: WeakValueDictionary[Any, Code] = WeakValueDictionary()
        self._emitted: dict[Any, Module] = {}

    def compile(self, kernel: Kernel, keep_on_disk: bool, quick: bool = False) -> NativeCode:
        key = key_of(kernel)
        seconds: dict[str, float] = {}
        with self._lock:
            code = self._loaded.get(key)
            fast = self._quick.get(key) if code is None and quick else None
            if code is None and fast is None:
                code, fast = self._load(kernel, key, keep_on_disk, quick, seconds)
        if code is None:
            assert fast is not None
            return NativeCode(kernel.title, fast.address, seconds, fast.size, fast, quick=True)
        return NativeCode(kernel.title, code.address, seconds, code.size, code)

    def _load(
        self, kernel: Kernel, key: Any, keep_on_disk: bool, quick: bool, seconds: dict[str, float]
    ) -> tuple[Code | None, Code | None]:
        """The code of a kernel, or else what was compiled quickly."""
        target = host()
        if not target.supported:
            raise CompilerBug(f"kernels need AVX2 with FMA and F16C, or ARM; this is {target.cpu}")
        begun = time.perf_counter()
        module = self._emitted.pop(key, None) or emit(kernel, target)
        seconds["emit"] = time.perf_counter() - begun
        name = hashlib.sha256(f"{target.key}\n{NAMING}\n{module.text}".encode()).hexdigest()
        data = self._known(name, keep_on_disk)
        if data is None and quick:
            self._emitted[key] = module
            name = f"{name}_quick"
            data = object_code(_renamed(module.text, f"define i64 @{symbol(name)}("), target, seconds, quick=True)
            (fast,) = self._linked([Object(name, tuple(sorted(module.imports)), data)], seconds)
            self._quick[key] = fast
            return None, fast
        if data is None:
            data = object_code(_renamed(module.text, f"define i64 @{symbol(name)}("), target, seconds)
            self.compiled += 1
            if keep_on_disk:
                self.disk.write(name, data)
        (code,) = self._linked([Object(name, tuple(sorted(module.imports)), data)], seconds)
        self._loaded[key] = code
        return code, None

    def kept(self, objects: Sequence[Object], uses: Iterable[tuple[str, int]]) -> list[NativeCode]:
        """The code of objects that an earlier process kept, by title and number of each use."""
        seconds: dict[str, float] = {}
        with self._lock:
            codes = self._linked(objects, seconds)
        found = []
        for title, place in uses:
            code = codes[place]
            found.append(NativeCode(title, code.address, seconds, code.size, code))
            seconds = {}  # all were loaded at once
        return found

    def object_of(self, code: Code) -> Object | None:
        """What code was loaded from; None where nothing holds its bytes any more."""
        with self._lock:
            data = self._known(code.name, keep_on_disk=True)
        return None if data is None else Object(code.name, code.imports, data)

    def _linked(self, objects: Sequence[Object], seconds: dict[str, float]) -> list[Code]:
        """The loaded objects, whose bytes are remembered for a while; those that are not loaded yet are so at once."""
        for each in objects:
            self._objects[each.name] = each.data
            self._objects.move_to_end(each.name)
        while len(self._objects) > MOST_OBJECTS:
            self._objects.popitem(last=False)
        found = [self._by_name.get(each.name) for each in objects]
        begun = time.perf_counter()
        loaded = iter(load([each for each, code in zip(objects, found, strict=True) if code is None]))
        codes = [code or next(loaded) for code in found]
        if None in found:
            seconds["load"] = time.perf_counter() - begun
        self._by_name.update((code.name, code) for code in codes)
        return codes

    def _known(self, name: str, keep_on_disk: bool) -> bytes | None:
        return self._objects.get(name) or (self.disk.read(name) if keep_on_disk else None)

    def after_fork(self) -> None:
        """A child must not wait for a lock that a thread of its parent held."""
        self._lock = threading.Lock()


PROCESS = Compiler(DiskCache())
AFTER_FORK.append(PROCESS.after_fork)


def compile_kernel(kernel: Kernel, keep_on_disk: bool = False, quick: bool = False) -> NativeCode:
    """Machine code for ``kernel``; equal kernels share it while one of them is held. Thread-safe.

    ``keep_on_disk`` says whether object code is read from and written to the user's cache folder. ``quick``: code that
    takes less time to make will do, where there is none yet; it is not written. Raises CompilerBug
    for a kernel that breaks the rules of :mod:`framefuse.ir.loops`, and on a CPU without the vector instructions that
    kernels need.
    """
    return PROCESS.compile(kernel, keep_on_disk, quick)


def kept_kernels(
    objects: Sequence[tuple[str, tuple[str, ...], bytes]], uses: Iterable[tuple[str, int]]
) -> list[NativeCode]:
    """Machine code of what :func:`object_of` gave in an earlier process, by title and number of each use."""
    return PROCESS.kept([Object(*each) for each in objects], uses)


def object_of(code: NativeCode) -> tuple[str, tuple[str, ...], bytes] | None:
    """The name of the object that code was loaded from, what it calls and its bytes; None for code of another origin,
    and where its bytes are gone.
    """
    found = PROCESS.object_of(code.keep) if isinstance(code.keep, Code) else None
    return None if found is None else (found.name, found.imports, found.data)


def object_file(kernel: Kernel, name: str) -> bytes:
    """Relocatable object code of ``kernel`` for this machine: the function ``name``, hidden outside of the library that
    it is linked into, which calls nothing but the C library's mathematical functions.
    """
    target = replace(host(), sleef=False)
    if not target.supported:
        raise CompilerBug(f"kernels need AVX2 with FMA and F16C, or ARM; this is {target.cpu}")
    return object_code(_renamed(emit(kernel, target).text, f"define hidden i64 @{name}("), target, {})


def _renamed(code: str, head: str) -> str:
    return code.replace("define i64 @kernel(", head)


def text(kernel: Kernel) -> str:
    """The LLVM IR of ``kernel`` for this machine, below its loop nest and the user's lines as comments."""
    module = emit(kernel, host())
    return module.heading(kernel) + module.text
