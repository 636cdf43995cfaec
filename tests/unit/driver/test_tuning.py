"""What is measured, what wins, and what is remembered of it; kernels and clock are stand-ins."""

import dataclasses
import math
import subprocess
import sys
import time
from types import SimpleNamespace

import pytest

from framefuse.codegen.disk_cache import DiskCache
from framefuse.codegen.specialisation import Choice
from framefuse.driver import tuning
from framefuse.driver.measuring import Measuring
from framefuse.driver.tuning import Tuner, winner_of
from framefuse.driver.winners import Winner, Winners
from framefuse.ir.dtypes import FLOAT32
from framefuse.ir.graph import Graph
from framefuse.ir.loops import Buffer, Kernel
from framefuse.ir.numbers import expr
from framefuse.ir.schedule import Memory, RunKernel, Schedule
from framefuse.ir.tuning import Tuned
from framefuse.runtime.trial import NotMeasured, elements

CHOICES = (Choice(1024, 0, 4), Choice(512, 0, 2), Choice(2048, 0, 8, 3))


def item(name, size=10):
    return RunKernel(Kernel(name, (Buffer("x", FLOAT32, True),), (), (), expr(1)), (size,), (), expr(1), expr(1), False)


def schedule():
    """Memories whose number is their length."""
    graph = Graph("f", (), (), (), (), ())
    memories = tuple(Memory("arena", FLOAT32, (expr(n),), (expr(1),)) for n in range(20))
    return Schedule(graph, memories, (), (), expr(0))


class Trial:
    def __init__(self, times):
        self.all, self.seen, self.scratch = times, [], 4096
        self.broken = False

    def check(self, item, schedule):
        found = self.all[item.kernel.title]
        if isinstance(found, str):
            raise NotMeasured(found)

    def kernel(self, item, schedule, codes):
        self.seen.append((item.kernel.title, tuple(codes)))
        if self.broken:
            raise RuntimeError("CUDA out of memory\nand more")
        return [self.all[item.kernel.title][code] for code in codes]


def tuned(items, times, winners, *, broken=(), budget=100.0, keep=True, compile=None):
    """``(codes, tuning, trial)``: a code is the warps of its choice, the first 4."""
    measuring = Trial(times)

    def code(item, choice):
        if choice.warps in broken:
            raise RuntimeError("too much shared memory")
        return choice.warps

    backend = SimpleNamespace(
        choices=lambda kernel, hints: CHOICES,
        signature=lambda kernel, hints, device: kernel.title,
        threads=lambda jobs: 2,
    )
    made = {one.kernel.title: 4 for one in items}
    measured = Measuring(
        schedule(), compile or code, lambda item: backend, lambda item: {}, keep=keep, kept=winners,
        trial_of=lambda device: measuring,
    )  # fmt: skip
    tuner = Tuner(measured, budget)
    return made, tuner.run({one.kernel.title: one for one in items}, made), measuring


@pytest.fixture
def winners(tmp_path):
    return Winners(DiskCache(tmp_path))


def test_the_fastest_wins(winners):
    times = {"a": {4: 3.0, 2: 2.0, 8: 1.0}, "b": {4: 1.0, 2: 1.5, 8: 2.0}}
    made, found, measuring = tuned([item("a"), item("b", 12)], times, winners)
    assert made == {"a": 8, "b": 4}
    first = Tuned("a", 3, 0, "2048 points, 8 warps, 3 stages", 3.0, 1.0)
    assert found.kernels == (first, Tuned("b", 3, 0, "", 1.0, 1.0))
    assert found.scratch == 4096 and found.seconds >= found.compiling > 0
    assert measuring.seen == [("b", (4, 2, 8)), ("a", (4, 2, 8))], "the largest first, its own code first"


def test_hardly_faster_is_not_faster():
    assert winner_of([1.0, 0.99, 1.2]) == 0
    assert winner_of([1.0, 0.97, 0.96]) == 2
    assert winner_of([math.inf, 5.0]) == 1


@pytest.mark.parametrize("first", [1.0, math.inf])
def test_a_bad_candidate_drops_itself_only(winners, first):
    times = {"a": {4: first, 2: 0.5, 8: 0.1}}
    made, found, measuring = tuned([item("a")], times, winners, broken=(8,))
    assert made == {"a": 2} and measuring.seen == [("a", (4, 2))]
    assert found.kernels[0].failed == 1 + math.isinf(first)
    made, found, _ = tuned([item("b")], {"b": {4: 1.0, 2: math.inf, 8: math.inf}}, winners)
    assert made == {"b": 4} and found.kernels[0].failed == 2


