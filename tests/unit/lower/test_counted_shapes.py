"""Of what a call gives whose sizes depend on data, only the size that does is a number of the run."""

from __future__ import annotations

import pytest
import torch

import framefuse
from framefuse.api import compiled_function

PROGRAMS = {}


def program(function):
    PROGRAMS[function.__name__] = function
    return function


@program
def read_by_one_mask_twice(x, rows, places):
    return ((x[places] - (x * 2)[places]) ** 2).sum()


@program
def columns(x, rows, places):
    return x.T[:, rows].permute(1, 0) * 2


@program
def halves_of_what_a_mask_reads(x, rows, places):
    left, right = x[rows].view(-1, 2, x.shape[1] // 2).unbind(1)
    return left * right


@program
def a_size_that_is_inferred(x, rows, places):
    wide = x.T[:, rows]
    left, right = wide.reshape(wide.shape[0] // 2, -1, 2).permute(2, 1, 0).unbind(0)
    return left - right


@program
def positions_as_columns(x, rows, places):
    row, column = torch.nonzero(places).unbind(1)
    return x[row, column] * (row + column)


@program
def positions_as_lines(x, rows, places):
    row, column = torch.where(places)
    return x[row, column] * row - column


@program
def as_often_as_a_tensor_says(x, rows, places):
    wide = x[:1].repeat(2, rows.sum() + 1, 1)
    left, right = wide.unflatten(-1, (-1, 2)).unbind(-1)
    if wide.shape[0] == 2 and wide.shape[-1] % 2 == 0:
        left = left + 1
    return left * right


@program
def a_mask_among_others(x, rows, places):
    return x[rows, 0] + x[..., 0][rows], x[None, rows], x[rows][:, None], x[None, ..., places]


@program
def a_dimension_behind_is_asked(x, rows, places):
    found = (x * 2)[rows] + 1
    return found * 3 if found.shape[1] == x.shape[1] and found.ndim == 2 else found


@program
def classes_and_where_they_stand(x, rows, places):
    classes, place = torch.unique((x * 2).long(), return_inverse=True)
    return classes[place] * 2


@pytest.mark.parametrize("name", PROGRAMS)
def test_one_graph_computes_it(name):
    function = PROGRAMS[name]
    fast = framefuse.compile(function)
    for size, chance in ((7, 0.5), (9, 0.7), (5, 0.2), (12, 1.0), (6, 0.0), (1, 0.5)):
        x = torch.randn(size, 6, dtype=torch.float64)  # the sine of a large sum takes all digits of 32 bits
        rows, places = torch.rand(size) < chance, torch.rand(size, 6) < chance
        mine, other = (x.clone().requires_grad_() for _ in range(2))
        outcomes = [function(mine, rows, places), fast(other, rows, places)]
        torch.testing.assert_close(outcomes[1], outcomes[0])
        for outcome in outcomes:
            first = outcome[0] if isinstance(outcome, tuple) else outcome
            if first.requires_grad:
                first.sin().sum().backward()
        torch.testing.assert_close(other.grad, mine.grad)
    assert compiled_function(fast).dispatch.hits >= 3
    assert str(framefuse.explain(fast)).count("break") == 0


def test_a_branch_on_the_size_that_depends_on_data_is_a_cut():
    def program(x):
        found = (x * 2)[x > 0] + 1
        return found.sum() if found.shape[0] > 3 else found.sum() * 2

    fast = framefuse.compile(program)
    for size in (7, 9, 2, 12, 3):
        x = torch.randn(size)
        torch.testing.assert_close(fast(x), program(x))
    assert compiled_function(fast).dispatch.hits >= 2
    assert "break" in str(framefuse.explain(fast))
