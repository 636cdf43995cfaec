"""Broken schedules are found."""

from dataclasses import replace

from tests.unit.fuse.graphs import Builder, symbol

from framefuse.fuse import fuse
from framefuse.fuse.verify import problems
from framefuse.ir.schedule import Allocate, RunKernel


def schedule():
    b = Builder(s0=3)
    x, w = b.input((symbol("s0"), 4)), b.input((4, 4))
    y = b.matmul(b.exp(x), w)
    return fuse(b.graph(b.add(b.matmul(b.sin(y), w), y)))


def test_a_good_schedule_has_no_problem():
    assert problems(schedule()) == []


def test_a_read_before_the_write():
    good = schedule()
    assert any("holds nothing" in text for text in problems(replace(good, items=good.items[1:])))


def test_a_missing_allocation():
    good = schedule()
    items = tuple(item for item in good.items if not isinstance(item, Allocate))
    assert any("before it is allocated" in text for text in problems(replace(good, items=items)))


def test_overlapping_memory():
    good = schedule()
    moved = tuple(replace(m, offset=m.offset * 0) if m.place == "arena" else m for m in good.memories)
    assert any("share the arena" in text for text in problems(replace(good, memories=moved)))


def test_a_missing_number():
    good = schedule()
    items = tuple(replace(item, numbers=()) if isinstance(item, RunKernel) else item for item in good.items)
    assert any("wrong number" in text for text in problems(replace(good, items=items)))
