"""What the guards stage makes of a trace's assumptions: a program that checks them, and the places that it fills."""

from __future__ import annotations

from collections.abc import Iterable

from framefuse.ir.facts import Assumptions, Source
from framefuse.ir.frozen_classes import dataclass
from framefuse.ir.numbers import Symbol
from framefuse.ir.plan import GuardProgram
from framefuse.ir.trace import Trace
from framefuse.ir.values import Value


@dataclass(frozen=True, slots=True)
class Guards:
    """A guard program with the places of what it sets: numbers of size symbols and real names, registers of sources."""

    program: GuardProgram
    number_of: dict[Symbol | str, int]
    register_of: dict[Source, int]


@dataclass(frozen=True, eq=False, slots=True)
class KeptGuards:
    """The guards that an earlier process made for a ``trace`` and the ``settled`` part of its assumptions."""

    trace: Trace
    settled: tuple[Value, ...]
    guards: Guards

    def of(self, trace: Trace, assumptions: Assumptions, sources: Iterable[Source]) -> Guards | None:
        """The guards, if they are those of a trace and its assumptions and fill in the ``sources``."""
        same = trace is self.trace and assumptions.settled == self.settled
        return self.guards if same and all(source in self.guards.register_of for source in sources) else None
