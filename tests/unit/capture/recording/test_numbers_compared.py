"""Tuples of numbers that move, compared with sizes, are compared part by part: nothing compiles anew for each value."""

import pytest
import torch

import framefuse


class Held:
    def __init__(self, rows):
        self.shape, self.pair, self.nested = torch.Size([rows, 4]), (rows, 4), ((rows, 4), rows)


@pytest.mark.parametrize(
    "test",
    [
        lambda held, x: held.shape == x.shape,
        lambda held, x: x.shape == held.shape,
        lambda held, x: held.shape != x.shape,
        lambda held, x: held.pair == tuple(x.shape),
        lambda held, x: held.pair == x.shape,
        lambda held, x: held.nested == (x.shape, len(x)),
    ],
)
def test_one_trace_for_each_outcome(test):
    def f(held, x):
        return x * 2 if test(held, x) else x + 3

    compiled = framefuse.compile(f)
    for rows, others in ((4, 4), (6, 6), (5, 5), (9, 9), (7, 7), (7, 6), (5, 8), (3, 2), (8, 8)):
        held, x = Held(rows), torch.randn(others, 4)
        torch.testing.assert_close(compiled(held, x), f(held, x))
    assert len(framefuse.explain(compiled).graphs) <= 5
