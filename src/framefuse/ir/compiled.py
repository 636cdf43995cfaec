"""The code of a whole graph: the schedule that it was made for, that of each kernel, and what measuring gave."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from framefuse.ir.code import KernelCode
from framefuse.ir.schedule import Schedule
from framefuse.ir.tuning import Tuning


@dataclass(frozen=True, slots=True)
class GraphCode:
    """``kernels`` has the code of those items of ``schedule`` that are kernels, by number. The schedule is another than
    the fused one where an emitter could not express a kernel. ``tuning`` is None in a mode that does not measure.
    """

    schedule: Schedule
    kernels: Mapping[int, KernelCode] = field(default_factory=dict)
    tuning: Tuning | None = None
