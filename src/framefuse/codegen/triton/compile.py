"""Turns a Kernel into code for a GPU: writes the module as a file, compiles it or takes it from a cache, loads it."""

from __future__ import annotations

import atexit
import hashlib
import importlib
import shutil
import tempfile
import threading
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from weakref import WeakValueDictionary

import torch

from framefuse.codegen.disk_cache import DiskCache, cache_folder
from framefuse.codegen.specialisation import Hints, Place, Specialisation
from framefuse.codegen.triton import pool
from framefuse.codegen.triton.emitter import Module, emit
from framefuse.codegen.triton.products import emit_product
from framefuse.codegen.triton.stages import OPTIONS, Job, module_at
from framefuse.codegen.triton.target import Machine, machine
from framefuse.codegen.unsupported import Unsupported
from framefuse.errors import CompilerBug
from framefuse.ir.code import DeviceCode, PythonCode
from framefuse.ir.loops import Kernel
from framefuse.ir.numbers import Expr

POINTERS = {
    "bool": "*i1", "uint8": "*u8", "int8": "*i8", "int16": "*i16", "int32": "*i32", "int64": "*i64",
    "float16": "*fp16", "bfloat16": "*bf16", "float32": "*fp32", "float64": "*fp64",
    "complex64": "*i64",  # kernels only move them
}  # fmt: skip
NUMBERS = {"int32": "i32", "int64": "i64", "real64": "fp64"}


@dataclass(slots=True, weakref_slot=True)
class Code:
    """What was compiled once: the binary and its bytes of shared memory; by device, the ``functions`` that were loaded
    there.
    """

    binary: bytes
    shared: int
    functions: dict[str, int]


class Compiler:
    """The caches of one process: code by its key while somebody holds it, and the disk's."""

    def __init__(self, disk: DiskCache) -> None:
        self.disk = disk
        self.compiled = 0
        self._lock = threading.Lock()
        self._codes: WeakValueDictionary[str, Code] = WeakValueDictionary()
        self._busy: dict[str, threading.Lock] = {}  # by key, while a thread makes the code and others may wait for it

    def code(
        self, key: str, module: Module, path: Path, arguments: Sequence[str], on: Machine, aligned: bool, keep: bool
    ) -> tuple[Code, dict[str, float]]:
        """The code of a module by its ``key``; compiled in this call, from the disk, or that which somebody holds."""
        seconds: dict[str, float] = {}
        with self._lock:
            busy = self._busy.setdefault(key, threading.Lock())
        with busy:
            try:
                return self._made(key, module, path, arguments, on, aligned, keep, seconds), seconds
            finally:
                with self._lock:
                    self._busy.pop(key, None)

    def _made(
        self, key: str, module: Module, path: Path, arguments: Sequence[str], on: Machine, aligned: bool, keep: bool,
        seconds: dict[str, float],
    ) -> Code:  # fmt: skip
        with self._lock:
            held = self._codes.get(key)
        if held is not None:
            return held
        stored = self.disk.read(key) if keep else None
        if stored is None:
            begun = time.perf_counter()
            result = pool.PROCESS.compiled(_job(module, path, arguments, on, aligned))
            binary, shared = result.code, result.shared
            seconds["compile"] = time.perf_counter() - begun
            self.compiled += 1
            if keep:
                self.disk.write(key, shared.to_bytes(8, "little") + binary)
        else:
            binary, shared = stored[8:], int.from_bytes(stored[:8], "little")
        with self._lock:
            return self._codes.setdefault(key, Code(binary, shared, {}))


PROCESS = Compiler(DiskCache())


@dataclass(frozen=True, slots=True)
class Emitted:
    """A kernel as a module for a GPU; those of one ``key`` have the same code."""

    key: str
    module: Module
    path: Path
    kinds: Sequence[tuple[str, int]]
    wide: bool
    special: Specialisation
    place: Place
    on: Machine
    seconds: float


