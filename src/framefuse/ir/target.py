"""What a stage must know of the machine that runs a kernel: one row for each type of device."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch


@dataclass(frozen=True, slots=True)
class Target:
    """A kind of device that kernels are compiled for.

    ``device`` is torch's name of its type ("cpu", "cuda", which ROCm is to torch, "xpu") and ``emitter`` what turns
    loop nests into its code, "llvm" or "triton". ``launch`` is what one more kernel costs, in nanoseconds. ``products``
    says whether a matrix product is our own step over the BLAS that torch carries (else it is a library call),
    ``scratch`` whether a kernel may keep a private row in memory of its own, ``atomics`` whether its threads can add to
    one element together, as eager's do there, ``reports`` whether a call learns that a check inside of it failed: where
    it does not, that ends the use of the device, as it does under eager; ``epilogues`` whether the library computes
    gelu in one kernel with a product and its bias. ``library`` says whether torch's library is there when the program
    runs: without it attention is products and a softmax. ``units`` is how many programs run side by side on a
    processor of their own; that of an H100 where it is not known.
    """

    device: str
    emitter: str
    launch: float
    products: bool
    scratch: bool
    atomics: bool = False
    reports: bool = True
    epilogues: bool = False
    library: bool = True
    units: int = 132

    @property
    def tiles(self) -> bool:
        """Whether the threads of a program hold tiles together, so that loops nest two deep in one and rows that are
        read again are read, or computed, again.
        """
        return self.emitter == "triton"


CPU = Target("cpu", "llvm", launch=100.0, products=True, scratch=True)

# The target of a device such as "cpu" or "cuda:1"; None where nothing compiles kernels for it.
Targets = Callable[[str], Target | None]


def type_of(device: str) -> str:
    """The type of a device: "cuda" of "cuda:1"."""
    return device.partition(":")[0]


def on_cpu(device: str) -> Target | None:
    """The targets of a machine without accelerators."""
    return CPU if type_of(device) == "cpu" else None


def default_generator(device: str) -> torch.Generator | None:
    """The generator from which a device draws where a program names none; None for a device that has none."""
    kind, _, index = device.partition(":")
    if kind == "cpu":
        return torch.default_generator
    generators = getattr(getattr(torch, kind, None), "default_generators", ())
    place = int(index or 0)
    return generators[place] if place < len(generators) else None
