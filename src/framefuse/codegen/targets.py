"""The registry of what compiles kernels, by type of device: nothing else tells emitters apart."""

from __future__ import annotations

import functools
import importlib
import importlib.util
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from framefuse.codegen import llvm
from framefuse.ir.loops import Kernel
from framefuse.ir.numbers import Symbol
from framefuse.ir.target import CPU, Target, Targets, type_of

Hints = Mapping[Symbol, int]


@dataclass(frozen=True, slots=True)
class Backend:
    """What makes code for one type of device.

    ``compile(kernel, hints, device)`` gives the code of a kernel for that device, with the recorded values of the
    kernel's numbers as ``hints``; it raises Unsupported for a kernel that it cannot express. ``lacks`` says what is
    missing here, None where the backend works.
    """

    target: Target
    compile: Callable[[Kernel, Hints, str], Any]
    lacks: Callable[[], str | None]


def backend(device: str, cpu: str = "llvm") -> Backend | None:
    """The backend of a device such as "cuda:0", None for a type of device without one. ``cpu`` is the emitter of the
    CPU's kernels.
    """
    kind = type_of(device)
    return BACKENDS.get("cpu by triton" if kind == "cpu" and cpu == "triton" else kind)


def lacking(device: str, cpu: str = "llvm") -> str | None:
    """What is missing for kernels on a device, in a sentence; None where they work."""
    found = backend(device, cpu)
    return f"framefuse has no kernels for {type_of(device)}" if found is None else found.lacks()


def targets(cpu: str = "llvm") -> Targets:
    """The targets that work here, by device."""

    def find(device: str) -> Target | None:
        found = backend(device, cpu)
        return found.target if found is not None and found.lacks() is None else None

    return find


def code_file(kernel: Kernel, compiled: Any) -> tuple[str, Callable[[], str]]:
    """The ending of a file for the code of a kernel, and what makes its text; ``compiled`` is None where compiling
    failed.
    """
    path = getattr(compiled, "path", None)
    if path is None:
        return "ll", lambda: llvm.text(kernel)
    return "py", lambda: Path(path).read_text(encoding="utf-8")


def _llvm(kernel: Kernel, hints: Hints, device: str) -> Any:
    return llvm.compile_kernel(kernel)


def _nothing() -> str | None:
    return None


@functools.cache
def _triton_lacks() -> str | None:
    if importlib.util.find_spec("framefuse.codegen.triton") is None or importlib.util.find_spec("triton") is None:
        return "kernels need the package triton, which is not installed"
    return None


def _triton(kernel: Kernel, hints: Hints, device: str) -> Any:
    emitter = importlib.import_module("framefuse.codegen.triton")  # which takes half a second
    return emitter.compile_kernel(kernel, hints, device)


BACKENDS: dict[str, Backend] = {
    "cpu": Backend(CPU, _llvm, _nothing),
    # The way of a GPU on the CPU's tensors, by Triton's interpreter: for tests.
    "cpu by triton": Backend(
        Target("cpu", "triton", launch=2500.0, products=False, scratch=False), _triton, _triton_lacks
    ),
}
