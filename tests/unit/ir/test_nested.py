"""Walks over nested arguments: other leaves in containers of the same kinds, and what stands in them."""

import collections

import pytest
import torch

from framefuse.ir.nested import leaves, mapped, symbols_in
from framefuse.ir.numbers import Symbol

N = Symbol("n")


def doubled(value):
    return value * 2 if type(value) is int else value


def test_containers_keep_their_kinds_and_keys():
    value = (1, [2, {"a": 3, 4: (5,)}], slice(6, None, 7), "x", None)
    assert mapped(value, doubled) == (2, [4, {"a": 6, 4: (10,)}], slice(12, None, 14), "x", None)


@pytest.mark.parametrize("value", [(1, [2.0, {"a": None}]), [], {"k": slice(0, 1, None)}, slice(0, 3, 1), "text"])
def test_what_does_not_change_is_the_same_object(value):
    assert mapped(value, lambda leaf: leaf) is value


def test_a_changed_part_leaves_its_neighbours_alone():
    kept, value = [1.5], [2]
    result = mapped((kept, value), doubled)
    assert result == ([1.5], [4])
    assert result[0] is kept
    assert value == [2]


def test_sizes_and_named_tuples_are_leaves_to_change_and_walked_to_look():
    pair = collections.namedtuple("pair", "x y")(1, [2])
    met = []
    mapped((pair, torch.Size((3, 4))), lambda leaf: met.append(leaf) or leaf)
    assert met == [pair, torch.Size((3, 4))]
    assert list(leaves((pair, torch.Size((3, 4)), {"k": slice(5, 6)}))) == [1, 2, 3, 4, 5, 6, None]


def test_symbols_are_found_in_containers_of_all_kinds():
    assert symbols_in([slice(0, N.expr * 2), {"k": (1, "s")}]) == {N}
    assert symbols_in(({"k": 1}, [2.0, None])) == set()
