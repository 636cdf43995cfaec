"""Says when a function may compile one more trace: freely while traces are hit, and ever more rarely otherwise; how
many recordings may end early, and when there is another one after some that gave nothing.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

import torch

from framefuse import _native

VAIN = 12  # traces more that no call has hit yet than others: so many are made freely
# Recordings of no use yet, in a small function with breaks: so many are made freely. Chosen: in five programs with ever
# new cases a recording took as long as 60 to 700 eager calls. Of cases that come in turn these are compiled in the
# first round, the others later.
STREAK = 10
LIMIT = 16  # the trace limit for which these numbers of recordings are: a higher one raises them
WITHIN = 0.5  # what one more counts in a call that was recorded already, as its loop met another new case
REDEEMED = 0.5  # what one is worth whose case came again: less than one, as each costs
SHARE = 16  # calls of compiled code alone that pay for one more of them: chosen, as what each saves is little
# So often does the interpreter go on from a point before the code that leads there is dropped, and once more for so
# many calls of compiled code.
SLOW_RUNS, SLOW_SHARE = 8, 16
# In a small function, where that takes 0.2 to 1 ms and eager 0.02 to 0.1, so often from all points, and once more for
# so many calls of compiled code; beyond that so many calls are eager, and each time so many times more.
SLOW_SMALL, SLOW_SMALL_SHARE = 3, 64
PAUSE, LONGER = 16, 4
WORTH = 2 * SLOW_RUNS * SLOW_SHARE  # hits of compiled code that was worth making although it was pruned
IDLE = 4  # how much fewer calls than the limit are recorded where no graph has any work
UNASKED = 16  # calls that run eagerly before one asks again whether it may be recorded
# Recordings that ended early and taught the next one where to break: freely so many, and more for a time.
LESSONS, MOST_LESSONS, LESSONS_SECONDS = 2, 8, 2.0  # chosen
# A recording that gave no trace cost several eager calls for nothing: the n-th in a row is followed by PATIENCE**n
# calls that run eagerly at once, so that a function which never compiles costs ever less, from the second one on by as
# many as take COSTS times as long as it did.
PATIENCE, COSTS = 4, 2.0
NEVER = 1 << 62  # a fault of ours comes again
RAISES = 4  # recordings more than traces that may end with an exception before calls wait
MOST = 1 << 30
FIRST_CALLS = 8  # in which cases are recorded as they come: behind these each recording is to pay for itself
# Recordings behind these that are made at once where the first ones served USED calls each, and where they did not:
# then in a function whose calls are not small alone. A recording of a small one takes as long as 40 to 700 calls.
AT_ONCE, AT_ONCE_LARGE, USED = 3, 1, 2
SERVED = 32  # calls that a case serves until another one is recorded for it; chosen
# As long as a recording takes do calls run eagerly before the next one, or so much longer a time passes, with what else
# the program does: both so many times where the first ones did not serve, and twice after one that served none.
EAGER, ELAPSED, UNUSED = 1.0, 8.0, 4.0
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
    most: float = VAIN

    @property
    def reached(self) -> bool:
        """Whether new cases wait whatever is hit."""
        return self.made >= self.limit or self.spent >= self.seconds

    def allows(self, eager: float, vain: float) -> bool:
        """Whether the new case at hand may be recorded, after so many seconds of calls that ran eagerly, where
        ``vain`` of the earlier ones were of no use: up to ``most`` they are made freely.
        """
        if not self.reached and vain <= self.most - 1:
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
    """What recordings of a function with breaks were good for: ``recorded`` counts those of no use yet. One whose last
    stretch, in ``last``, ran again was of use, and calls of compiled code alone pay for some more. ``slow`` counts the
    times that the interpreter went on from a point without one, ``pause`` is what follows the next one that is too
    many. ``small`` says that every call is small.
    """

    recorded: float = 0.0
    hits: int = 0
    slow: int = 0
    pause: int = PAUSE
    small: bool = True
    last: list[_native.Compiled] = field(default_factory=list)

    def missed(self, hits: int, hit: bool) -> float:
        """A call met a new case, behind compiled code (``hit``) or at once, when so many calls had begun in compiled
        code, itself among them; gives the recordings that were of no use.
        """
        used = sum(bool(entry.hits) for entry in self.last)
        if used:
            self.last = [entry for entry in self.last if not entry.hits]
            self.pause = PAUSE
        paid = used * REDEEMED + max(0, hits - self.hits - hit) / SHARE
        self.recorded = max(0.0, self.recorded - paid)
        self.hits = hits
        return self.recorded

    def told(self, whys: Iterable[str | None]) -> tuple[str, str]:
        """What is reached, and what to do about it; ``whys`` say what each trace did not hold for, as far as known."""
        last = [why.removesuffix(": any value from now on") for why in whys if why is not None][-1:]
        cause = f" The last was made because {last[0]}." if last else ""
        fact = f"Calls keep meeting new cases that do not come again: most of them run eagerly.{cause}"
        advice = "Make no key, constant or branch of what differs in each call, or do that outside of the function."
        return fact, f'{advice} If cases do come again, raise options={{"trace_limit": N}}.'

    def ran_slowly(self, hits: int, waits: bool = False) -> int:
        """Takes note of a run of the interpreter from a point, after so many calls that began in compiled code; gives
        the calls that are to be eager now, at once where the case at hand ``waits`` for such calls.
        """
        self.slow += 1
        if not self.small or (not waits and self.slow <= SLOW_SMALL + hits // SLOW_SMALL_SHARE):
            return 0
        pause, self.pause = self.pause, min(MOST, LONGER * self.pause)
        return pause


@dataclass(slots=True)
class Payments:
    """What a recording of one more case waits for once a function is beyond its first calls: it is to pay for itself.

    ``left`` recordings may be made at once, as far as that was decided. ``seconds`` is what the last of the ``count``
    recordings took, which ended at ``ended`` on the clock, after ``eager`` seconds of calls that ran eagerly.
    ``missed`` are the calls that compiled code began and did not end; ``open`` are the entries of recordings that did
    not serve yet. The last new case ``waits`` or not. Calls are counted from so many that had ``begun`` before.
    """

    begun: int = 0
    left: int | None = None
    count: int = 0
    missed: int = 0
    seconds: float = 0.0
    ended: float = 0.0
    eager: float = 0.0
    times: float = 1.0
    waits: bool = False
    open: list[Sequence[_native.Compiled]] = field(default_factory=list)

    def allows(self, calls: int, hits: int, eager: float, now: float, small: bool) -> bool:
        """Whether a new case may be recorded in this one of so many ``calls``, of which so many ``hits`` began in
        compiled code, after so many seconds of ``eager`` ones, at the time ``now``.
        """
        if calls - self.begun <= FIRST_CALLS:
            return True
        if self.left is None:
            used = hits - self.missed >= USED * self.count
            self.left = AT_ONCE if used else 0 if small else AT_ONCE_LARGE
            self.times = 1.0 if used else UNUSED
        self._settle()
        price = self.times * self.seconds
        paid = eager - self.eager >= EAGER * price or now - self.ended >= ELAPSED * price
        self.waits = not (paid or self.left)
        return not self.waits

    def until(self) -> float:
        """The seconds of calls that ran eagerly after which it may."""
        return self.eager + EAGER * self.times * self.seconds

    def told(self) -> tuple[str, str]:
        """Why it waits, and what to do about it."""
        fact = f"A case that is new after {FIRST_CALLS} calls runs eagerly until that took as long as compiling does."
        return fact, "Nothing. Cases that come in the first calls are compiled at once."

    def made(self, entries: Sequence[_native.Compiled], seconds: float, eager: float, now: float) -> None:
        """A case was recorded, which gave these entries, if any."""
        self.count += 1
        self.seconds, self.eager, self.ended = seconds, eager, now
        if self.left is None:
            return
        if self.left:
            self.left -= 1
        else:
            self.times *= 2
        if entries:
            self.open.append(entries)

    def _settle(self) -> None:
        """Cases that served are paid for."""
        served = [entries for entries in self.open if max(entry.hits for entry in entries) >= SERVED]
        if served and self.left is not None:
            self.open = [entries for entries in self.open if entries not in served]
            self.left, self.times = min(AT_ONCE, self.left + len(served)), 1.0


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

    def why(self) -> tuple[str, str]:
        """Why the call into a library is a step from now on, as a row of the stops catalogue and its detail."""
        return "native-call", f"A library in which {self.made} recordings of {self.seconds:.1f} s ended early"

    def told(self) -> tuple[str, str]:
        """What is reached, and what to do about it."""
        fact = f"{self.made} recordings ended early and took {self.seconds:.1f} s, the limit: most calls run eagerly."
        return fact, "Mend the lines below, or compile the functions around them that do the work."


@dataclass(slots=True)
class Attempts:
    """Recordings that gave nothing, by gradient mode: ``failures`` in a row, ``raises`` with an exception of the
    program's, less traces since, and ``waits``, the calls that run eagerly before the next one. ``prunes`` are the
    times that compiled code was dropped since it was last worth it, the last one after ``pruned_at`` hits.
    """

    failures: dict[bool, int] = field(default_factory=dict)
    raises: dict[bool, int] = field(default_factory=dict)
    waits: dict[bool, int] = field(default_factory=dict)
    prunes: int = 0
    pruned_at: int = 0

    def waiting(self) -> bool:
        """Whether the call at hand is not worth a recording; it is one of those that run eagerly."""
        mode = torch.is_grad_enabled()
        left = self.waits.get(mode, 0)
        self.waits[mode] = max(0, left - 1)
        return left > 0

    def succeeded(self) -> None:
        """A recording of a whole call gave a trace."""
        mode = torch.is_grad_enabled()
        self.failures.pop(mode, None)
        self.raises[mode] = max(0, self.raises.get(mode, 0) - 1)
        self.waits.pop(mode, None)

    def raised(self, took: float, eager: float) -> None:
        """A recording, which ``took`` so many seconds where a call takes ``eager``, ended with an exception of the
        program's: the next call may return; one that raises again and again runs eagerly.
        """
        mode = torch.is_grad_enabled()
        self.raises[mode] = raised = self.raises.get(mode, 0) + 1
        self.waits[mode] = patience(raised - RAISES, took, eager) if raised > RAISES else 0

    def failed(self, took: float, eager: float, fault: bool) -> None:
        """A recording gave nothing, for a ``fault`` of the compiler's, which comes again, or what may pass."""
        failures = self._failed()
        self.waits[torch.is_grad_enabled()] = NEVER if fault else patience(failures, took, eager)

    def pruned(self, hits: int) -> None:
        """Compiled code was dropped after so many ``hits`` of it."""
        self.prunes = self.prunes + 1 if hits - self.pruned_at < WORTH else 1
        self.pruned_at = hits
        failures = self._failed()
        self.waits[torch.is_grad_enabled()] = PATIENCE ** max(failures, self.prunes)

    def _failed(self) -> int:
        mode = torch.is_grad_enabled()
        self.failures[mode] = self.failures.get(mode, 0) + 1
        return self.failures[mode]


def in_vain(entries: Sequence[_native.Compiled]) -> int:
    """How many more entries no call has hit than calls have."""
    return sum(-1 if entry.hits else 1 for entry in entries)


def patience(failed: int, took: float, eager: float) -> int:
    """The calls that run eagerly after so many recordings that gave nothing: ever more, and from the second one on so
    many that they take as long as some recordings, of which the last ``took`` so many seconds and a call ``eager``.
    """
    calls: int = PATIENCE**failed
    if failed > 1 and eager:
        calls = max(calls, int(COSTS * took / eager))
    return min(calls, MOST)
