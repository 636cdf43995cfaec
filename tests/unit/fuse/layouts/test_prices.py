"""Labels cost the least of all, by the same prices under which others are compared."""

import itertools

from hypothesis import given, settings
from hypothesis import strategies as st

from framefuse.fuse.layouts.prices import Prices
from framefuse.ir.flow import SINK, SOURCE


@st.composite
def prices(draw):
    """A few free vertices with prices of all kinds."""
    made = Prices()
    free = [made.vertex() for _ in range(draw(st.integers(1, 6)))]
    every, price = st.sampled_from([SOURCE, SINK, *free]), st.integers(0, 20)
    for vertex, zero, one in draw(st.lists(st.tuples(st.sampled_from(free), price, price), max_size=6)):
        made.charge(vertex, zero, one)
    for one, other, each in draw(st.lists(st.tuples(every, every, price), max_size=8)):
        made.join(one, other, each)
    for name, (vertex, readers, each) in enumerate(
        draw(st.lists(st.tuples(every, st.lists(every, min_size=1, max_size=3), price), max_size=6))
    ):
        for reader in readers:
            made.read(name, vertex, reader, each)
    return made


@given(prices())
@settings(max_examples=400, deadline=None)
def test_no_labels_cost_less(made):
    found = made.least()
    assert len(found) == made.count and not found[SOURCE] and found[SINK]
    for free in itertools.product((0, 1), repeat=made.count - 2):
        labels = (0, 1, *free)
        assert made.total(found) <= made.total(labels)
        if made.total(found) == made.total(labels):  # nothing is turned without a gain
            assert all(other or not mine for mine, other in zip(found, labels, strict=True))


def test_a_copy_is_paid_once_for_all_of_its_readers():
    made = Prices()
    value, readers = made.vertex(), [made.vertex() for _ in range(3)]
    made.charge(value, 0, 100)
    for reader in readers:
        made.charge(reader, 5, 0)
        made.read("x", value, reader, 12)
    assert list(made.least()) == [0, 1, 0, 1, 1, 1] and made.total(made.least()) == 12
    made.copies["x"].price = 16
    assert list(made.least()) == [0, 1, 0, 0, 0, 0] and made.total(made.least()) == 15
