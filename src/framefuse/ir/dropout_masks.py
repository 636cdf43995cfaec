"""Dropout on a GPU: eager's kernel, its mask alone, and a door for a kernel that draws nothing but the mask.

Eager's kernel reads what it drops from and writes the rest beside the mask: it moves nine bytes for each byte of a mask
of float32, and the kernel that multiplies by the mask moves them again.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar

import torch

from framefuse.ir.target import type_of

# (memory for the mask, dense; the dtype of what is dropped from; the part that is dropped) -> whether it was drawn, and
# the generator advanced, as by eager's kernel: only some masks can be
Draws = Callable[[torch.Tensor, torch.dtype, float], bool]

DRAWS: dict[str, Draws] = {}  # by type of device
# Elements from which on a launch from Python is shorter than what it saves (H100, ms of eager and ours: dropout of relu
# of 16 M float32 0.111 and 0.092, of 4 M 0.028 and 0.057). In training each step of 16 M took 0.15 ms longer so.
LEAST = 1 << 24


def draw_by(kind: str, draws: Draws) -> None:
    """Large masks on devices of this type are drawn so from now on."""
    DRAWS[kind] = draws


@dataclass(frozen=True, slots=True)
class DropoutMask:
    """Draws the mask by which eager's kernel of a GPU drops from a tensor of these sizes and dtype, whose dimensions
    lie in ``order``: True is kept. How the numbers meet the elements is that kernel's own, so it is run on any memory,
    but for a large mask that may be drawn ``alone``.
    """

    order: tuple[int, ...]
    dtype: torch.dtype
    device: str
    p: float
    alone: bool = True
    fill: ClassVar[str] = "native_dropout"

    def __call__(self, sizes: tuple[int, ...]) -> torch.Tensor:
        draws = DRAWS.get(type_of(self.device)) if self.alone else None
        if draws is not None and math.prod(sizes) >= LEAST:
            mask = torch.empty_permuted(sizes, self.order, dtype=torch.bool, device=self.device)
            if draws(mask, self.dtype, self.p):
                return mask
        memory = torch.empty_permuted(sizes, self.order, dtype=self.dtype, device=self.device)
        return torch.native_dropout(memory, self.p, True)[1]

    @property
    def __name__(self) -> str:
        return "draw_dropout"


@dataclass(frozen=True, slots=True)
class Dropped:
    """Drops from a tensor that lies in memory, by eager's kernel of a GPU: the rest, and the mask."""

    p: float
    fill: ClassVar[str] = "native_dropout"

    def __call__(self, tensor: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return torch.native_dropout(tensor, self.p, True)

    @property
    def __name__(self) -> str:
        return "dropped"
