"""Says when a function may compile one more trace: freely while traces are hit, and ever more rarely otherwise; and how
many recordings may end early."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from framefuse import _native

VAIN = 12  # traces more that no call has hit yet than others: so many are made freely
# Recorded calls more than calls of compiled code alone since, in a small function with breaks: so many are made freely.
# Chosen: in five programs with ever new cases a recording took as long as 60 to 700 eager calls. Of cases that come in
# turn the first nine are compiled in the first round, the others in the second.
STREAK = 8
# Recordings that ended early and taught the next one where to break: freely so many, and more for a time.
LESSONS, MOST_LESSONS, LESSONS_SECONDS = 2, 8, 2.0  # chosen
TIMES = 16.0  # as long as a trace took to make do calls run eagerly before the next one


@dataclass(slots=True)
class Bound:
    """The traces that may start at one place: ``limit`` of them, made in ``seconds`` of recording and compiling.

    Beyond that, and where most traces are of cases that do not come again, a new case runs eagerly, until such calls
    have taken ``times`` as long as the last trace took to make. Then one more is made, in place of the one that was hit
    longest ago, and the next waits twice as long. So a program that moves on to other cases is not left behind for
    good, and one whose every call is another case gives little of its time to the compiler.
    """

    limit: int
    seconds: float
    made: int = 0
    spent: float = 0.0
    times: float = TIMES
    until: float = 0.0
    most: int = VAIN

    @property
    def reached(self) -> bool:
        """Whether new cases wait whatever is hit."""
        return self.made >= self.limit or self.spent >= self.seconds

    def allows(self, eager: float, vain: int) -> bool:
        """Whether the new case at hand may be recorded, after so many seconds of calls that ran eagerly, where
        ``vain`` of the earlier ones were of no use: up to ``most`` they are made freely.
        """
        if not self.reached and vain < self.most:
            self.times = TIMES
            return True
        if eager < self.until:
            return False
        self.times *= 2
        return True

    def told(self) -> tuple[str, str]:
        """What is reached, and what to do about it."""
        if self.made >= self.limit:
            fact = f"{self.made} traces start here, the limit: most new cases run eagerly."
            return fact, 'Raise options={"trace_limit": N}, or change fewer things that decide control flow.'
        fact = f"Recording and compiling took {self.spent:.0f} s, the limit: most new cases run eagerly."
        return fact, 'Raise options={"compile_seconds": N}, or compile the functions that it calls.'

    def add(self, seconds: float, eager: float) -> None:
        """A trace was made, after so many seconds of calls that ran eagerly."""
        self.made += 1
        self.spent += seconds
        self.until = eager + self.times * seconds


@dataclass(slots=True)
class Streak:
    """The recorded calls of a function with breaks, less the calls since that ran compiled code alone: many where each
    recording adds a case that does not come again.
    """

    recorded: int = 0
    hits: int = 0

    def missed(self, hits: int, hit: bool) -> int:
        """A call met a new case, behind compiled code (``hit``) or at once, when so many calls had begun in compiled
        code, itself among them; gives the recordings that were of no use.
        """
        self.recorded = max(0, self.recorded - max(0, hits - self.hits - hit))
        self.hits = hits
        return self.recorded


@dataclass(slots=True)
class Lessons:
    """The recordings that only taught the next one where to break, and the seconds that they took. Beyond the limits
    such a recording is one that failed: calls run eagerly before the next one, and ever more of them.
    """

    made: int = 0
    seconds: float = 0.0
    took: float = 0.0  # the last recording, whatever it gave

    def over(self) -> bool:
        """Notes that the last recording was one of these; whether they were too many."""
        self.made += 1
        self.seconds += self.took
        return self.made > LESSONS and (self.made > MOST_LESSONS or self.seconds > LESSONS_SECONDS)

    def told(self) -> tuple[str, str]:
        """What is reached, and what to do about it."""
        fact = f"{self.made} recordings ended early and took {self.seconds:.1f} s, the limit: most calls run eagerly."
        return fact, "Mend the lines below, or compile the functions around them that do the work."


def in_vain(entries: Sequence[_native.Compiled]) -> int:
    """How many more entries no call has hit than calls have."""
    return sum(-1 if entry.hits else 1 for entry in entries)
