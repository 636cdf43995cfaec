"""Which kernels are timed in other forms where no mode asks for it, and what is kept; all of it are stand-ins."""

from types import SimpleNamespace

import pytest
import torch
from tests.unit.driver.test_tuning import CHOICES, item, schedule

from framefuse.codegen.disk_cache import DiskCache
from framefuse.driver import few_forms as forms
from framefuse.driver.few_forms import Forms, may_measure
from framefuse.driver.measuring import Measuring
from framefuse.driver.winners import Winner, Winners
from framefuse.ir.code import LaunchedCode
from framefuse.ir.tuning import Tuned
from framefuse.runtime.trial import NotMeasured

BYTES = 40  # that each kernel moves


class Warps(int):
    """In the place of code, of which these are told."""

    seconds = {}


class Code(LaunchedCode):
    """The code of a choice, by its warps, that took so many seconds to compile."""

    def __init__(self, warps, seconds=0.0):
        object.__setattr__(self, "code", Warps(warps))
        self.code.seconds = {"compile": seconds}


class Trial:
    scratch = 4096

    def __init__(self, times, copied=1e6):
        self.all, self.seen, self.copied = times, [], copied

    def check(self, item, schedule):
        if isinstance(self.all[item.kernel.title], str):
            raise NotMeasured(self.all[item.kernel.title])

    def bandwidth(self):
        return self.copied

    def kernel(self, item, schedule, codes):
        warps = [code.code for code in codes]
        self.seen.append((item.kernel.title, tuple(warps)))
        return [self.all[item.kernel.title][each] for each in warps]


def formed(names, times, winners, *, copied=1e6, budget=100.0, keep=True, compiling=0.0):
    """``(warps by kernel, what was done, trial)``: the usual code has 4."""
    measuring = Trial(times, copied)
    backend = SimpleNamespace(
        choices=lambda kernel, hints: CHOICES,
        signature=lambda kernel, hints, device: kernel.title,
        threads=lambda jobs: 2,
    )
    made = {name: Code(4, compiling) for name in names}
    measured = Measuring(
        schedule(), lambda item, choice: Code(choice.warps), lambda item: backend, lambda item: {}, keep=keep,
        kept=winners, trial_of=lambda device: measuring,
    )  # fmt: skip
    found = Forms(measured, budget).run({name: item(name) for name in names}, made)
    return {name: code.code for name, code in made.items()}, found, measuring


@pytest.fixture
def winners(tmp_path, monkeypatch):
    monkeypatch.setattr(forms, "LARGE", BYTES)
    return Winners(DiskCache(tmp_path))


def test_a_slow_kernel_takes_a_faster_form(winners):
    made, found, measuring = formed(["a"], {"a": {4: 3e-4, 2: 2e-4, 8: 1e-4}}, winners)
    assert made == {"a": 8} and measuring.seen == [("a", (4,)), ("a", (4, 2, 8))]
    (kernel,) = found.kernels
    assert (kernel.won, kernel.first, kernel.best) == ("2048 points, 8 warps, 3 stages", 3e-4, 1e-4)
    assert kernel.share == pytest.approx(BYTES / (1e-4 * 1e6)) and found.scratch == 4096


@pytest.mark.parametrize(
    ("times", "copied"), [({4: 4e-5, 2: 1e-5, 8: 1e-5}, 1e9), ({4: 1e-4, 2: 1e-5, 8: 1e-5}, BYTES / 0.9e-4)]
)
def test_a_quick_or_a_good_kernel_stays_as_it_is(winners, times, copied):
    made, found, measuring = formed(["a"], {"a": times}, winners, copied=copied)
    assert made == {"a": 4} and measuring.seen == [("a", (4,))] and not found.kernels[0].won


def test_a_kernel_that_takes_long_to_compile_stays_as_it_is_unless_much_is_to_gain(winners):
    times = {"a": {4: 1e-4, 2: 1e-5, 8: 1e-5}, "b": {4: 1e-2, 2: 1e-5, 8: 1e-5}}
    for _ in range(2):  # the second time as was found
        made, _, measuring = formed(["a", "b"], times, winners, compiling=1.0)
        assert made == {"a": 4, "b": 2} and ("a", (4, 2, 8)) not in measuring.seen
    assert formed(["c"], {"c": times["a"]}, winners, compiling=0.5)[0] == {"c": 2}


def test_hardly_faster_is_not_faster(winners):
    made, found, _ = formed(["a"], {"a": {4: 1e-4, 2: 0.95e-4, 8: 0.94e-4}}, winners)
    assert made == {"a": 4} and found.kernels[0].candidates == 3


def test_small_kernels_are_not_launched(winners, monkeypatch):
    monkeypatch.setattr(forms, "LARGE", BYTES + 1)
    made, found, measuring = formed(["a"], {"a": {4: 1.0, 2: 0.1, 8: 0.1}}, winners)
    assert made == {"a": 4} and found is None and not measuring.seen


def test_what_is_known_is_not_measured_again(winners, tmp_path):
    times = {"a": {4: 3e-4, 2: 2e-4, 8: 1e-4}, "b": {4: 1e-5, 2: 1.0, 8: 1.0}}
    formed(["a", "b"], times, winners)
    for again in (winners, Winners(DiskCache(tmp_path))):
        made, found, measuring = formed(["a", "b"], times, again)
        assert made == {"a": 8, "b": 4} and not measuring.seen
        assert all(kernel.stored and kernel.share for kernel in found.kernels)
    assert Winners(DiskCache(tmp_path)).get("a", keep=True) is None, "a mode that measures more does so"


def test_a_winner_of_all_candidates_is_taken(winners):
    winners.put("a", Winner(CHOICES[1], 2.0, 1.0, 3), keep=False)
    made, _, measuring = formed(["a"], {"a": {4: 3e-4, 2: 2e-4, 8: 1e-4}}, winners)
    assert made == {"a": 2} and not measuring.seen


def test_there_is_a_budget(winners):
    slow = {4: 3e-3, 2: 2e-3, 8: 1e-3}
    made, found, measuring = formed(["a", "b"], {"a": slow, "b": slow}, winners, budget=0.0)
    assert made == {"a": 4, "b": 4} and found is None and not measuring.seen
    made, _, measuring = formed(["a"], {"a": {4: 1.0, 2: 0.5, 8: 0.1}}, winners, budget=2.0)
    assert made == {"a": 4} and measuring.seen == [("a", (4,))], "another form would take too long"


def test_what_cannot_be_measured_says_why(winners):
    made, found, _ = formed(["a"], {"a": "a stream is being captured"}, winners)
    assert made == {"a": 4} and found.kernels == (Tuned("a", skipped="a stream is being captured"),)
    assert winners.get("a_of_few", keep=True) is None


def test_results_that_are_to_be_alike_everywhere_are_not_chosen_by_a_clock(monkeypatch):
    assert may_measure()
    torch.use_deterministic_algorithms(True)
    try:
        assert not may_measure()
    finally:
        torch.use_deterministic_algorithms(False)
    monkeypatch.setattr(torch.distributed, "is_initialized", lambda: True)
    assert not may_measure()
