"""The code of a whole graph: which products are kernels, the schedule, the code of each kernel, what measuring gave."""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from dataclasses import field
from typing import TYPE_CHECKING

from framefuse.ir.frozen_classes import dataclass
from framefuse.ir.schedule import Schedule

if TYPE_CHECKING:
    from framefuse.ir.code import KernelCode
    from framefuse.ir.tuning import Tuning


@dataclass(frozen=True, slots=True)
class GraphCode:
    """``kernels`` has the code of those items of ``schedule`` that are kernels, by number. The schedule is another than
    the fused one where an emitter could not express a kernel. ``tuning`` is None in a mode that does not measure.
    """

    schedule: Schedule
    kernels: Mapping[int, KernelCode] = field(default_factory=dict)
    tuning: Tuning | None = None


@dataclass(frozen=True, slots=True)
class Chosen:
    """The names of the offers of ``products`` that are faster as kernels of ours, what measuring them gave (None: there
    was nothing to measure), and what keeps their code.
    """

    products: frozenset[tuple[int, bool]] = frozenset()
    tuning: Tuning | None = None
    keep: Mapping[Hashable, KernelCode] = field(default_factory=dict)
