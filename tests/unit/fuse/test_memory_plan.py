"""Buffers that live together lie apart; dead ones are used again where that is certain."""

from tests.unit.fuse.graphs import symbol

from framefuse.fuse.memory.memory_plan import Buffers, Value
from framefuse.ir.dtypes import FLOAT32, INT32
from framefuse.ir.numbers import Symbol, expr

S = symbol("s0")


def planned(*lives, late=frozenset()):
    buffers = Buffers({})
    for size, first, last in lives:
        number = buffers.add(Value("arena", FLOAT32, (expr(size),), (expr(1),)))
        buffers.touch(number, first)
        buffers.touch(number, last)
    size = buffers.place(late)["cpu"].size
    return [value.offset for value in buffers.values], size


def test_a_size_known_late_is_a_tensor_of_its_own():
    offsets, end = planned((symbol("u0"), 0, 1), late=frozenset([Symbol("u0")]))
    assert offsets == [None] and end == 0


def test_large_memory_of_training_is_given_back_when_its_last_reader_has_run():
    buffers = Buffers({}, brief=True)
    first, second, small, mixed = (
        Value("arena", dtype, (expr(size),), (expr(1),))
        for dtype, size in ((FLOAT32, 40000), (FLOAT32, 40000), (FLOAT32, 10), (INT32, 40000))
    )
    second.over = mixed.over = (0,)
    for value, life in ((first, (0, 1)), (second, (1, 2)), (small, (0, 2)), (mixed, (3, 4))):
        number = buffers.add(value)
        for item in life:
            buffers.touch(number, item)
    found = buffers.place(frozenset())
    assert [value.place for value in buffers.values] == ["view", "fresh", "arena", "fresh"]
    assert first.base == 1 and (second.first, second.last) == (0, 2) and mixed.taken == -1
    assert found["cpu"].size.constant == 64


def test_a_large_piece_of_several_types_stays_in_the_arena():
    buffers = Buffers({}, brief=True)
    for dtype, life in ((FLOAT32, (0, 1)), (INT32, (1, 2))):
        number = buffers.add(Value("arena", dtype, (expr(40000),), (expr(1),)))
        for item in life:
            buffers.touch(number, item)
    buffers.values[1].over = (0,)
    buffers.values[1].sizes = buffers.values[0].sizes
    found = buffers.place(frozenset())
    assert [value.place for value in buffers.values] == ["arena", "arena"]
    assert found["cpu"].size.constant == 160000


def test_each_device_has_an_arena_of_its_own():
    buffers = Buffers({})
    for device in ("cuda:0", "cpu", "cuda:1", "cuda:0"):
        number = buffers.add(Value("arena", FLOAT32, (S,), (expr(1),), device))
        buffers.touch(number, 0)
        buffers.touch(number, 1)
    found = buffers.place(frozenset())
    assert list(found) == ["cpu", "cuda:0", "cuda:1"]
    assert [value.offset == 0 for value in buffers.values].count(True) == 3
    assert found["cuda:0"].size == 2 * found["cpu"].size and found["cuda:1"].size == found["cpu"].size


def test_no_buffer_takes_the_memory_of_another_device():
    for place in ("arena", "fresh"):
        buffers = Buffers({})
        for device, first, last in (("cuda:0", 0, 1), ("cuda:1", 1, 2)):
            number = buffers.add(Value("arena", FLOAT32, (S,), (expr(1),), device))
            buffers.touch(number, first)
            buffers.touch(number, last)
        buffers.values[1].over, buffers.values[1].place = (0,), place
        buffers.place(frozenset())
        assert buffers.values[1].taken == -1 and buffers.values[0].place == "arena"
        buffers.values[1].device = "cuda:0"
        buffers.place(frozenset())
        assert buffers.values[1].taken == 0
