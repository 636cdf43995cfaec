"""Judges a function whose calls go through breaks: its compiled calls are weighed against eager ones now and then."""

from __future__ import annotations

from dataclasses import dataclass

FIRST, LATER = 16, 8  # compiled calls before the first weighing, and how many times more before each one after it
REST, LONGER = 256, 4  # eager calls after the first weighing that is lost, and how many times more after each one
MOST = 1 << 30
SLOWER = 1.1  # times eager: what is more is not by chance
SLOWER_FORWARD = 1.5  # the same where a backward may follow, which is not seen and may be the faster for it
SETTLE = 2  # calls of compiled code before a weighing that follows a rest


@dataclass(frozen=True, slots=True)
class Times:
    """Seconds of the calls of one weighing, as many of each kind: their sums, and the least of each kind."""

    eager: float
    compiled: float
    least_eager: float
    least_compiled: float

    def lost(self, forward: bool) -> bool:
        """Whether compiled calls are slower than eager ones, by their sum and by the least: load on the machine moves
        one of them at most. ``forward`` says that a backward may follow the calls.
        """
        times = SLOWER_FORWARD if forward else SLOWER
        return self.compiled > times * self.eager and self.least_compiled > times * self.least_eager


@dataclass(slots=True)
class Weighing:
    """When the next weighing is: after ``until`` calls of compiled code, or behind a rest if this one is lost."""

    until: int = FIRST
    rest: int = REST

    def next(self, lost: bool) -> tuple[int, int]:
        """The calls of compiled code before the next weighing, and the eager calls before them."""
        if lost:
            rest, self.rest = self.rest, min(MOST, LONGER * self.rest)
            return SETTLE, rest
        self.rest = REST
        self.until = min(MOST, LATER * self.until)
        return self.until, 0