def emitted(kernel: Kernel, special: Specialisation, place: Place, on: Machine | None = None) -> Emitted:
    """The module of ``kernel`` for a device, as a file; ``on`` is the GPU (None: that of the place).

    Raises Unsupported for a kernel that this emitter cannot express, ImportError without Triton.
    """
    begun = time.perf_counter()
    module = module_of(kernel, special)
    kinds = _arguments(kernel, module)
    path = _written(module, kernel, place.keep)
    gpu, wide = on or machine(place.device), special.aligned and not module.single
    options = module.blocks.warps, module.stages, wide, module.checks
    parts = (module.text, module.constants, options, tuple(kind for kind, _ in kinds), gpu, _versions())
    key = hashlib.sha256(repr(parts).encode()).hexdigest()
    return Emitted(key, module, path, kinds, wide, special, place, gpu, time.perf_counter() - begun)


def compiled(one: Emitted) -> DeviceCode:
    """The code of a module, loaded where its place says so; thread-safe. Raises Unsupported."""
    module, place = one.module, one.place
    types = [kind for kind, _ in one.kinds]
    code, seconds = PROCESS.code(one.key, module, one.path, types, one.on, one.wide, place.keep)
    if place.load is not None and place.device not in code.functions:
        code.functions[place.device] = place.load(code.binary, module.name, code.shared)
    return DeviceCode(
        str(one.path), module.name, _kinds(one.kinds), module.blocks.points, module.blocks.warps, code.shared,
        code.functions.get(place.device, 0), code.binary, one.special.aligned, module.width.limits,
        {"emit": one.seconds, **seconds}, code, module.programs, module.fits,
    )  # fmt: skip


def compile_kernel(kernel: Kernel, special: Specialisation, place: Place, on: Machine | None = None) -> DeviceCode:
    """The code of ``kernel`` for a device; thread-safe. Raises as :func:`emitted` does."""
    return compiled(emitted(kernel, special, place, on))


def by_interpreter(kernel: Kernel, special: Specialisation, place: Place) -> PythonCode:
    """The code of ``kernel`` as Triton's interpreter runs it: nothing is compiled. Raises Unsupported, and
    AssertionError where TRITON_INTERPRET was not set before Triton was imported.
    """
    assert _interprets(), "TRITON_INTERPRET was not set before Triton was imported"
    begun = time.perf_counter()
    own = module_of(kernel, special)
    path = _written(own, kernel, place.keep)
    module = module_at(path)
    # Imports Triton, which a process without a GPU kernel has no need of.
    runner = importlib.import_module("framefuse.codegen.triton.interpreted")
    run = runner.launcher(getattr(module, own.name), module, kernel, own)
    code = _unloaded(kernel, own, path, special.aligned, own.width.limits, begun)
    return PythonCode(replace(code, fits=own.fits), run)


def launched_by_triton(kernel: Kernel, special: Specialisation, place: Place) -> PythonCode:
    """The code of ``kernel`` for a device whose driver no plan knows: Triton compiles it for each kind of arguments
    and launches it. Raises Unsupported for a kernel that this emitter or Triton's launcher cannot express.
    """
    begun = time.perf_counter()
    module = module_of(kernel, special)
    path = _written(module, kernel, place.keep)
    run = importlib.import_module("framefuse.codegen.triton.own_launcher").launcher(module_at(path), kernel, module)
    return PythonCode(_unloaded(kernel, module, path, False, (), begun), run)


def _unloaded(
    kernel: Kernel, module: Module, path: Path, aligned: bool, limits: tuple[Expr, ...], begun: float
) -> DeviceCode:
    """The code of a module of which no driver has a binary."""
    seconds = {"emit": time.perf_counter() - begun}
    return DeviceCode(
        str(path), module.name, _kinds(_arguments(kernel, module)), module.blocks.points, module.blocks.warps, 0, 0,
        b"", aligned, limits, seconds, None, module.programs,
    )  # fmt: skip


def module_of(kernel: Kernel, special: Specialisation) -> Module:
    """The module of a kernel: a product's, or that of any other nest. Raises Unsupported."""
    return emit_product(kernel, special) if kernel.product is not None else emit(kernel, special)


