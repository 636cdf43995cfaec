"""Turns LLVM IR text into object code."""

from __future__ import annotations

import time

import llvmlite.binding as llvm

from framefuse.codegen.llvm.lock import LOCK
from framefuse.codegen.llvm.target import Target
from framefuse.errors import CompilerBug


def object_code(text: str, target: Target, times: dict[str, float], quick: bool = False) -> bytes:
    """Compiles a module: parsing, then code generation at level 1 without any pass before it; adds both seconds to
    ``times``. More passes double the compile time for 1 to 4 per cent of run time. ``quick`` code is of level 0, which
    takes a half to a quarter of the time.
    """
    with LOCK:
        begun = time.perf_counter()
        try:
            module = llvm.parse_assembly(text)
        except RuntimeError as error:
            raise CompilerBug(f"LLVM refuses the code of a kernel: {error}") from error
        parsed = time.perf_counter()
        data: bytes = _machine(target, 0 if quick else 1).emit_object(module)
        times["parse"] = parsed - begun
        times["generate"] = time.perf_counter() - parsed
        return data


def assembly(text: str, target: Target) -> str:
    """The module's machine code as assembly, for people and tests."""
    with LOCK:
        written: str = _machine(target, 1).emit_assembly(llvm.parse_assembly(text))
        return written


_machines: dict[tuple[Target, int], llvm.TargetMachine] = {}


def _machine(target: Target, level: int) -> llvm.TargetMachine:
    machine = _machines.get((target, level))
    if machine is None:
        llvm.initialize_native_target()
        llvm.initialize_native_asmprinter()
        # The default code model of a JIT is large: every address a 64-bit constant.
        machine = llvm.Target.from_triple(target.triple).create_target_machine(
            cpu=target.cpu, features=target.features, opt=level, codemodel="small", reloc="pic"
        )
        _machines[target, level] = machine
    return machine
