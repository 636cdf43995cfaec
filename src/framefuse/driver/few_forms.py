"""Times large kernels of a GPU in a few forms when they are compiled, in the modes that measure nothing else.

A kernel that moves much is launched as it is, on scratch memory. Only one that takes long and stays far below the
speed of a copy is compiled in other forms; one of these is taken where it is clearly faster. What was found is kept.
"""

from __future__ import annotations

import functools
import time
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import torch

from framefuse.codegen.specialisation import Choice
from framefuse.codegen.targets import Backend
from framefuse.codegen.unsupported import Unsupported
from framefuse.driver import tuning
from framefuse.driver.tuning import Compile, Winner, Winners, describe
from framefuse.ir.code import KernelCode, LaunchedCode
from framefuse.ir.numbers import Symbol
from framefuse.ir.schedule import RunKernel, Schedule
from framefuse.ir.tuning import Tuned, Tuning
from framefuse.runtime.trial import NotMeasured, Trial, elements, trial

LARGE = 16 << 20  # bytes from which on a kernel may take long: 5 us of an H100's bandwidth, 50 of a tenth of it
LONG = 50e-6  # seconds from which on other forms are compiled
NEAR = 0.8  # of a copy's bandwidth, from which on there is little to gain
MARGIN = 0.93  # of the time of the usual form, below which another wins: less is within what clocks and others disturb
FORMS, COMPILED = 5, 8  # other forms of a kernel, and of all kernels of a graph: as many as are compiled at once
LAUNCHES = 4  # of a form, at least


def may_measure() -> bool:
    """Whether forms may be timed now: not where results are to be alike in every process, as those of processes that
    work together are, since sums of another form associate in another order.
    """
    together = torch.distributed.is_available() and torch.distributed.is_initialized()
    return not together and not torch.are_deterministic_algorithms_enabled()


@dataclass
class _Large:
    """A kernel that moves ``moved`` bytes, and the seconds of a launch of its usual code."""

    key: Hashable
    item: RunKernel
    signature: str
    choices: Sequence[Choice]
    moved: int
    first: float = 0.0
    share: float = 0.0


