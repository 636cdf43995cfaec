"""What the code of a kernel is made for: the sizes it is good for, what it may rely on, and where it will live."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping
from dataclasses import dataclass, field

from framefuse.ir.code import KernelCode
from framefuse.ir.loops import Kernel
from framefuse.ir.numbers import Symbol

Hints = Mapping[Symbol, int]
Load = Callable[[bytes, str, int], int]  # (binary, name, bytes of shared memory) to the driver's handle of a function


@dataclass(frozen=True, slots=True)
class Choice:
    """What may be measured of a kernel's blocks: ``points`` of the parallel axis that a program takes, the ``width`` of
    the vector loops' turns (0: there are none, or the nest decides), ``warps``, and the ``stages`` in which turns
    overlap (1: they do not). Of a product these are the rows and columns of a tile, and ``inner`` is what a turn adds.
    """

    points: int
    width: int
    warps: int
    stages: int = 1
    inner: int = 0


@dataclass(frozen=True, slots=True)
class Specialisation:
    """What the code of a kernel is made for; it is right for any sizes unless it is ``fitted``.

    ``hints`` are the recorded values of the kernel's numbers: code is good for those. ``guarded``: a launch checks that
    32 bits hold every position, so that integers may be narrow although sizes are not known. ``aligned``: every pointer
    is a multiple of 16. ``fitted``: a launch checks that numbers are like the recorded ones, and the code for others is
    left out. ``choice`` is a measured way to cut the kernel (None: the emitter's own).
    """

    hints: Hints = field(default_factory=dict)
    guarded: bool = False
    aligned: bool = True
    fitted: bool = False
    choice: Choice | None = None


@dataclass(frozen=True, slots=True)
class Place:
    """Where code will live: the ``device`` of torch, what loads a binary there (None: it is not loaded), and whether
    files of it are kept in the user's cache folder for later processes. ``quick``: code is wanted soon rather than
    good, of a compiler that can do so.
    """

    device: str
    load: Load | None = field(default=None, compare=False)
    keep: bool = False
    quick: bool = False


@dataclass(frozen=True, slots=True)
class Begun:
    """A kernel that was emitted. Those of one ``key`` have the same code, which ``finish`` makes or takes from where it
    was made; ``length`` says which code takes longest to make.
    """

    key: Hashable
    length: int
    finish: Callable[[], KernelCode]


Compile = Callable[[Kernel, Specialisation, Place], Begun]


def at_once(make: Callable[[Kernel, Specialisation, Place], KernelCode]) -> Compile:
    """The compiler whose code ``make`` makes, which has no step that is worth being taken before others."""
    return lambda kernel, special, place: Begun(object(), 0, lambda: make(kernel, special, place))
