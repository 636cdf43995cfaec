"""Times large kernels of a GPU in a few forms when they are compiled, in the modes that measure nothing else.

A kernel that moves much is launched as it is, on scratch memory. Only one that takes long and stays far below the
speed of a copy is compiled in other forms; one of these is taken where it is clearly faster. What was found is kept.
"""

from __future__ import annotations

import time
from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass

import torch

from framefuse.codegen.specialisation import Choice
from framefuse.driver.measuring import LOCK, Measuring
from framefuse.driver.winners import Winner, describe
from framefuse.ir.code import KernelCode, LaunchedCode
from framefuse.ir.schedule import RunKernel
from framefuse.ir.tuning import Tuned, Tuning
from framefuse.runtime.trial import NotMeasured, Trial, trial

LARGE = 16 << 20  # bytes from which on a kernel may take long: 5 us of an H100's bandwidth, 50 of a tenth of it
LONG = 50e-6  # seconds from which on other forms are compiled
NEAR = 0.8  # of a copy's bandwidth, from which on there is little to gain
# Calls in which what is to gain at most must be worth the time that the usual form took to compile: the first layers of
# ResNet-50, batch norm to pooling, take 50 us at 45% of a copy's bandwidth, and its first call 1.9 s with four forms
# more of them and 1.1 without (H100), by chance, as they are that long now and then.
CALLS = 10_000
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
    """Measures the large kernels of one graph, for at most ``budget`` seconds without those that compile."""

    def __init__(self, measuring: Measuring, budget: float) -> None:
        self.measuring, self.found, self.budget = measuring, measuring.found, budget
        self.end = 0.0

    def run(self, items: Mapping[Hashable, RunKernel], code_of: dict[Hashable, KernelCode]) -> Tuning | None:
        """Replaces codes in ``code_of`` (by the keys of ``items``) by faster ones, and says what was done; None where
        no kernel is large.
        """
        moved = {key: self._moved(item) for key, item in items.items() if isinstance(code_of[key], LaunchedCode)}
        large = sorted((key for key, size in moved.items() if size >= LARGE), key=lambda key: -moved[key])
        if not large:
            return None
        with LOCK:
            begun = time.perf_counter()
            self.end = begun + self.budget
            slow = list(self._slow(items, large, moved, code_of))
            slow.sort(key=lambda each: (each.share - 1.0) * each.first)  # the most to gain first
            self._try(slow, code_of)
        return self.measuring.tuning(items, time.perf_counter() - begun) if self.found else None

    def _moved(self, item: RunKernel) -> int:
        """The bytes that a kernel reads and writes at the recorded sizes; 0 for one that is not measured."""
        if self.measuring.backend_of(item).choices is None or item.kernel.product is not None:
            return 0
        return self.measuring.moved(item)

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
            measuring, schedule = self.measuring.trial(case.item), self.measuring.schedule
            try:
                measuring.check(case.item, schedule)
                (case.first,) = measuring.kernel(case.item, schedule, [code_of[key]])
                case.share = case.moved / (max(case.first, 1e-9) * measuring.bandwidth())
            except (NotMeasured, RuntimeError) as reason:  # of torch, such as a lack of memory
                self.measuring.skipped(key, case.item, reason)
                continue
            gain = (1.0 - case.share) * case.first
            if case.first < LONG or case.share >= NEAR or gain * CALLS < _compiling(code_of[key]):
                self._won(case, Winner(case.choices[0], case.first, case.first, 1, case.share))
            else:
                yield case

    def _case(self, key: Hashable, item: RunKernel, moved: int) -> _Large | None:
        found = self.measuring.of(item)
        if found is None or len(found[0]) < 2:
            return None
        choices, signature = found
        return _Large(key, item, signature, choices, moved)

    def _is_known(self, case: _Large, code_of: dict[Hashable, KernelCode]) -> bool:
        """Whether an earlier measurement chose the form of a kernel: one of few, or one of all that there are."""
        winner = self.measuring.winner(case.signature) or self.measuring.winner(_name(case))
        if winner is None:
            return False
        if winner.choice != case.choices[0]:
            code = self.measuring.compiled(case.item, winner.choice)
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
        made = self.measuring.all_compiled([(case.item, choice) for case, choice in jobs])
        for case in slow:
            of_it = ((choice, code) for (of, choice), code in zip(jobs, made, strict=True) if of is case)
            others = [(choice, code) for choice, code in of_it if code is not None]
            if others:
                self._measure(case, others, code_of)

    def _measure(
        self, case: _Large, others: Sequence[tuple[Choice, KernelCode]], code_of: dict[Hashable, KernelCode]
    ) -> None:
        codes = [code_of[case.key], *(code for _, code in others)]
        try:
            first, *times = self.measuring.trial(case.item).kernel(case.item, self.measuring.schedule, codes)
        except (NotMeasured, RuntimeError) as reason:
            self.measuring.skipped(case.key, case.item, reason)
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
        self.measuring.keep(_name(case), winner)
        self.found[case.key] = self._told(case, winner)

    def _told(self, case: _Large, winner: Winner, stored: bool = False) -> Tuned:
        won = describe(winner.choice) if winner.choice != case.choices[0] else ""
        title = case.item.kernel.title
        return Tuned(title, winner.candidates, 0, won, winner.first, winner.best, stored, share=winner.share)


def _compiling(code: KernelCode) -> float:
    """The seconds that compiling took in this process, with what it waited for another one."""
    return code.code.seconds.get("compile", 0.0) if isinstance(code, LaunchedCode) else 0.0


def quick(device: str) -> Trial | None:
    """What measures on a device, with few launches."""
    measuring = trial(device)
    if measuring is not None:
        measuring.seconds = 0.0
    return measuring


def _name(case: _Large) -> str:
    """Where the best of few forms is kept."""
    return f"{case.signature}_of_few"
