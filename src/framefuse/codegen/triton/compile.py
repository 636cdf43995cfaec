"""Turns a Kernel into code for a GPU: writes the module as a file, compiles it or takes it from a cache, loads it."""

from __future__ import annotations

import atexit
import hashlib
import importlib
import shutil
import tempfile
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from types import ModuleType
from typing import Any
from weakref import WeakValueDictionary

import platformdirs
import torch

from framefuse.codegen.disk_cache import DiskCache
from framefuse.codegen.triton.blocks import Choice
from framefuse.codegen.triton.emitter import Fit, Launch, Module, emit
from framefuse.codegen.triton.products import emit_product
from framefuse.codegen.triton.stages import OPTIONS, Binary, compiled
from framefuse.codegen.triton.target import Machine, machine
from framefuse.errors import CompilerBug
from framefuse.ir.loops import Kernel
from framefuse.ir.numbers import Expr, Symbol
from framefuse.options import environment

POINTERS = {
    "bool": "*i1", "uint8": "*u8", "int8": "*i8", "int16": "*i16", "int32": "*i32", "int64": "*i64",
    "float16": "*fp16", "bfloat16": "*bf16", "float32": "*fp32", "float64": "*fp64",
}  # fmt: skip
NUMBERS = {"int32": "i32", "int64": "i64", "real64": "fp64"}

Load = Callable[[bytes, str, int], int]


@dataclass(frozen=True, slots=True)
class TritonKernel:
    """A compiled kernel; ``path`` is the file that it was compiled from and ``name`` what a profiler shows.

    ``arguments`` are those of the function in order: ("pointer", place of the buffer), ("int32", "int64" or "real64",
    place of the number). Where there are ``programs``, an expression over the kernel's numbers, they are the extent of
    a launch in place of the kernel's. A launch has ``ceil(extent / blocks)`` programs of ``warps`` warps with
    ``shared`` bytes of shared memory. ``function`` is the driver's handle of ``binary``, 0 where nothing was loaded.
    ``aligned`` says that every pointer must be a multiple of 16. Each of ``limits``, expressions over the kernel's
    numbers, must be at least 0 and below 2**31 - 2**20 at a launch, and all of ``fits`` must hold. ``by_python`` runs
    the kernel where no plan can launch it; it takes (tensors, numbers, extent) and returns 0, or 1 when a check failed.
    ``seconds`` are those of this call by step.
    """

    path: str
    name: str
    arguments: tuple[tuple[str, int], ...]
    blocks: int
    warps: int
    shared: int
    function: int
    binary: bytes
    aligned: bool
    limits: tuple[Expr, ...]
    by_python: Launch | None
    seconds: Mapping[str, float]
    keep: Any
    programs: Expr | None = None
    fits: tuple[Fit, ...] = ()


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

    def code(
        self, made: Module, path: Path, arguments: Sequence[str], on: Machine, aligned: bool, keep: bool
    ) -> tuple[Code, dict[str, float]]:
        """The code of a module; compiled in this call, from the disk, or that which somebody holds."""
        seconds: dict[str, float] = {}
        options = made.blocks.warps, made.stages, aligned, made.checks
        parts = (made.text, made.constants, options, tuple(arguments), on, _versions())
        key = hashlib.sha256(repr(parts).encode()).hexdigest()
        with self._lock:
            found = self._codes.get(key)
        if found is not None:
            return found, seconds
        stored = self.disk.read(key) if keep else None
        if stored is None:
            begun = time.perf_counter()
            result = _compile(made, path, arguments, on, aligned)
            binary, shared = result.code, result.shared
            seconds["compile"] = time.perf_counter() - begun
            self.compiled += 1
            if keep:
                self.disk.write(key, shared.to_bytes(8, "little") + binary)
        else:
            binary, shared = stored[8:], int.from_bytes(stored[:8], "little")
        with self._lock:
            return self._codes.setdefault(key, Code(binary, shared, {})), seconds


PROCESS = Compiler(DiskCache())


def compile_kernel(
    kernel: Kernel,
    hints: Mapping[Symbol, int],
    device: str,
    *,
    aligned: bool = True,
    fitted: bool = False,
    guarded: bool = False,
    load: Load | None = None,
    on: Machine | None = None,
    choice: Choice | None = None,
) -> TritonKernel:
    """The code of ``kernel`` for a device of torch; thread-safe.

    ``hints`` gives the recorded values of the kernel's numbers: blocks are chosen for them, any values are computed
    right. ``aligned`` code takes pointers that are multiples of 16 only, ``fitted`` code numbers that pass ``fits``,
    which those recorded do. ``guarded`` says that launches check
    ``limits``; else positions have 64 bits where sizes are numbers. ``load`` (binary, name, shared bytes) gives the
    handle of the function; ``on`` is the GPU (None: that of ``device``); ``choice`` is one of blocks that was measured.
    Where Triton interprets, nothing is compiled.
    Raises Unsupported for a kernel that this emitter cannot express, ImportError without Triton.
    """
    begun = time.perf_counter()
    made = module_of(kernel, hints, guarded, aligned, choice, fitted)
    kinds = _arguments(kernel, made)
    path = _written(made, kernel)
    emitted = time.perf_counter() - begun
    by_python = None
    code, seconds = Code(b"", 0, {}), dict[str, float]()
    if _interprets():
        # Imports Triton, which a process without a GPU kernel has no need of.
        runner = importlib.import_module("framefuse.codegen.triton.interpreted")
        module = _module(path)
        by_python = runner.launcher(getattr(module, made.name), module, kernel, made)
    else:
        keep = environment("cache")
        code, seconds = PROCESS.code(made, path, [kind for kind, _ in kinds], on or machine(device), aligned, keep)
        if load is not None and device not in code.functions:
            code.functions[device] = load(code.binary, made.name, code.shared)
    arguments = tuple(("pointer" if kind.startswith("*") else kind, place) for kind, place in kinds)
    return TritonKernel(
        str(path), made.name, arguments, made.blocks.points, made.blocks.warps, code.shared,
        code.functions.get(device, 0), code.binary, aligned, made.width.limits, by_python,
        {"emit": emitted, **seconds}, code, made.programs, made.fits,
    )  # fmt: skip


