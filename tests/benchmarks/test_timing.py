import gc
import time

import pytest
import torch

from benchmarks.harness import timing
from benchmarks.harness.timing import Column


def test_columns_take_turns_and_each_round_begins_with_the_next():
    calls = []
    columns = {name: Column(lambda x, name=name: calls.append((name, x)), [(1,), (2,)]) for name in "abc"}
    timing.interleaved(columns, passes=3, block=1)
    assert "".join(name for name, x in calls if x == 1) == "abc" + "bca" + "cab"
    assert [x for name, x in calls if name == "a"] == [1, 2] * 3


def test_a_pass_that_rests_begins_with_a_call_that_does_not_count(monkeypatch):
    calls, slept, taken = [], [], []
    monkeypatch.setattr(time, "sleep", slept.append)
    monkeypatch.setattr(timing, "one_pass", lambda column, device: taken.append(column) or 0.5)
    columns = {name: Column(lambda x, name=name: calls.append((name, x)), [(1,), (2,)]) for name in "ab"}
    assert timing.interleaved(columns, passes=2, rest=0.25) == {"a": 0.5, "b": 0.5}
    assert calls == [("a", 1), ("b", 1), ("b", 1), ("a", 1)] and slept == [0.25] * 4 and len(taken) == 4


def test_the_median_ignores_one_slow_pass(monkeypatch):
    taken = iter([0.001, 9.0, 0.002, 0.003, 0.001])
    monkeypatch.setattr(timing, "one_pass", lambda column, device: next(taken))
    assert timing.interleaved({"only": Column(print, [(1,)])}, passes=5) == {"only": 0.002}


def test_blocks_are_all_inputs_in_order():
    column = Column(print, [(i,) for i in range(7)])
    assert [piece.inputs for piece in timing.blocks(column, 3)] == [column.inputs[:3], column.inputs[3:6], [(6,)]]


def test_a_pass_is_seconds_a_call():
    slow = Column(lambda x, y: time.sleep(0.01), [(1, 2)] * 3)
    assert 0.01 <= timing.one_pass(slow) < 0.03


def test_the_collector_is_off_inside_and_as_before_after():
    seen = []
    assert gc.isenabled()
    with pytest.raises(KeyError), timing.no_collection():
        seen.append(gc.isenabled())
        raise KeyError
    assert seen == [False] and gc.isenabled()


def test_passes_fit_the_time_given():
    column = {"a": Column(lambda x: time.sleep(0.01), [(1,)])}
    assert timing.passes_within(0.0, column) == 5
    assert 6 <= timing.passes_within(0.11, column) <= 11
    assert timing.passes_within(9.0, column) == 51


def test_threads_are_put_back():
    before = torch.get_num_threads()
    with timing.threads(2):
        assert torch.get_num_threads() == 2
    assert torch.get_num_threads() == before
