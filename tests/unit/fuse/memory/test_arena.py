"""Pieces that live together lie apart at all sizes, and take little more room than what lives at once."""

from unittest import mock

from hypothesis import given
from hypothesis import strategies as st
from tests.unit.fuse.graphs import symbol

from framefuse.fuse.memory.arena import Piece, places
from framefuse.ir import costs
from framefuse.ir.costs import ALIGN
from framefuse.ir.numbers import Symbol, expr

S, T = symbol("s0"), symbol("s1")
HINTS = {Symbol("s0"): 100, Symbol("s1"): 7}


def laid(*lives, hints=HINTS):
    return places([Piece(expr(size), first, last) for size, first, last in lives], hints)


def values_of(found, sizes):
    values = dict(sizes)
    for largest, parts in found.largest:
        values[largest] = max(part.evaluate(values) for part in parts)
    return values


def test_nothing():
    assert laid().size == 0


def test_equal_sizes_share():
    found = laid((S, 0, 1), (S, 1, 2), (S, 2, 3))
    assert found.offsets[0] is found.offsets[2] and found.offsets[0] is not found.offsets[1]
    assert found.size.evaluate({Symbol("s0"): 20}) == 2 * ALIGN


def test_small_pieces_lie_where_a_large_one_was():
    found = laid((256 * S, 0, 1), (64 * S, 2, 5), (64 * S, 2, 3), (128 * S, 4, 5))
    assert found.size == 256 * S and not found.largest


def test_the_recorded_sizes_decide_between_sizes_that_cannot_be_compared():
    found = laid((64 * S, 0, 1), (64 * T, 2, 3), (64 * S, 4, 5))
    assert found.offsets == (expr(0),) * 3
    ((largest, parts),) = found.largest
    assert found.size is largest.expr and set(parts) == {64 * S, 64 * T}


def test_a_piece_lies_on_the_higher_of_two():
    # The third lives with the first two, which do not live with each other.
    found = laid((64 * S, 0, 0), (64 * T, 1, 1), (ALIGN, 0, 1))
    for s, t in ((100, 7), (7, 100), (0, 0)):
        values = values_of(found, {Symbol("s0"): s, Symbol("s1"): t})
        assert found.size.evaluate(values) == ALIGN + 64 * max(s, t)


PIECES = st.lists(
    st.tuples(
        st.sampled_from([expr(3), expr(100), S, 4 * S, 64 * S, S * T, 64 * S * T + S, symbol("u0"), 64 * T]),
        st.integers(0, 12),
        st.integers(0, 5),
    ),
    max_size=14,
)


@given(PIECES, st.integers(0, 200), st.integers(0, 70), st.sampled_from([0, costs.MEETINGS]))
def test_what_lives_together_lies_apart(lives, s, t, limit):
    spans = [(size, first, first + more) for size, first, more in lives]
    with mock.patch.object(costs, "MEETINGS", limit):
        found = laid(*spans)
    values = values_of(found, {Symbol("s0"): s, Symbol("s1"): t, Symbol("u0"): 5})
    starts = [offset.evaluate(values) for offset in found.offsets]
    ends = [start + span[0].evaluate(values) for start, span in zip(starts, spans, strict=True)]
    assert all(start >= 0 and start % ALIGN == 0 for start in starts)
    assert max(ends, default=0) <= found.size.evaluate(values)
    for a, (_, first, last) in enumerate(spans):
        for b, (_, other, until) in enumerate(spans[:a]):
            if first <= until and other <= last:
                assert ends[a] <= starts[b] or ends[b] <= starts[a]


def test_many_that_live_at_once_are_placed_row_by_row():
    lives = [(expr(100), 0, last) for last in range(400)] + [(64 * S, last, last + 1) for last in range(400, 409)]
    found = laid(*lives)
    values = values_of(found, {Symbol("s0"): 1})
    assert found.size.evaluate(values) == 400 * 128
    assert [offset.evaluate(values) for offset in found.offsets[:400]] == [128 * number for number in range(400)]
    assert {offset.evaluate(values) for offset in found.offsets[400:]} == {0, 64}


@given(PIECES)
def test_little_is_lost_at_the_recorded_sizes(lives):
    spans = [(size, first, first + more) for size, first, more in lives]
    found = laid(*spans, hints={**HINTS, Symbol("u0"): 5})
    values = values_of(found, {**HINTS, Symbol("u0"): 5})
    whole = [-(-max(1, size.evaluate(values)) // ALIGN) * ALIGN for size, _, _ in spans]
    most = max(
        (sum(w for w, (_, a, b) in zip(whole, spans, strict=True) if a <= now <= b) for now in range(20)), default=0
    )
    assert found.size.evaluate(values) <= 1.5 * most
