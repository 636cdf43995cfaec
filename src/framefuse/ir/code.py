"""What compilers make of kernels: machine code of this CPU, code that a driver launches, code that Python runs."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from framefuse.ir.native_code import NativeCode
from framefuse.ir.numbers import Expr

# (tensors, numbers, extent) to 0, or 1 where a check of the kernel failed.
Run = Callable[[Sequence[Any], Sequence[Any], int], int]


@dataclass(frozen=True, slots=True)
class Fit:
    """What fitted code asks of a ``value`` over its numbers: a ``multiple`` of so many, from ``low`` to ``high``."""

    value: Expr
    multiple: int = 1
    low: int = 0
    high: int = 2**63 - 1


@dataclass(frozen=True, slots=True)
class DeviceCode:
    """A kernel compiled for a device; ``path`` is the file that it was made from and ``name`` what a profiler shows.

    ``arguments`` are those of the function in order: ("pointer", place of the buffer), ("int32", "int64" or "real64",
    place of the number). Where there are ``programs``, an expression over the kernel's numbers, they are the extent of
    a launch in place of the kernel's. A launch has ``ceil(extent / blocks)`` programs of ``warps`` warps with
    ``shared`` bytes of shared memory. ``function`` is the driver's handle of ``binary``, 0 where nothing was loaded.
    ``aligned`` says that every pointer must be a multiple of 16. Each of ``limits``, expressions over the kernel's
    numbers, must be at least 0 and below 2**31 - 2**20 at a launch, and all of ``fits`` must hold. ``seconds``
    are those of the call that gave it, by step.
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
    seconds: Mapping[str, float]
    keep: object
    programs: Expr | None = None
    fits: tuple[Fit, ...] = ()


@dataclass(frozen=True, slots=True)
class LaunchedCode:
    """A kernel that a driver launches: ``code`` for pointers that are multiples of 16 and numbers like the recorded
    ones; ``variant(aligned)``, which compiles it for any numbers, and for such or any pointers, when that is needed and
    gives the function and its bytes of shared memory; ``threads`` of one program. ``other(aligned)`` gives the code of
    such a variant, for who does not launch it here.
    """

    code: DeviceCode
    variant: Callable[[bool], tuple[int, int]]
    threads: int
    other: Callable[[bool], DeviceCode] | None = None


@dataclass(frozen=True, slots=True)
class PythonCode:
    """A kernel that Python runs, or launches, since no plan knows its driver."""

    code: DeviceCode
    run: Run


KernelCode = NativeCode | LaunchedCode | PythonCode