def launched_by_triton(
    kernel: Kernel, hints: Mapping[Symbol, int], device: str, choice: Choice | None = None
) -> TritonKernel:
    """The code of ``kernel`` for a device whose driver no plan knows: Triton compiles it for each kind of arguments
    and launches it. Raises Unsupported for a kernel that this emitter or Triton's launcher cannot express.
    """
    begun = time.perf_counter()
    made = module_of(kernel, hints, aligned=False, choice=choice)
    arguments = tuple(("pointer" if kind.startswith("*") else kind, place) for kind, place in _arguments(kernel, made))
    path = _written(made, kernel)
    launch = importlib.import_module("framefuse.codegen.triton.own_launcher").launcher(_module(path), kernel, made)
    return TritonKernel(
        str(path), made.name, arguments, made.blocks.points, made.blocks.warps, 0, 0, b"", False, (), launch,
        {"emit": time.perf_counter() - begun}, None, made.programs,
    )  # fmt: skip


def module_of(
    kernel: Kernel,
    hints: Mapping[Symbol, int],
    guarded: bool = False,
    aligned: bool = True,
    choice: Choice | None = None,
    fitted: bool = False,
) -> Module:
    """The module of a kernel: a product's, or that of any other nest. Raises Unsupported."""
    if kernel.product is not None:
        return emit_product(kernel, hints, guarded, aligned, choice)
    return emit(kernel, hints, guarded, aligned, choice, fitted)


def signature(kernel: Kernel, hints: Mapping[Symbol, int], device: str) -> str:
    """A name, equal in all processes, of a kernel at these sizes with the GPU and the compiler that it meets there."""
    made = module_of(kernel, hints)
    name = torch.cuda.get_device_name(device) if torch.device(device).type == "cuda" else device
    parts = (made.text, made.constants, made.blocks.choice, sorted((s.name, v) for s, v in hints.items()), name)
    return hashlib.sha256(repr((parts, machine(device), _versions())).encode()).hexdigest()


def text(kernel: Kernel, hints: Mapping[Symbol, int]) -> str:
    """The Triton module of ``kernel``, below its loop nest and the user's lines as comments."""
    made = module_of(kernel, hints)
    return made.heading(kernel) + made.text


def _arguments(kernel: Kernel, made: Module) -> list[tuple[str, int]]:
    """The types of the function's arguments, with the places of the buffers and numbers that they are."""
    narrow = made.width.integer == "tl.int32"
    limited = {symbol for limit in made.width.limits for symbol in limit.symbols}
    found = [(POINTERS[buffer.dtype.name], place) for place, buffer in enumerate(kernel.buffers)]
    for place, number in enumerate(kernel.numbers):
        small = narrow and number.symbol in limited
        found.append(("real64" if number.real else "int32" if small else "int64", place))
    return found


# ---- files


@cache
def _modules(keep: bool) -> DiskCache:
    """The folder of generated files: the user's, or one that ends with this process."""
    if keep:
        return DiskCache(Path(platformdirs.user_cache_dir("framefuse")) / "triton")
    folder = tempfile.mkdtemp(prefix="framefuse_")
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    return DiskCache(Path(folder))


def _written(made: Module, kernel: Kernel) -> Path:
    """The file of a module. Modules of one text share a file, headed by the lines of the first of them."""
    name = f"{made.name[:100]}_{hashlib.sha256(made.text.encode()).hexdigest()[:16]}.py"
    for keep in (True, False) if environment("cache") else (False,):
        modules = _modules(keep)
        try:
            if (modules.folder / name).read_text().endswith(made.text):
                return modules.folder / name
        except (OSError, UnicodeDecodeError):
            pass
        with suppress(OSError):  # where the user's folder cannot be written
            return modules.place(name, (made.heading(kernel) + made.text).encode())
    raise CompilerBug(f"nowhere to write {name}")


def _module(path: Path) -> ModuleType:
    """Runs a generated file; Triton reads the source of its functions from there again."""
    module = ModuleType(path.stem)
    module.__file__ = str(path)
    exec(compile(path.read_text(), str(path), "exec"), module.__dict__)
    return module


# ---- Triton


def _interprets() -> bool:
    import triton

    return bool(triton.knobs.runtime.interpret)


@cache
def _versions() -> tuple[str, ...]:
    """What decides the code beside the module itself."""
    import triton

    ours = b"".join((Path(__file__).parent / name).read_bytes() for name in ("device.py", "maths.py"))
    return triton.__version__, repr(OPTIONS), hashlib.sha256(ours).hexdigest()


def _compile(made: Module, path: Path, arguments: Sequence[str], on: Machine, aligned: bool) -> Binary:
    kinds = [NUMBERS.get(kind, kind) for kind in arguments]
    types = dict(zip(made.parameters, kinds, strict=True))
    module, constants = _module(path), dict(made.constants)
    return compiled(module, made.name, types, constants, aligned, made.blocks.warps, made.checks, on, made.stages)
