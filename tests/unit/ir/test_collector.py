"""The collector while something is compiled, and what it does with what was made."""

import gc
import weakref

import pytest

from framefuse.ir.collector import collector_paused, made_to_last


class Thing:
    pass


@pytest.fixture(autouse=True)
def collecting():
    before = gc.isenabled(), gc.get_threshold()
    gc.enable()
    gc.unfreeze()
    yield
    gc.unfreeze()
    gc.set_threshold(*before[1])
    if not before[0]:
        gc.disable()


def old() -> set[int]:
    return {id(each) for each in gc.get_objects(generation=2)}


def made(collecting: bool) -> list[Thing]:
    with made_to_last(collecting):
        return [Thing() for _ in range(3)]


def test_what_is_made_to_last_is_old_at_once():
    things = made(True)
    assert {id(each) for each in things} <= old()


def test_garbage_from_before_is_collected():
    loop = Thing()
    loop.loop, seen = loop, weakref.ref(loop)
    del loop
    made(True)
    assert seen() is None


def test_what_the_program_froze_stays_frozen():
    gc.freeze()
    count = gc.get_freeze_count()
    things = made(True)
    assert gc.get_freeze_count() == count and not {id(each) for each in things} & old()


def test_a_collector_that_is_off_is_left_alone():
    things = made(False)
    assert not {id(each) for each in things} & old()


@pytest.mark.parametrize(("enabled", "threshold", "on"), [(True, 700, True), (False, 700, False), (True, 0, False)])
def test_a_pause_says_whether_the_collector_was_on(enabled, threshold, on):
    gc.set_threshold(threshold, 10, 10)
    if not enabled:
        gc.disable()
    with collector_paused() as collecting:
        assert collecting is on and gc.get_threshold()[0] == 0
    assert gc.get_threshold()[0] == threshold
