"""What an exported program is, between the plan of a recorded call and the C text that is made of it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import torch

from framefuse.aot.own_views import Shown
from framefuse.aot.tails import Tail
from framefuse.aot.weights import Weight
from framefuse.ir.facts import TensorSpec
from framefuse.ir.plan import Plan, Template

# The dtypes of DLPack by torch's: (code, bits).
DLPACK = {
    torch.float64: (2, 64), torch.float32: (2, 32), torch.float16: (2, 16), torch.bfloat16: (4, 16),
    torch.int64: (0, 64), torch.int32: (0, 32), torch.int16: (0, 16), torch.int8: (0, 8), torch.uint8: (1, 8),
    torch.bool: (6, 8), torch.complex64: (5, 64), torch.complex128: (5, 128),
}  # fmt: skip
NONE: Template = ("const", None)


@dataclass(frozen=True, slots=True)
class Given:
    """A tensor that the caller gives. ``sizes`` are what must hold of its dimensions: a number, a name that stands for
    one number in all inputs, or None.
    """

    name: str
    dtype: torch.dtype
    sizes: tuple[int | str | None, ...]


@dataclass(frozen=True, slots=True)
class Result:
    """A tensor that leaves: a slot of the plan, or -1 less the number of an input that the plan does not read, or of a
    weight behind all inputs, and the ``steps`` to the part of it that is shown, of type ``dtype``; None: the slot's. A
    new tensor leaves with its memory; of others the caller gets a copy.
    """

    slot: int
    steps: tuple[Shown, ...]
    dtype: str | None = None


@dataclass(frozen=True, slots=True)
class FileBeside:
    """The file that holds the weights of a library: its ``name``, which lies in the folder of the library, its size in
    ``bytes``, and where in it which checksum stands.
    """

    name: str
    bytes: int
    checksum_at: int
    checksum: str


@dataclass(frozen=True, slots=True)
class Image:
    """Code of a kernel for a GPU: the ``file`` that holds it, the ``function`` in that, and the bytes of shared memory
    that a launch takes.
    """

    file: str
    function: str
    shared: int


@dataclass(frozen=True, slots=True)
class ForGpu:
    """What only a program for a GPU has: by kernel its images for numbers like the recorded ones, for any numbers, and
    for any numbers and addresses; the compute capability that these are for, and whether products of float32 may round
    their operands, as torch was told when it was exported.
    """

    images: Mapping[str, tuple[Image, Image, Image]]
    capability: tuple[int, int]
    rounded: bool


@dataclass(frozen=True, slots=True)
class Code:
    """The kernels of a plan: the names of their functions by the numbers of their steps, the slots that each of these
    steps writes, those that follow a convolution, and the ``files`` that hold the code, by name.
    """

    kernels: Mapping[int, str]
    written: Mapping[int, tuple[int, ...]]
    tails: Mapping[int, Tail]
    files: Mapping[str, bytes]
    gpu: ForGpu | None = None


@dataclass(frozen=True, slots=True)
class Value:
    """An argument as the interface takes it: its ``kind``, and the template of a plain one, a tensor's slot, the
    parts of a list, or what an optional one holds.
    """

    kind: str
    template: Template = NONE
    parts: tuple[Value, ...] = ()


@dataclass(frozen=True, slots=True)
class ByTorch:
    """A call of an operator: its arguments in order, how many results it has, or whether they are one list, and the
    slots that are read by the numbers of these.
    """

    operator: str
    overload: str
    arguments: tuple[Value, ...]
    results: int
    listed: bool
    outs: tuple[tuple[int, int], ...]
    binds: tuple[tuple[int, int, int], ...]

    def __str__(self) -> str:
        return ".".join(filter(None, (self.operator, self.overload)))


@dataclass(frozen=True, slots=True)
class Program:
    """A plan with all that it needs outside of Python.

    ``sources`` gives for each input slot of the plan the number of an input, or that of a weight behind all inputs.
    ``checks`` are the instructions of its guards that read tensors of the caller or numbers, in order: a tensor with
    the number of its input, its spec, and the numbers that take its free sizes and strides. ``fixed`` are the raw words
    of numbers that the recorded call has set for good. ``kernels`` names the functions of kernel steps by their place,
    ``written`` has the slots that these write; ``tails`` are those that follow convolutions, by these steps.
    ``results`` are the tensors that leave, in the order of the outputs; weights may lie in a file
    ``beside`` the library. ``gpu`` is None where the program runs on the CPU. ``torch_calls`` are the steps, by their
    place, that are calls of torch's library.
    """

    plan: Plan
    inputs: tuple[Given, ...]
    weights: tuple[Weight, ...]
    sources: tuple[int, ...]
    checks: tuple[tuple[object, ...], ...]
    fixed: Mapping[int, int]
    kernels: Mapping[int, str]
    written: Mapping[int, tuple[int, ...]]
    tails: Mapping[int, Tail]
    results: tuple[Result, ...]
    description: Mapping[str, object]
    beside: FileBeside | None = None
    gpu: ForGpu | None = None
    torch_calls: Mapping[int, ByTorch] = field(default_factory=dict)


# A check of one tensor: ("tensor", input, spec, free numbers).
TensorCheck = tuple[str, int, TensorSpec, tuple[tuple[str, int, int], ...]]
