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
    size = buffers.place(late).size
    return [value.offset for value in buffers.values], size


def test_a_size_known_late_is_a_tensor_of_its_own():
    offsets, end = planned((symbol("u0"), 0, 1), late=frozenset([Symbol("u0")]))
    assert offsets == [None] and end == 0
