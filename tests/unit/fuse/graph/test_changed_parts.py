"""Inputs of which only parts change are written there, at any sizes."""

import pytest
import torch

import framefuse
from framefuse.fuse.graph.changed_parts import with_parts
from framefuse.fuse.graph.joins import with_pieces


def parts(function, *args) -> list[tuple[int, list[str], str] | None]:
    """Of each write: the input with strides and offset of the part, None for one of all."""
    made = framefuse.compile(function)
    made(*args)
    found: list[tuple[int, list[str], str] | None] = []
    for write in with_parts(with_pieces(made.__framefuse__.products[-1].stages.graph)).writes:
        part = write.part
        found.append(None if part is None else (write.input, list(map(str, part.strides)), str(part.offset)))
    return found


def row(x):
    x[2] = 0


def column(x):
    x[:, 3].mul_(2)


def element(x):
    x[2, 3] = 0


def of_all(x):
    x.view(-1)[4:9] = 1


def further(x):
    x[1].mul_(2)
    x[3] = x[2] + x[1]


def rotated(x):
    x[:2], x[2:] = x[-2:].clone(), x[:-2].clone()


def all_rows(x):
    x[:3] = 0
    x[3:] = 1


def every_second(x):
    x[1::2] += 1


def fourth_columns(x):
    x[2:, ::4].mul_(2)


def diagonal(x):
    x.diagonal().add_(1)


def at(x, place):
    x[:, place] = 1


@pytest.mark.parametrize(
    ("function", "args", "expected"),
    [
        (row, (torch.randn(300, 70),), [(0, ["s2", "1"], "2*s2")]),
        (column, (torch.randn(300, 70),), [(0, ["s2", "1"], "3")]),
        (element, (torch.randn(300, 70),), [(0, ["s2", "1"], "3 + 2*s2")]),
        (of_all, (torch.randn(300, 70),), [(0, ["1"], "4")]),
        (at, (torch.randn(300, 70), 5), [(0, ["s3", "1"], "n1")]),
        (further, (torch.randn(6, 7),), [(0, ["s2", "1"], "s2"), (0, ["s2", "1"], "3*s2")]),
        (every_second, (torch.randn(300, 70),), [(0, ["2*s2", "1"], "s2")]),
        (fourth_columns, (torch.randn(300, 70),), [(0, ["s2", "4"], "2*s2")]),
        (diagonal, (torch.randn(70, 70),), [(0, ["1 + s2"], "0")]),
        (rotated, (torch.randn(6, 7),), [None]),
        (all_rows, (torch.randn(6, 700),), [None]),
        (row, (torch.randn(300, 70).t().contiguous().t(),), [(0, ["1", "s1"], "2")]),
    ],
)
def test_the_part_that_changes_is_written(function, args, expected) -> None:
    assert parts(function, *args) == expected


@pytest.mark.parametrize("function", [every_second, fourth_columns, diagonal])
def test_parts_of_elements_that_lie_apart_are_those_of_any_size(function) -> None:
    made = framefuse.compile(function)
    for rows, columns in ((8, 8), (7, 9), (3, 2), (12, 12), (9, 7), (4, 1), (1, 4), (0, 5), (5, 0), (16, 16)):
        x, expected = torch.randn(2, rows, columns)
        expected.copy_(x)
        function(expected)
        made(x)
        assert torch.equal(x, expected), (rows, columns)
    assert made.__framefuse__.dispatch.hits >= 4


def test_an_input_that_keeps_its_contents_counts_the_writes() -> None:
    def same(x):
        x[1] = x[1]

    made = framefuse.compile(same)
    for _ in range(3):
        x = torch.randn(4, 5)
        before = x.clone()
        made(x)
        assert torch.equal(x, before) and x._version == 1
    assert made.__framefuse__.dispatch.hits == 2
