"""What was recorded on sizes of one is right for all sizes: a stretched dimension and an equal one look alike there."""

import pytest
import torch

import framefuse


def added(x, y):
    return x + y


def normed(x, y):
    return torch.softmax(x * y + y, -1)


def expanded(x, y):
    return x.expand(y.shape[0], -1) * 2 - y


def chosen(x, y):
    return torch.where(x > 0, x, y)


def embedded(x, y):
    table = torch.arange(40.0).view(10, 4)
    return torch.nn.functional.embedding(x.long().abs() % 10, table) + torch.nn.functional.embedding(
        y.long().abs() % 10, table
    )


@pytest.mark.parametrize("function", [added, normed, expanded, chosen, embedded])
def test_equal_sizes_after_ones(function):
    fast = framefuse.compile(function, options={"check": True})
    state = fast.__framefuse__
    for batch in (1, 2, 3, 1):
        x, y = torch.randn(batch, 4) * 5, torch.randn(batch, 4) * 5
        torch.testing.assert_close(fast(x, y), function(x, y))
    assert len(state.products) == 1 and state.dispatch.hits == 3


@pytest.mark.parametrize("function", [added, normed, chosen, embedded])
def test_other_sizes_after_ones(function):
    fast = framefuse.compile(function)
    for left, right in ((1, 1), (1, 3), (3, 1), (3, 3), (1, 3), (1, 1), (2, 2)):
        x, y = torch.randn(left, 4) * 5, torch.randn(right, 4) * 5
        torch.testing.assert_close(fast(x, y), function(x, y))