class Forms:
    """Measures the large kernels of one graph, for at most ``budget`` seconds without those that compile. ``workers``
    threads do that.
    """

    def __init__(
        self,
        schedule: Schedule,
        compile: Compile,
        backend_of: Callable[[RunKernel], Backend],
        hints_of: Callable[[RunKernel], Mapping[Symbol, int]],
        *,
        keep: bool,
        budget: float,
        workers: int,
        winners: Winners | None = None,
        trial_of: Callable[[str], Trial | None] | None = None,
    ) -> None:
        self.schedule, self.compile = schedule, compile
        self.backend_of, self.hints_of = backend_of, hints_of
        self.keep, self.budget, self.workers = keep, budget, workers
        self.winners = winners or tuning.PROCESS
        self.trial_of = functools.cache(trial_of or _quick)
        self.begun = self.end = self.compiling = 0.0
        self.found: dict[Hashable, Tuned] = {}

    def run(self, items: Mapping[Hashable, RunKernel], code_of: dict[Hashable, KernelCode]) -> Tuning | None:
        """Replaces codes in ``code_of`` (by the keys of ``items``) by faster ones, and says what was done; None where
        no kernel is large.
        """
        moved = {key: self._moved(item) for key, item in items.items() if isinstance(code_of[key], LaunchedCode)}
        large = sorted((key for key, size in moved.items() if size >= LARGE), key=lambda key: -moved[key])
        if not large:
            return None
        with tuning.LOCK:
            self.begun = time.perf_counter()
            self.end = self.begun + self.budget
            slow = list(self._slow(items, large, moved, code_of))
            slow.sort(key=lambda each: (each.share - 1.0) * each.first)  # the most to gain first
            self._try(slow, code_of)
        trials = [each for each in map(self.trial_of, {item.device for item in items.values()}) if each is not None]
        kernels = tuple(self.found[key] for key in items if key in self.found)
        scratch = max((each.scratch for each in trials), default=0)
        return Tuning(kernels, time.perf_counter() - self.begun, self.compiling, scratch) if kernels else None

    def _moved(self, item: RunKernel) -> int:
        """The bytes that a kernel reads and writes at the recorded sizes; 0 for one that is not measured."""
        if self.backend_of(item).choices is None or item.kernel.product is not None:
            return 0
        pairs = zip(item.kernel.buffers, item.buffers, strict=True)
        return sum(elements(self.schedule, number) * buffer.dtype.size for buffer, number in pairs)

    def _slow(
        self,
        items: Mapping[Hashable, RunKernel],
        large: Iterable[Hashable],
        moved: Mapping[Hashable, int],
        code_of: dict[Hashable, KernelCode],
    ) -> Iterable[_Large]:
        """The kernels that are worth another form: each is launched as it is, unless it is known."""
        for key in large:
            if time.perf_counter() > self.end:
                break
            case = self._case(key, items[key], moved[key])
            if case is None or self._is_known(case, code_of):
                continue
            measuring = self.trial_of(case.item.device)
            assert measuring is not None
            try:
                measuring.check(case.item, self.schedule)
                (case.first,) = measuring.kernel(case.item, self.schedule, [code_of[key]])
                case.share = case.moved / (max(case.first, 1e-9) * measuring.bandwidth())
            except (NotMeasured, RuntimeError) as reason:  # of torch, such as a lack of memory
                self._skipped(case, reason)
                continue
            if case.first < LONG or case.share >= NEAR:
                self._won(case, Winner(case.choices[0], case.first, case.first, 1, case.share))
            else:
                yield case

    def _case(self, key: Hashable, item: RunKernel, moved: int) -> _Large | None:
        backend, hints = self.backend_of(item), self.hints_of(item)
        if backend.choices is None or backend.signature is None or self.trial_of(item.device) is None:
            return None
        try:
            choices = tuple(backend.choices(item.kernel, hints))
            if len(choices) < 2:
                return None
            return _Large(key, item, backend.signature(item.kernel, hints, item.device), choices, moved)
        except Unsupported:
            return None

    def _is_known(self, case: _Large, code_of: dict[Hashable, KernelCode]) -> bool:
        """Whether an earlier measurement chose the form of a kernel: one of few, or one of all that there are."""
        winner = self.winners.get(case.signature, self.keep) or self.winners.get(_name(case), self.keep)
        if winner is None:
            return False
        if winner.choice != case.choices[0]:
            code = self._compiled(case.item, winner.choice)
            if code is None:
                return False
            code_of[case.key] = code
        self.found[case.key] = self._told(case, winner, stored=True)
        return True

    def _try(self, slow: Sequence[_Large], code_of: dict[Hashable, KernelCode]) -> None:
        """Compiles other forms of kernels, as many as there is time for, and times them."""
        left, jobs = self.end - time.perf_counter(), list[tuple[_Large, Choice]]()
        for case in slow:
            forms = min(FORMS, COMPILED - len(jobs), int(left / (LAUNCHES * case.first)) - 1)
            jobs += [(case, choice) for choice in case.choices[1 : 1 + max(0, forms)]]
            left -= LAUNCHES * case.first * (forms + 1) if forms > 0 else 0.0
        if not jobs:
            return
        begun = time.perf_counter()
        with ThreadPoolExecutor(max(1, min(len(jobs), self.workers))) as pool:
            made = list(pool.map(lambda job: self._compiled(job[0].item, job[1]), jobs))
        self.compiling = time.perf_counter() - begun
        for case in slow:
            of_it = ((choice, code) for (of, choice), code in zip(jobs, made, strict=True) if of is case)
            others = [(choice, code) for choice, code in of_it if code is not None]
            if others:
                self._measure(case, others, code_of)

    def _measure(
        self, case: _Large, others: Sequence[tuple[Choice, KernelCode]], code_of: dict[Hashable, KernelCode]
    ) -> None:
        measuring = self.trial_of(case.item.device)
        assert measuring is not None
        codes = [code_of[case.key], *(code for _, code in others)]
        try:
            first, *times = measuring.kernel(case.item, self.schedule, codes)
        except (NotMeasured, RuntimeError) as reason:
            self._skipped(case, reason)
            return
        best = min(times)
        place = times.index(best)
        won = best < MARGIN * first
        if won:
            code_of[case.key] = others[place][1]
        choice = others[place][0] if won else case.choices[0]
        seconds = best if won else first
        share = case.share * case.first / max(seconds, 1e-9)
        self._won(case, Winner(choice, first, seconds, len(codes), share))

    def _won(self, case: _Large, winner: Winner) -> None:
        self.winners.put(_name(case), winner, self.keep)
        self.found[case.key] = self._told(case, winner)

    def _told(self, case: _Large, winner: Winner, stored: bool = False) -> Tuned:
        won = describe(winner.choice) if winner.choice != case.choices[0] else ""
        title = case.item.kernel.title
        return Tuned(title, winner.candidates, 0, won, winner.first, winner.best, stored, share=winner.share)

    def _skipped(self, case: _Large, reason: Exception) -> None:
        why = (str(reason).splitlines() or ["?"])[0][:100]
        self.found[case.key] = Tuned(case.item.kernel.title, skipped=why)

    def _compiled(self, item: RunKernel, choice: Choice) -> KernelCode | None:
        """The code of a form, None for one that cannot be compiled or loaded: it is only not chosen."""
        try:
            return self.compile(item, choice)
        except Exception:
            return None


def _quick(device: str) -> Trial | None:
    """What measures on a device, with few launches."""
    measuring = trial(device)
    if measuring is not None:
        measuring.seconds = 0.0
    return measuring


def _name(case: _Large) -> str:
    """Where the best of few forms is kept."""
    return f"{case.signature}_of_few"
