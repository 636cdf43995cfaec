"""Buffers that live together lie apart; dead ones are used again where that is certain."""

from dataclasses import replace

from tests.unit.fuse.graphs import symbol

from framefuse.fuse.memory.draft import Value
from framefuse.fuse.memory.places import Planner
from framefuse.ir.dtypes import FLOAT32, INT32
from framefuse.ir.numbers import Symbol, expr

S = symbol("s0")


def buffer(size, first, last, dtype=FLOAT32, device="cpu", **fields):
    return Value("arena", dtype, (expr(size),), (expr(1),), device, first=first, last=last, **fields)


def planned(*lives, late=frozenset()):
    planner = Planner([buffer(*life) for life in lives], {})
    size = planner.place(late)["cpu"].size
    return [value.offset for value in planner.values], size


def test_a_size_known_late_is_a_tensor_of_its_own():
    offsets, end = planned((symbol("u0"), 0, 1), late=frozenset([Symbol("u0")]))
    assert offsets == [None] and end == 0


def test_large_memory_of_training_is_given_back_when_its_last_reader_has_run():
    lives = buffer(40000, 0, 1), buffer(40000, 1, 2, over=(0,)), buffer(10, 0, 2), buffer(40000, 3, 4, INT32, over=(0,))
    planner = Planner(lives, {}, brief=True)
    found = planner.place(frozenset())
    first, second, _, mixed = planner.values
    assert [value.place for value in planner.values] == ["view", "fresh", "arena", "fresh"]
    assert first.base == 1 and (second.first, second.last) == (0, 2) and mixed.taken == -1
    assert found["cpu"].size.constant == 64
    assert all(value.place == "arena" for value in lives), "what was given to the planner stays as it was"


def test_a_large_piece_of_several_types_stays_in_the_arena():
    first = buffer(40000, 0, 1)
    second = replace(buffer(40000, 1, 2, INT32, over=(0,)), sizes=first.sizes)
    planner = Planner([first, second], {}, brief=True)
    found = planner.place(frozenset())
    assert [value.place for value in planner.values] == ["arena", "arena"]
    assert found["cpu"].size.constant == 160000


def test_each_device_has_an_arena_of_its_own():
    devices = ("cuda:0", "cpu", "cuda:1", "cuda:0")
    planner = Planner([buffer(S, 0, 1, device=device) for device in devices], {})
    found = planner.place(frozenset())
    assert list(found) == ["cpu", "cuda:0", "cuda:1"]
    assert [value.offset == 0 for value in planner.values].count(True) == 3
    assert found["cuda:0"].size == 2 * found["cpu"].size and found["cuda:1"].size == found["cpu"].size


def test_no_buffer_takes_the_memory_of_another_device():
    for place in ("arena", "fresh"):
        first = buffer(S, 0, 1, device="cuda:0")
        other = replace(buffer(S, 1, 2, device="cuda:1", over=(0,)), place=place)
        planner = Planner([first, other], {})
        planner.place(frozenset())
        assert planner.values[1].taken == -1 and planner.values[0].place == "arena"
        planner = Planner([first, replace(other, device="cuda:0")], {})
        planner.place(frozenset())
        assert planner.values[1].taken == 0
