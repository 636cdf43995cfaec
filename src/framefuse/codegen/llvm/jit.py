"""Turns LLVM IR text into machine code in this process, and keeps it while somebody holds it."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import llvmlite.binding as llvm

from framefuse.codegen.llvm.math_calls import address
from framefuse.codegen.llvm.target import Target
from framefuse.errors import CompilerBug

# One lock for everything that touches LLVM: its target machine and symbol table are shared. It is taken around fork,
# with llvmlite's own, so that a child never inherits a lock held by a thread that it does not have.
LOCK = threading.RLock()
# What else has to happen in a forked child.
AFTER_FORK: list[Callable[[], None]] = []


# Kernels that one linker loads before the next one takes over: making a linker costs as much as loading a kernel, and
# what it notes of a kernel goes only with itself.
KERNELS_A_LINKER = 64


class Object(NamedTuple):
    """Object code that was given a ``name``, and the functions of libraries that it calls."""

    name: str
    imports: tuple[str, ...]
    data: bytes


class _Linker:
    """Links and loads objects. All parts of one lie in one block, so that code reaches its constants by 32-bit
    distances in whatever corner of the process there is room.
    """

    def __init__(self) -> None:
        self.jit = llvm.create_lljit_compiler(_machine_for_loading(), use_jit_link=True)
        self.count = 0

    def load(self, objects: Sequence[Object], imports: Mapping[str, int]) -> llvm.ResourceTracker:
        """The loaded objects, with the addresses of their functions."""
        library = llvm.JITLibraryBuilder().add_current_process()
        for each in objects:
            library.add_object_img(each.data).export_symbol(symbol(each.name))
        for name, where in imports.items():
            library.import_symbol(name, where)
        self.count += len(objects)
        return library.link(self.jit, f"kernel{self.count}")


class _Library:
    """Objects that were linked at once; they are unmapped when this object dies."""

    def __init__(self, objects: Sequence[Object]) -> None:
        addresses = {name: _address(name) for each in objects for name in each.imports}
        with LOCK:
            self._linker: _Linker | None = _linker()
            try:
                self._loaded = self._linker.load(objects, addresses)
            except RuntimeError as error:
                raise CompilerBug(f"a kernel cannot be loaded: {error}") from error
            self.addresses = [self._loaded[symbol(each.name)] for each in objects]

    def __del__(self) -> None:
        loaded = getattr(self, "_loaded", None)
        if loaded is not None and LOCK is not None:
            with LOCK:  # the linker may die with its last kernel
                loaded.close()
                self._linker = None


@dataclass(frozen=True, slots=True, weakref_slot=True, eq=False)
class Code:
    """Loaded machine code, of the object ``name`` that calls ``imports``; while this object lives it stays mapped."""

    name: str
    imports: tuple[str, ...]
    size: int
    address: int
    library: _Library = field(repr=False)


def load(objects: Sequence[Object]) -> list[Code]:
    """Loads objects of different names at once, which takes a third of the time of one by one."""
    if not objects:
        return []
    library = _Library(objects)
    return [
        Code(each.name, each.imports, len(each.data), address, library)
        for each, address in zip(objects, library.addresses, strict=True)
    ]


def symbol(name: str) -> str:
    """The function of an object: those that are linked at once have different ones."""
    return f"kernel{name}"


def object_code(text: str, target: Target, times: dict[str, float]) -> bytes:
    """Compiles a module: parsing, then code generation at level 1 without any pass before it; adds both seconds to
    ``times``. More passes double the compile time for 1 to 4 per cent of run time.
    """
    with LOCK:
        begun = time.perf_counter()
        try:
            module = llvm.parse_assembly(text)
        except RuntimeError as error:
            raise CompilerBug(f"LLVM refuses the code of a kernel: {error}") from error
        parsed = time.perf_counter()
        data: bytes = _machine(target).emit_object(module)
        times["parse"] = parsed - begun
        times["generate"] = time.perf_counter() - parsed
        return data


def assembly(text: str, target: Target) -> str:
    """The module's machine code as assembly, for people and tests."""
    with LOCK:
        written: str = _machine(target).emit_assembly(llvm.parse_assembly(text))
        return written


_machines: dict[Target, llvm.TargetMachine] = {}
_newest: _Linker | None = None


def _machine(target: Target) -> llvm.TargetMachine:
    machine = _machines.get(target)
    if machine is None:
        llvm.initialize_native_target()
        llvm.initialize_native_asmprinter()
        # The default code model of a JIT is large: every address a 64-bit constant.
        machine = llvm.Target.from_triple(target.triple).create_target_machine(
            cpu=target.cpu, features=target.features, opt=1, codemodel="small", reloc="pic"
        )
        _machines[target] = machine
    return machine


def _machine_for_loading() -> llvm.TargetMachine:
    """A machine of its own for each linker, which takes it over."""
    return llvm.Target.from_triple(llvm.get_process_triple()).create_target_machine(opt=1)


def _linker() -> _Linker:
    global _newest
    if _newest is None or _newest.count >= KERNELS_A_LINKER:
        _newest = _Linker()
    return _newest


def _address(symbol: str) -> int:
    where = address(symbol)
    if where is None:
        raise CompilerBug(f"no library has the function {symbol}")
    return where


def _before_fork() -> None:
    LOCK.acquire()
    inner = _llvmlite_lock()
    if inner is not None:
        inner.acquire()


def _after_fork() -> None:
    inner = _llvmlite_lock()
    if inner is not None:
        inner.release()
    LOCK.release()


def _llvmlite_lock() -> threading.RLock | None:
    return getattr(getattr(llvm.ffi.lib, "_lock", None), "_lock", None)


def _in_child() -> None:
    _after_fork()
    for action in AFTER_FORK:
        action()


os.register_at_fork(before=_before_fork, after_in_parent=_after_fork, after_in_child=_in_child)
