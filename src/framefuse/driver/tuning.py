"""Chooses among codes of a kernel by measuring: compiles candidates in parallel, times them, and keeps the winner."""

from __future__ import annotations

import functools
import json
import math
import sys
import threading
import time
from collections.abc import Callable, Hashable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import platformdirs

from framefuse.codegen.disk_cache import DiskCache
from framefuse.codegen.specialisation import Choice
from framefuse.codegen.targets import Backend
from framefuse.codegen.unsupported import Unsupported
from framefuse.ir.code import KernelCode
from framefuse.ir.numbers import Symbol
from framefuse.ir.schedule import Offer, RunKernel, Schedule
from framefuse.ir.tuning import Tuned, Tuning
from framefuse.runtime.trial import NotMeasured, Trial, elements, trial

BATCH = 8  # kernels whose candidates are compiled together: nothing compiles while something is timed
MARGIN = 0.98  # of the time of what is taken without measuring, from which on another wins
PATIENCE = 2.0  # seconds after which a line is logged of what is going on
# compile(item, choice or None) gives the code of a kernel, or raises.
Compile = Callable[[RunKernel, Choice | None], KernelCode]
LOCK = threading.Lock()  # two threads that measure at once would measure each other


@dataclass(frozen=True, slots=True)
class Winner:
    """What is kept on disk of one kernel; ``share`` is that of a copy's bandwidth, 0 where it was not measured."""

    choice: Choice
    first: float
    best: float
    candidates: int
    share: float = 0.0

    def to_bytes(self) -> bytes:
        """As it lies on disk."""
        choice = (self.choice.points, self.choice.width, self.choice.warps, self.choice.stages, self.choice.inner)
        return json.dumps([choice, self.first, self.best, self.candidates, self.share]).encode()

    @staticmethod
    def of(content: bytes | None) -> Winner | None:
        """What :meth:`to_bytes` wrote; None for anything else."""
        try:
            choice, first, best, count, share = json.loads(content or b"null")
            return Winner(Choice(*map(int, choice)), float(first), float(best), int(count), float(share))
        except (ValueError, TypeError):
            return None


class Winners:
    """The winners of this process and, where they may be kept, of earlier ones, by a signature."""

    def __init__(self, disk: DiskCache) -> None:
        self.disk = disk
        self._known: dict[str, Winner] = {}

    def get(self, key: str, keep: bool) -> Winner | None:
        winner = self._known.get(key)
        if winner is None and keep:
            winner = Winner.of(self.disk.read(key))
            if winner is not None:
                self._known[key] = winner
        return winner

    def put(self, key: str, winner: Winner, keep: bool) -> None:
        self._known[key] = winner
        if keep:
            self.disk.write(key, winner.to_bytes())


PROCESS = Winners(DiskCache(Path(platformdirs.user_cache_dir("framefuse")) / "tuning"))


LIBRARY = Choice(0, 0, 0)  # a product is the library's


@dataclass
class _Case:
    """A kernel to be measured: its first code, its candidates, their codes. Where there is an ``offer``, the first is
    the library's call, which has no code of ours, and ``parts`` are the codes of the kernels around it.
    """

    key: Hashable
    item: RunKernel
    signature: str
    choices: Sequence[Choice]
    codes: list[KernelCode | None]
    offer: Offer | None = None
    parts: Sequence[KernelCode] = ()