def signature(kernel: Kernel, hints: Hints, device: str) -> str:
    """A name, equal in all processes, of a kernel at these sizes with the GPU and the compiler that it meets there."""
    module = module_of(kernel, Specialisation(hints))
    name = torch.cuda.get_device_name(device) if torch.device(device).type == "cuda" else device
    parts = (module.text, module.constants, module.blocks.choice, sorted((s.name, v) for s, v in hints.items()), name)
    return hashlib.sha256(repr((parts, machine(device), _versions())).encode()).hexdigest()


def text(kernel: Kernel, hints: Hints) -> str:
    """The Triton module of ``kernel``, below its loop nest and the user's lines as comments."""
    module = module_of(kernel, Specialisation(hints))
    return module.heading(kernel) + module.text


def _arguments(kernel: Kernel, module: Module) -> list[tuple[str, int]]:
    """The types of the function's arguments, with the places of the buffers and numbers that they are. Raises
    Unsupported.
    """
    narrow = module.width.integer == "tl.int32"
    limited = {symbol for limit in module.width.limits for symbol in limit.symbols}
    unknown = next((buffer.dtype.name for buffer in kernel.buffers if buffer.dtype.name not in POINTERS), None)
    if unknown is not None:
        raise Unsupported(f"memory of {unknown}")
    kinds = [(POINTERS[buffer.dtype.name], place) for place, buffer in enumerate(kernel.buffers)]
    for place, number in enumerate(kernel.numbers):
        small = narrow and number.symbol in limited
        kinds.append(("real64" if number.real else "int32" if small else "int64", place))
    return kinds


def _kinds(arguments: Sequence[tuple[str, int]]) -> tuple[tuple[str, int], ...]:
    return tuple(("pointer" if kind.startswith("*") else kind, index) for kind, index in arguments)


# ---- files


@cache
def _modules(keep: bool) -> DiskCache:
    """The folder of generated files: the user's, or one that ends with this process."""
    if keep:
        return DiskCache(cache_folder("triton"))
    folder = tempfile.mkdtemp(prefix="framefuse_")
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    return DiskCache(Path(folder))


_seen: dict[Path, tuple[int, int]] = {}  # when a file that this process wrote or read was written, and its length


def _written(module: Module, kernel: Kernel, keep: bool) -> Path:
    """The file of a module, in the user's folder where ``keep`` says so. Modules of one text share a file, headed by
    the lines of the first of them.
    """
    name = f"{module.name[:100]}_{hashlib.sha256(module.text.encode()).hexdigest()[:16]}.py"
    for kept in (True, False) if keep else (False,):
        modules = _modules(kept)
        path = modules.folder / name
        try:
            there = _seen.get(path) == _stamp(path) or path.read_text().endswith(module.text)
        except (OSError, UnicodeDecodeError):
            there = False
        with suppress(OSError):  # where the user's folder cannot be written
            if not there:
                path = modules.place(name, (module.heading(kernel) + module.text).encode())
            _seen[path] = _stamp(path)
            return path
    raise CompilerBug(f"nowhere to write {name}")


def _stamp(path: Path) -> tuple[int, int]:
    found = path.stat()
    return found.st_mtime_ns, found.st_size


# ---- Triton


def _interprets() -> bool:
    import triton

    return bool(triton.knobs.runtime.interpret)


@cache
def _versions() -> tuple[str, ...]:
    """What decides the code beside the module itself."""
    import triton

    ours = b"".join((Path(__file__).parent / name).read_bytes() for name in ("device.py", "maths.py", "stages.py"))
    return triton.__version__, repr(OPTIONS), hashlib.sha256(ours).hexdigest()


def _job(module: Module, path: Path, arguments: Sequence[str], on: Machine, aligned: bool) -> Job:
    kinds = [NUMBERS.get(kind, kind) for kind in arguments]
    types = dict(zip(module.parameters, kinds, strict=True))
    warps, checks, machine = module.blocks.warps, module.checks, (on.backend, on.arch, on.warp)
    return Job(str(path), module.name, types, dict(module.constants), aligned, warps, checks, machine, module.stages)
