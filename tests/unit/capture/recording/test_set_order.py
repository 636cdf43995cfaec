"""Sets that are made in a call iterate in eager's order behind a break and as results, or the call stays eager."""

import pytest
import torch

import framefuse
from framefuse.capture.recording.set_order import insertion_order

TABLE = 8  # places of a small set: these ints collide where they are equal modulo it


@pytest.mark.parametrize(
    "members",
    [[0, TABLE], [TABLE, 0], [1, 9, 17], [17, 1, 9, 2], [3, 1, 2], [], ["a", "b", "c"], [TABLE, 0, 16, 24, 1]],
)
def test_a_new_set_iterates_as_the_given_one(members):
    order = insertion_order(set(members))
    assert order is not None and list(set(order)) == list(set(members))


def test_a_set_that_has_shrunk_may_have_no_such_order():
    members = set(range(0, 400, 7))
    for number in list(members)[: len(members) - 3]:
        members.discard(number)
    order = insertion_order(members)
    assert order is None or list(set(order)) == list(members)


def test_members_that_are_hashed_by_address_are_taken_as_they_come():
    members = {object(), object()}
    order = insertion_order(members)
    assert order is not None and list(set(order)) == list(members)


def collided(x, first, second):
    names = {first, second}
    for number in names:
        if x.sum() > 0:
            x = x * 2 - number
        else:
            x = x * 3 + number
    return x, names


@pytest.mark.parametrize("pair", [(0, TABLE), (TABLE, 0), (16, 0)])
def test_a_loop_over_a_set_goes_on_behind_a_break(pair):
    compiled = framefuse.compile(collided)
    for start in (1.0, 1.0, -1.0, 1.0, -9.0, -9.0):
        x = torch.full((2,), start)
        found, expected = compiled(x, *pair), collided(x, *pair)
        assert torch.equal(found[0], expected[0]) and list(found[1]) == list(expected[1])
    assert compiled.hits >= 1
