"""The registry of what compiles kernels, by type of device: no other file distinguishes emitters."""

from __future__ import annotations

import functools
import importlib.util
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch

from framefuse.codegen import llvm, triton
from framefuse.codegen.specialisation import Begun, Choice, Compile, Hints, Place, Specialisation, at_once
from framefuse.codegen.triton.target import machine
from framefuse.ir.code import DeviceCode, KernelCode, LaunchedCode, PythonCode
from framefuse.ir.loops import Kernel
from framefuse.ir.loops.print import kernel_text
from framefuse.ir.native_code import NativeCode
from framefuse.ir.target import CPU, Target, Targets, type_of

OLDEST = (7, 0)
COMPILERS = 8  # threads in which kernels are compiled where that is slow


@dataclass(frozen=True, slots=True)
class Backend:
    """What makes code for one type of device.

    ``compile`` begins the code of a kernel; it, or finishing that, raises Unsupported for one that it cannot express.
    ``lacks`` says what is missing here, None where the backend works. ``slow`` compilers finish several kernels at
    once, in ``threads(kernels)`` threads, and call tools that may be missing; ``prepare(nodes)`` tells them that
    kernels of a graph come; those that are not ``hinted`` take no hints.

    Where there are ``choices(kernel, hints)`` of how to cut a kernel, ``compile`` heeds one of them, and
    ``signature(kernel, hints, device)`` names in all processes what decides which one is the fastest.
    """

    target: Target
    compile: Compile
    lacks: Callable[[], str | None]
    slow: bool = False
    hinted: bool = True
    choices: Callable[[Kernel, Hints], Sequence[Choice]] | None = None
    signature: Callable[[Kernel, Hints, str], str] | None = None
    threads: Callable[[int], int] = lambda kernels: min(kernels, COMPILERS)
    prepare: Callable[[int], None] = lambda nodes: None


def backend(device: str, cpu: str = "llvm") -> Backend | None:
    """The backend of a device such as "cuda:0", None for a type of device without one. ``cpu`` is the emitter of the
    CPU's kernels; "alone": of any device's, for programs that run where torch's library is not there.
    """
    kind = type_of(device)
    if kind == "cpu":
        return BACKENDS.get(CPUS[cpu])
    return BACKENDS.get(f"{kind} alone" if cpu == "alone" else kind)


def lacking(device: str, cpu: str = "llvm") -> str | None:
    """What is missing for kernels on a device, in a sentence; None where they work."""
    compiler = backend(device, cpu)
    return f"framefuse has no kernels for {type_of(device)}" if compiler is None else compiler.lacks()


def targets(cpu: str = "llvm") -> Targets:
    """The targets that work here, by device."""

    def find(device: str) -> Target | None:
        compiler = backend(device, cpu)
        if compiler is None or compiler.lacks() is not None:
            return None
        return with_units(compiler.target, device) if compiler.target.device == "cuda" else compiler.target

    return find


@functools.cache
def with_units(target: Target, device: str) -> Target:
    """The target with as many units as the GPU has."""
    return replace(target, units=torch.cuda.get_device_properties(device).multi_processor_count)


def emitter_of(compiled: KernelCode) -> str:
    """What made the code of a kernel, in a word."""
    if isinstance(compiled, NativeCode):
        return "LLVM"
    return "Triton" if compiled.code.path else "Python"


def code_file(kernel: Kernel, compiled: KernelCode | None) -> tuple[str, Callable[[], str]]:
    """The ending of a file for the code of a kernel, and what makes its text; ``compiled`` is None where compiling
    failed.
    """
    if compiled is None or isinstance(compiled, NativeCode):
        return "ll", lambda: llvm.text(kernel)
    if not compiled.code.path:  # Python runs the nest itself
        return "txt", lambda: kernel_text(kernel)
    path = Path(compiled.code.path)
    return "py", lambda: path.read_text(encoding="utf-8")


def _llvm(kernel: Kernel, special: Specialisation, place: Place) -> NativeCode:
    return llvm.compile_kernel(kernel, place.keep, place.quick)


def _nothing() -> str | None:
    return None


@functools.cache
def _xpu_lacks() -> str | None:
    return _triton_lacks() if torch.xpu.is_available() else "torch finds no driver of an Intel GPU"


@functools.cache
def _triton_lacks() -> str | None:
    if importlib.util.find_spec("triton") is None:
        return "Kernels need the package triton, which is not installed (pip install triton)"
    return None


@functools.cache
def _cuda_lacks() -> str | None:
    if not torch.cuda.is_available():
        return "torch finds no driver of a GPU"
    if any(torch.cuda.get_device_capability(device) < OLDEST for device in range(torch.cuda.device_count())):
        return "Triton has no code for a GPU here, which is older than compute capability 7.0"
    return _triton_lacks()


def _interpreted(kernel: Kernel, special: Specialisation, place: Place) -> PythonCode:
    return triton.by_interpreter(kernel, replace(special, guarded=False), place)


def _launched_by_triton(kernel: Kernel, special: Specialisation, place: Place) -> PythonCode:
    return triton.launched_by_triton(kernel, replace(special, guarded=False, aligned=False), place)


def _launched(kernel: Kernel, special: Specialisation, place: Place) -> Begun:
    emitted = triton.emitted(kernel, replace(special, fitted=True), place)

    def other(aligned: bool) -> DeviceCode:
        return triton.compile_kernel(kernel, replace(special, aligned=aligned), place)

    def variant(aligned: bool) -> tuple[int, int]:
        code = other(aligned)
        return code.function, code.shared

    def finish() -> LaunchedCode:
        code = triton.compiled(emitted)
        return LaunchedCode(code, variant, code.warps * machine(place.device).warp, other)

    return Begun(emitted.key, len(emitted.module.text), finish)


def _triton(device: str, **more: bool) -> Target:
    return Target(device, "triton", launch=2500.0, products=False, scratch=False, atomics=True, **more)


_CUDA = _triton("cuda", reports=False, epilogues=torch.version.hip is None)
_CHOICES: dict[str, Any] = {"choices": triton.candidates, "signature": triton.signature}
_SLOW: dict[str, Any] = {"slow": True, "threads": triton.threads, "prepare": triton.prepare}
_LAUNCHED: dict[str, Any] = {**_SLOW, **_CHOICES}
_ALONE: dict[str, Any] = {"library": False, "products": True, "epilogues": False}
CPUS = {"llvm": "cpu", "alone": "cpu alone", "triton": "cpu by triton"}
BACKENDS: dict[str, Backend] = {
    "cpu": Backend(CPU, at_once(_llvm), _nothing, hinted=False),
    "cpu alone": Backend(replace(CPU, library=False), at_once(_llvm), _nothing, hinted=False),
    "cuda": Backend(_CUDA, _launched, _cuda_lacks, **_LAUNCHED),
    "cuda alone": Backend(replace(_CUDA, **_ALONE), _launched, _cuda_lacks, **_LAUNCHED),
    "xpu": Backend(_triton("xpu"), at_once(_launched_by_triton), _xpu_lacks),  # never run: no such device was at hand
    # The way of a GPU on the CPU's tensors, by Triton's interpreter: for tests.
    "cpu by triton": Backend(_triton("cpu"), at_once(_interpreted), _triton_lacks, **_CHOICES),
}
