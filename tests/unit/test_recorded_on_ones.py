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


@pytest.mark.parametrize("first", [(1, 1), (1, 4), (4, 1)])
@pytest.mark.parametrize(
    "function",
    [
        lambda x: (x * 2).t()[::2].clone(),
        lambda x: x.mT + torch.ones(x.shape[-1], 1),
        lambda x: (x.t() * 2).exp(),
        lambda x: torch.cat([x, x]).unsqueeze(0).permute(2, 0, 1) * 2,
    ],
)
def test_turned_tensors_lie_as_eagers_after_ones(function, first):
    fast = framefuse.compile(function)
    for sizes in (first, (4, 6), (5, 3), (6, 4)):
        x = torch.randn(sizes)
        found, expected = fast(x), function(x)
        torch.testing.assert_close(found, expected)
        assert found.stride() == expected.stride()
    state = fast.__framefuse__
    assert state.dispatch.hits >= 2 and len(state.products) <= 2
