"""Chooses among codes of a kernel by measuring, in the modes that measure: compiles candidates in parallel, times them,
and keeps the winner.
"""

from __future__ import annotations

import math
import sys
import time
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass

from framefuse.codegen.specialisation import Choice
from framefuse.driver.measuring import LOCK, Measuring
from framefuse.driver.winners import Winner, describe
from framefuse.ir.code import KernelCode
from framefuse.ir.schedule import Offer, RunKernel
from framefuse.ir.tuning import Tuned, Tuning
from framefuse.runtime.trial import NotMeasured

BATCH = 8  # kernels whose candidates are compiled together: nothing compiles while something is timed
MARGIN = 0.98  # of the time of what is taken without measuring, from which on another wins
PATIENCE = 2.0  # seconds after which a line is logged of what is going on
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
    """Measures the candidates of one graph's kernels, for ``budget`` seconds at most."""

    def __init__(self, measuring: Measuring, budget: float) -> None:
        self.measuring, self.found = measuring, measuring.found
        self.begun = time.perf_counter()
        self.end = self.begun + budget
        self.next_line = self.begun + PATIENCE

    def run(self, items: Mapping[Hashable, RunKernel], code_of: dict[Hashable, KernelCode]) -> Tuning:
        """Replaces codes in ``code_of`` (by the keys of ``items``) by faster ones, and says what was done."""
        return self._run(items, {}, code_of)

    def products(self, offers: Mapping[Hashable, Offer], code_of: dict[Hashable, KernelCode]) -> Tuning:
        """Puts into ``code_of`` the codes of products that are faster than the library's call and what is behind it."""
        return self._run({key: offer.fused for key, offer in offers.items()}, offers, code_of)

    def known(self, item: RunKernel) -> Choice | None:
        """What an earlier measurement chose for a kernel that is a product: its first code need not be another."""
        signature = self._of_product(item)
        winner = self.measuring.winner(signature, disk=False) if signature is not None else None
        return winner.choice if winner is not None else None

    def _of_product(self, item: RunKernel) -> str | None:
        """The name under which the choice for a product is known, None for other kernels."""
        backend = self.measuring.backend_of(item)
        if item.kernel.product is None or backend.signature is None:
            return None
        return backend.signature(item.kernel, self.measuring.hints_of(item), item.device)

    def _run(
        self, items: Mapping[Hashable, RunKernel], offers: Mapping[Hashable, Offer], code_of: dict[Hashable, KernelCode]
    ) -> Tuning:
        with LOCK:
            asked = (self._case(key, item, offers.get(key), code_of) for key, item in items.items())
            cases = [case for case in asked if case is not None]
            cases.sort(key=lambda case: -self.measuring.moved(case.item))  # what matters most, before time is up
            for start in range(0, len(cases), BATCH):
                self._batch(cases[start : start + BATCH], start, len(cases), code_of)
        return self.measuring.tuning(items, time.perf_counter() - self.begun)

    def _case(
        self, key: Hashable, item: RunKernel, offer: Offer | None, code_of: dict[Hashable, KernelCode]
    ) -> _Case | None:
        """What is to be measured; None where there is nothing to choose, or the winner is known."""
        found = self.measuring.of(item)
        if found is None:
            return None
        choices, signature = found
        if offer is not None:
            alone = "" if offer.kernel is not None else "_epilogue"
            choices, signature = (LIBRARY, *choices), f"{signature}_product{len(offer.before)}{alone}"
        if len(choices) < 2:
            return None
        winner = self.measuring.winner(signature)
        if winner is not None:
            first = winner.choice == choices[0]
            code = code_of.get(key) if first else self.measuring.compiled(item, winner.choice)
            if code is not None or (first and offer is not None):
                self._won(key, item, winner, code, code_of)
                if item.kernel.product is not None and offer is None:
                    return None  # it was reported when the product was chosen
                won = "" if first else describe(winner.choice)
                self.found[key] = Tuned(item.kernel.title, winner.candidates, 0, won, winner.first, winner.best, True)
                return None
        try:
            self.measuring.trial(item).check(item, self.measuring.schedule)
        except NotMeasured as reason:
            self.measuring.skipped(key, item, reason)
            return None
        if offer is None:
            return _Case(key, item, signature, choices, [code_of[key]])
        around = [each for each in (*offer.before, offer.kernel) if each is not None]
        parts = [code for code in (self.measuring.compiled(each, None) for each in around) if code is not None]
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
        signature = self._of_product(item)
        if signature is not None:
            self.measuring.keep(signature, winner, disk=False)

    def _batch(self, cases: Sequence[_Case], done: int, count: int, code_of: dict[Hashable, KernelCode]) -> None:
        """Compiles the candidates of some kernels, then times each kernel's."""
        if time.perf_counter() > self.end:
            for case in cases:
                self.measuring.skipped(case.key, case.item, "the time for measuring was up")
            return
        self._tell(f"compiles candidates of kernels {done + 1} to {done + len(cases)} of {count}")
        jobs = [(case.item, choice) for case in cases for choice in case.choices[1:]]
        codes = iter(self.measuring.all_compiled(jobs))
        for case in cases:
            case.codes += [next(codes) for _ in case.choices[1:]]
        for number, case in enumerate(cases, done + 1):
            self._tell(f"measures kernel {number} of {count}, {case.item.kernel.title}")
            self._measure(case, code_of)

    def _measure(self, case: _Case, code_of: dict[Hashable, KernelCode]) -> None:
        measuring, schedule = self.measuring.trial(case.item), self.measuring.schedule
        made_of = [(place, code) for place, code in enumerate(case.codes) if code is not None]
        codes = [code for _, code in made_of]
        places = [place for place, _ in made_of]
        try:
            if case.offer is None:
                times = measuring.kernel(case.item, schedule, codes)
            else:  # the first is the library's call
                times = measuring.product(case.offer, schedule, case.parts, codes)
                places = [0, *places]
        except (NotMeasured, RuntimeError) as reason:  # of torch, such as a lack of memory
            self.measuring.skipped(case.key, case.item, reason)
            return
        place = winner_of(times)
        choice, count = case.choices[places[place]], len(case.choices)
        winner = Winner(choice, times[0], times[place], count)
        self.measuring.keep(case.signature, winner)
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
