"""Turns LLVM IR text into machine code in this process, and keeps it while somebody holds it."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Iterable

import llvmlite.binding as llvm

from framefuse.codegen.llvm.library import address
from framefuse.codegen.llvm.target import Target
from framefuse.errors import CompilerBug

# One lock for everything that touches LLVM: its target machine and symbol table are shared. It is taken around fork,
# with llvmlite's own, so that a child never inherits a lock held by a thread that it does not have.
LOCK = threading.RLock()
# What else has to happen in a forked child.
AFTER_FORK: list[Callable[[], None]] = []


class Code:
    """Loaded machine code; it is unmapped when this object dies."""

    __slots__ = ("_engine", "address", "size", "__weakref__")

    def __init__(self, data: bytes, imports: Iterable[str]) -> None:
        with LOCK:
            for symbol in sorted(imports):
                _import(symbol)
            module = llvm.parse_assembly("")
            self._engine = llvm.create_mcjit_compiler(module, _machine_for_loading())
            self._engine.add_object_file(llvm.ObjectFileRef.from_data(data))
            self._engine.finalize_object()
            self.address = self._engine.get_function_address("kernel")
        self.size = len(data)
        if not self.address:
            raise CompilerBug("the object code has no kernel")

    def __del__(self) -> None:
        engine = getattr(self, "_engine", None)
        if engine is not None and LOCK is not None:
            with LOCK:
                engine.close()


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
        data = _machine(target).emit_object(module)
        times["parse"] = parsed - begun
        times["generate"] = time.perf_counter() - parsed
        return data


def assembly(text: str, target: Target) -> str:
    """The module's machine code as assembly, for people and tests."""
    with LOCK:
        return _machine(target).emit_assembly(llvm.parse_assembly(text))


_machines: dict[Target, llvm.TargetMachine] = {}
_imported: set[str] = set()


def _machine(target: Target) -> llvm.TargetMachine:
    found = _machines.get(target)
    if found is None:
        llvm.initialize_native_target()
        llvm.initialize_native_asmprinter()
        # The default code model of a JIT is large: every address a 64-bit constant.
        found = llvm.Target.from_triple(target.triple).create_target_machine(
            cpu=target.cpu, features=target.features, opt=1, codemodel="small", reloc="pic"
        )
        _machines[target] = found
    return found


def _machine_for_loading() -> llvm.TargetMachine:
    """A machine of its own for each engine, which takes it over."""
    return llvm.Target.from_triple(llvm.get_process_triple()).create_target_machine(opt=1)


def _import(symbol: str) -> None:
    if symbol in _imported:
        return
    where = address(symbol)
    if where is None:
        raise CompilerBug(f"no library has the function {symbol}")
    llvm.add_symbol(symbol, where)
    _imported.add(symbol)


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