def test_nothing_is_measured_twice(winners, tmp_path):
    times = {"a": {4: 3.0, 2: 2.0, 8: 1.0}, "b": {4: 1.0, 2: 2.0, 8: 2.0}}
    tuned([item("a"), item("b")], times, winners)
    for again in (winners, Winners(DiskCache(tmp_path))):
        made, found, measuring = tuned([item("a"), item("b")], times, again)
        assert made == {"a": 8, "b": 4} and not measuring.seen
        assert all(kernel.stored for kernel in found.kernels) and found.compiling == 0
    others = Winners(DiskCache(tmp_path))
    assert others.get("a", keep=False) is None, "the disk is not read where nothing may be kept"


def test_another_process_finds_the_winner(winners, tmp_path):
    tuned([item("a")], {"a": {4: 3.0, 2: 2.0, 8: 1.0}}, winners)
    text = f"""
from pathlib import Path
from framefuse.codegen.disk_cache import DiskCache
from framefuse.driver.winners import Winners
print(Winners(DiskCache(Path({str(tmp_path)!r}))).get("a", True))
"""
    said = subprocess.run([sys.executable, "-c", text], capture_output=True, text=True, check=True).stdout
    assert said.strip() == repr(Winner(CHOICES[2], 3.0, 1.0, 3))


def test_nothing_is_written_where_nothing_may_be_kept(winners, tmp_path):
    made, _, _ = tuned([item("a")], {"a": {4: 3.0, 2: 2.0, 8: 1.0}}, winners, keep=False)
    assert made == {"a": 8} and not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    "damage",
    [
        b"", b"null", b"[]", b"[[1, 2], 3, 4, 5, 0]", b"[[1, 2, 3], 3, 4, 5]", b"{", b'[["x", 0, 1, 1], 1, 1, 1, 0]',
    ],
)  # fmt: skip
def test_a_damaged_file_is_measured_anew(tmp_path, damage):
    disk = DiskCache(tmp_path)
    disk.write("a", damage)
    made, _, measuring = tuned([item("a")], {"a": {4: 3.0, 2: 2.0, 8: 1.0}}, Winners(disk))
    assert made == {"a": 8} and measuring.seen


def test_a_winner_that_does_not_compile_any_more_is_measured_anew(winners):
    times = {"a": {4: 3.0, 2: 2.0, 8: 1.0}}
    tuned([item("a")], times, winners)
    made, _, measuring = tuned([item("a")], times, winners, broken=(8,))
    assert made == {"a": 2} and measuring.seen


def test_what_is_not_measured_keeps_its_code_and_says_why(winners):
    made, found, _ = tuned([item("a"), item("b")], {"a": "no room", "b": {4: 2.0, 2: 1.0, 8: 3.0}}, winners)
    assert made == {"a": 4, "b": 2}
    assert [kernel.skipped for kernel in found.kernels] == ["no room", ""]
    assert winners.get("a", True) is None


def test_an_error_of_torch_leaves_the_code_as_it_was(winners, monkeypatch):
    monkeypatch.setattr(Trial, "broken", property(lambda self: True, lambda self, value: None), raising=False)
    made, found, _ = tuned([item("a")], {"a": {4: 3.0, 2: 2.0, 8: 1.0}}, winners)
    assert made == {"a": 4} and found.kernels[0].skipped == "CUDA out of memory"
    assert winners.get("a", True) is None


def test_the_budget_ends_it(winners, monkeypatch):
    monkeypatch.setattr(tuning, "BATCH", 1)

    def slow(item, choice):
        time.sleep(0.05)
        return choice.warps

    items = [item("a", 19), item("b", 3)]
    times = {name: {4: 2.0, 2: 1.0, 8: 3.0} for name in "ab"}
    made, found, _ = tuned(items, times, winners, compile=slow, budget=0.02)
    assert made == {"a": 2, "b": 4}
    assert [kernel.skipped for kernel in found.kernels] == ["", "the time for measuring was up"]


def test_it_tells_what_takes_long(winners, monkeypatch, capsys):
    monkeypatch.setattr(tuning, "PATIENCE", 0.0)
    tuned([item("a")], {"a": {4: 2.0, 2: 1.0, 8: 3.0}}, winners)
    said = capsys.readouterr().err
    assert "framefuse: compiles candidates of kernels 1 to 1 of 1" in said and "measures kernel 1 of 1, a" in said
    monkeypatch.setattr(tuning, "PATIENCE", 2.0)
    tuned([item("b")], {"b": {4: 2.0, 2: 1.0, 8: 3.0}}, winners)
    assert not capsys.readouterr().err


def test_elements_of_strided_memory():
    memory = Memory("input", FLOAT32, (expr(4), expr(3)), (expr(1), expr(10)))
    one = dataclasses.replace(schedule(), memories=(memory, dataclasses.replace(memory, sizes=(expr(0), expr(3)))))
    assert elements(one, 0) == 24 and elements(one, 1) == 0