class Tuner:
    """Measures the kernels of one graph. ``backend_of`` and ``hints_of`` say how a kernel is compiled; ``budget`` is in
    seconds, ``workers`` threads compile.
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
        self.keep, self.workers = keep, workers
        self.winners = winners or PROCESS
        self.trial_of = functools.cache(trial_of or trial)
        self.begun = time.perf_counter()
        self.end = self.begun + budget
        self.next_line = self.begun + PATIENCE
        self.compiling = 0.0
        self.found: dict[Hashable, Tuned] = {}

    def run(self, items: Mapping[Hashable, RunKernel], code_of: dict[Hashable, KernelCode]) -> Tuning:
        """Replaces codes in ``code_of`` (by the keys of ``items``) by faster ones, and says what was done."""
        return self._run(items, {}, code_of)

    def products(self, offers: Mapping[Hashable, Offer], code_of: dict[Hashable, KernelCode]) -> Tuning:
        """Puts into ``code_of`` the codes of products that are faster than the library's call and what is behind it."""
        return self._run({key: offer.fused for key, offer in offers.items()}, offers, code_of)

    def known(self, item: RunKernel) -> Choice | None:
        """What an earlier measurement chose for a kernel that is a product: its first code need not be another."""
        backend = self.backend_of(item)
        if item.kernel.product is None or backend.signature is None:
            return None
        winner = self.winners.get(backend.signature(item.kernel, self.hints_of(item), item.device), keep=False)
        return winner.choice if winner is not None else None

    def _run(
        self, items: Mapping[Hashable, RunKernel], offers: Mapping[Hashable, Offer], code_of: dict[Hashable, KernelCode]
    ) -> Tuning:
        with LOCK:
            asked = (self._case(key, item, offers.get(key), code_of) for key, item in items.items())
            cases = [case for case in asked if case is not None]
            cases.sort(key=lambda case: -self._bytes(case.item))  # what matters most, before time is up
            for start in range(0, len(cases), BATCH):
                self._batch(cases[start : start + BATCH], start, len(cases), code_of)
        trials = [each for each in map(self.trial_of, {item.device for item in items.values()}) if each is not None]
        kernels = tuple(self.found[key] for key in items if key in self.found)
        scratch = max((each.scratch for each in trials), default=0)
        return Tuning(kernels, time.perf_counter() - self.begun, self.compiling, scratch)

    def _case(
        self, key: Hashable, item: RunKernel, offer: Offer | None, code_of: dict[Hashable, KernelCode]
    ) -> _Case | None:
        """What is to be measured; None where there is nothing to choose, or the winner is known."""
        backend, measuring = self.backend_of(item), self.trial_of(item.device)
        if backend.choices is None or backend.signature is None or measuring is None:
            return None
        hints = self.hints_of(item)
        try:
            choices = tuple(backend.choices(item.kernel, hints))
            signature = backend.signature(item.kernel, hints, item.device)
        except Unsupported:
            return None
        if offer is not None:
            alone = "" if offer.kernel is not None else "_epilogue"
            choices, signature = (LIBRARY, *choices), f"{signature}_product{len(offer.before)}{alone}"
        if len(choices) < 2:
            return None
        winner = self.winners.get(signature, self.keep)
        if winner is not None:
            first = winner.choice == choices[0]
            code = code_of.get(key) if first else self._compiled(item, winner.choice)
            if code is not None or (first and offer is not None):
                self._won(key, item, winner, code, code_of)
                if item.kernel.product is not None and offer is None:
                    return None  # it was reported when the product was chosen
                won = "" if first else describe(winner.choice)
                self.found[key] = Tuned(item.kernel.title, winner.candidates, 0, won, winner.first, winner.best, True)
                return None
        try:
            measuring.check(item, self.schedule)
        except NotMeasured as reason:
            self.found[key] = Tuned(item.kernel.title, skipped=str(reason))
            return None
        if offer is None:
            return _Case(key, item, signature, choices, [code_of[key]])
        around = [each for each in (*offer.before, offer.kernel) if each is not None]
        parts = [code for code in (self._compiled(each, None) for each in around) if code is not None]
        return _Case(key, item, signature, choices, [None], offer, parts) if len(parts) == len(around) else None

    def _won(
        self,
        key: Hashable,
        item: RunKernel,
        winner: Winner,
        code: KernelCode | None,
        code_of: dict[Hashable, KernelCode],
    ) -> None:
        """Takes a winner's code, if it is one of ours; a product's choice is known from now on."""
        if winner.choice == LIBRARY:
            return
        assert code is not None, "all but the library's call have code"
        code_of[key] = code
        backend = self.backend_of(item)
        if item.kernel.product is not None and backend.signature is not None:
            signature = backend.signature(item.kernel, self.hints_of(item), item.device)
            self.winners.put(signature, winner, keep=False)

    def _bytes(self, item: RunKernel) -> int:
        pairs = zip(item.kernel.buffers, item.buffers, strict=True)
        return sum(elements(self.schedule, number) * buffer.dtype.size for buffer, number in pairs)

    def _batch(self, cases: Sequence[_Case], done: int, count: int, code_of: dict[Hashable, KernelCode]) -> None:
        """Compiles the candidates of some kernels, then times each kernel's."""
        if time.perf_counter() > self.end:
            for case in cases:
                self.found[case.key] = Tuned(case.item.kernel.title, skipped="the time for measuring was up")
            return
        self._tell(f"compiles candidates of kernels {done + 1} to {done + len(cases)} of {count}")
        begun = time.perf_counter()
        jobs = [(case.item, choice) for case in cases for choice in case.choices[1:]]
        with ThreadPoolExecutor(max(1, min(len(jobs), self.workers))) as pool:
            codes = pool.map(lambda job: self._compiled(*job), jobs)
            for case in cases:
                case.codes += [next(codes) for _ in case.choices[1:]]
        self.compiling += time.perf_counter() - begun
        for number, case in enumerate(cases, done + 1):
            self._tell(f"measures kernel {number} of {count}, {case.item.kernel.title}")
            self._measure(case, code_of)

    def _compiled(self, item: RunKernel, choice: Choice | None) -> KernelCode | None:
        """The code of a candidate, None for one that cannot be compiled or loaded: it is only not chosen."""
        try:
            return self.compile(item, choice)
        except Exception:
            return None

    def _measure(self, case: _Case, code_of: dict[Hashable, KernelCode]) -> None:
        measuring = self.trial_of(case.item.device)
        assert measuring is not None
        made_of = [(place, code) for place, code in enumerate(case.codes) if code is not None]
        codes = [code for _, code in made_of]
        places = [place for place, _ in made_of]
        try:
            if case.offer is None:
                times = measuring.kernel(case.item, self.schedule, codes)
            else:  # the first is the library's call
                times = measuring.product(case.offer, self.schedule, case.parts, codes)
                places = [0, *places]
        except (NotMeasured, RuntimeError) as reason:  # of torch, such as a lack of memory
            self.found[case.key] = Tuned(case.item.kernel.title, skipped=(str(reason).splitlines() or ["?"])[0][:100])
            return
        place = winner_of(times)
        choice, count = case.choices[places[place]], len(case.choices)
        winner = Winner(choice, times[0], times[place], count)
        self.winners.put(case.signature, winner, self.keep)
        self._won(case.key, case.item, winner, case.codes[places[place]], code_of)
        failed = count - sum(map(math.isfinite, times))
        won = describe(choice) if place else ""
        self.found[case.key] = Tuned(case.item.kernel.title, count, failed, won, winner.first, winner.best)

    def _tell(self, what: str) -> None:
        """Says what takes long."""
        now = time.perf_counter()
        if now > self.next_line:
            self.next_line = now + PATIENCE
            print(f"framefuse: {what}, {now - self.begun:.0f} s", file=sys.stderr, flush=True)


def winner_of(times: Sequence[float]) -> int:
    """The place of the least time, the first place where it is hardly longer."""
    best = min(range(len(times)), key=times.__getitem__)
    return best if times[best] < MARGIN * times[0] else 0


def describe(choice: Choice) -> str:
    """A choice in words."""
    if choice.inner:
        tile = f"tiles of {choice.points} x {choice.width} x {choice.inner}"
        return f"{tile}, {choice.warps} warps, {choice.stages} stages"
    parts = [f"{choice.points} points" if choice.points != 1 else "1 point"]
    if choice.width:
        parts.append(f"turns of {choice.width}")
    parts.append(f"{choice.warps} warps" if choice.warps != 1 else "1 warp")
    if choice.stages > 1:
        parts.append(f"{choice.stages} stages")
    return ", ".join(parts)
