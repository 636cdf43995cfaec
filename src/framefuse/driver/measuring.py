"""Compiles candidates for the code of a kernel, on which the ways to choose among them by measuring are built."""

from __future__ import annotations

import functools
import threading
import time
from collections.abc import Callable, Hashable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor

from framefuse.codegen.specialisation import Choice
from framefuse.codegen.targets import Backend
from framefuse.codegen.unsupported import Unsupported
from framefuse.driver import winners
from framefuse.driver.winners import Winner, Winners
from framefuse.ir.code import KernelCode
from framefuse.ir.numbers import Symbol
from framefuse.ir.schedule import RunKernel, Schedule
from framefuse.ir.tuning import Tuned, Tuning
from framefuse.runtime.trial import Trial, elements, trial

LOCK = threading.Lock()  # two threads that measure at once would measure each other

# compile(item, choice or None) gives the code of a kernel, or raises.
Compile = Callable[[RunKernel, Choice | None], KernelCode]


class Measuring:
    """How the kernels of one graph are compiled in several forms and what times them; ``keep``: on disk too.

    ``backend_of`` and ``hints_of`` say how a kernel is compiled, ``trial_of`` what measures on a device, if anything.
    """

    def __init__(
        self,
        schedule: Schedule,
        compile: Compile,
        backend_of: Callable[[RunKernel], Backend],
        hints_of: Callable[[RunKernel], Mapping[Symbol, int]],
        *,
        keep: bool,
        kept: Winners | None = None,
        trial_of: Callable[[str], Trial | None] | None = None,
    ) -> None:
        self.schedule = schedule
        self.backend_of, self.hints_of = backend_of, hints_of
        self.trial_of = functools.cache(trial_of or trial)
        self.found: dict[Hashable, Tuned] = {}  # what came of each kernel
        self.compiling = 0.0  # seconds
        self._compile, self._keep = compile, keep
        self._kept = kept or winners.PROCESS

    def of(self, item: RunKernel) -> tuple[Sequence[Choice], str] | None:
        """The choices that a kernel has, the usual one first, and the name of what it does; None where there is nothing
        to choose or to measure with.
        """
        backend, hints = self.backend_of(item), self.hints_of(item)
        if backend.choices is None or backend.signature is None or self.trial_of(item.device) is None:
            return None
        try:
            return tuple(backend.choices(item.kernel, hints)), backend.signature(item.kernel, hints, item.device)
        except Unsupported:
            return None

    def trial(self, item: RunKernel) -> Trial:
        """What measures a kernel that has choices."""
        found = self.trial_of(item.device)
        assert found is not None, "it was asked for when the choices were"
        return found

    def moved(self, item: RunKernel) -> int:
        """The bytes that a kernel reads and writes at the recorded sizes."""
        pairs = zip(item.kernel.buffers, item.buffers, strict=True)
        return sum(elements(self.schedule, number) * buffer.dtype.size for buffer, number in pairs)

    def winner(self, signature: str, disk: bool = True) -> Winner | None:
        """What an earlier measurement chose, if it is known; of another process only from ``disk``."""
        return self._kept.get(signature, self._keep and disk)

    def keep(self, signature: str, winner: Winner, disk: bool = True) -> None:
        """Keeps what a measurement chose; for other processes only on ``disk``."""
        self._kept.put(signature, winner, self._keep and disk)

    def compiled(self, item: RunKernel, choice: Choice | None) -> KernelCode | None:
        """The code of a candidate, None for one that cannot be compiled or loaded: it is only not chosen."""
        try:
            return self._compile(item, choice)
        except Exception:
            return None

    def all_compiled(self, jobs: Sequence[tuple[RunKernel, Choice]]) -> list[KernelCode | None]:
        """The codes of several candidates; nothing is timed meanwhile."""
        if not jobs:
            return []
        begun = time.perf_counter()
        with ThreadPoolExecutor(self.backend_of(jobs[0][0]).threads(len(jobs))) as pool:
            codes = list(pool.map(lambda job: self.compiled(*job), jobs))
        self.compiling += time.perf_counter() - begun
        return codes

    def skipped(self, key: Hashable, item: RunKernel, reason: Exception | str) -> None:
        """Says that a kernel was not measured, and why."""
        self.found[key] = Tuned(item.kernel.title, skipped=(str(reason).splitlines() or ["?"])[0][:100])

    def tuning(self, items: Mapping[Hashable, RunKernel], seconds: float) -> Tuning:
        """What measuring gave for these kernels, in their order."""
        trials = [each for each in map(self.trial_of, {item.device for item in items.values()}) if each is not None]
        kernels = tuple(self.found[key] for key in items if key in self.found)
        scratch = max((each.scratch for each in trials), default=0)
        return Tuning(kernels, seconds, self.compiling, scratch)
