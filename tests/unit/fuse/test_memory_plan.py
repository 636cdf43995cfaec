"""Buffers that live together lie apart; dead ones are used again where that is certain."""

from tests.unit.fuse.graphs import symbol

from framefuse.fuse.memory_plan import Buffers, Value
from framefuse.ir.dtypes import FLOAT32
from framefuse.ir.numbers import Symbol, expr

S = symbol("s0")


def planned(*lives, late=frozenset()):
    buffers = Buffers({})
    for size, first, last in lives:
        number = buffers.add(Value("arena", FLOAT32, (expr(size),), (expr(1),)))
        buffers.touch(number, first)
        buffers.touch(number, last)
    end = buffers.place(late)
    return [value.offset for value in buffers.values], end


def test_equal_sizes_share_a_block():
    offsets, end = planned((S, 0, 1), (S, 1, 2), (S, 2, 3))
    assert offsets[0] is offsets[2] and offsets[0] is not offsets[1]
    assert end.evaluate({Symbol("s0"): 20}) == 2 * 128


def test_unlike_symbols_do_not():
    offsets, _ = planned((S, 0, 1), (symbol("s1"), 2, 3))
    assert offsets[0] is not offsets[1]


def test_constants_take_the_smallest_block_that_fits():
    offsets, end = planned((100, 0, 1), (1000, 0, 1), (90, 2, 3), (900, 2, 3))
    assert offsets[2] is offsets[0] and offsets[3] is offsets[1]
    assert end == 448 + 4032


def test_offsets_are_aligned():
    offsets, end = planned((3, 0, 5), (5, 0, 5), (S, 0, 5))
    assert [offset.evaluate({Symbol("s0"): 1}) % 64 for offset in (*offsets, end)] == [0] * 4


def test_a_size_known_late_is_a_tensor_of_its_own():
    offsets, end = planned((symbol("u0"), 0, 1), late=frozenset([Symbol("u0")]))
    assert offsets == [None] and end == 0
