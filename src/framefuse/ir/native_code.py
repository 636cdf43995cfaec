"""Machine code of this CPU: what the compiler of kernels makes of one, and an earlier process kept."""

from __future__ import annotations

from collections.abc import Mapping

from framefuse.ir.frozen_classes import dataclass


@dataclass(frozen=True, slots=True)
class NativeCode:
    """Machine code of one kernel: ``int64_t kernel(char **buffers, const int64_t *numbers, int64_t begin, end)``.

    The code at ``address`` lives as long as ``keep``. ``seconds`` by step (emit, parse, generate, load) are those of
    the call that gave it: an equal kernel compiled before takes none. ``size`` is that of the object code in bytes.
    ``quick`` code was compiled in a hurry: better code for the same kernel can be had.
    """

    name: str
    address: int
    seconds: Mapping[str, float]
    size: int
    keep: object
    quick: bool = False
