"""What a pass over loop nests takes and gives: a kernel, and which of its values are equal."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from framefuse.ir.loops import Kernel


@dataclass(frozen=True, slots=True)
class Optimised:
    """A kernel on its way to an emitter. ``numbers`` are those of its value objects, by id: values with one number are
    equal wherever both are known.
    """

    kernel: Kernel
    numbers: Mapping[int, int] = field(default_factory=dict)
