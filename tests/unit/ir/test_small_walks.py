"""A tape of few nodes is walked by calling them; what the engine has to mend or to choose goes to the engine."""

import pytest
import torch
from torch.nn import functional as F

from framefuse.ir.small_walks import chain_walked

INDEX = torch.tensor([[0, 2, 1], [1, 1, 0]])


class Doubled(torch.autograd.Function):
    """A node of Python."""

    @staticmethod
    def forward(ctx, x):
        return x * 2

    @staticmethod
    def backward(ctx, g):
        return g * 2


def leaf(*shape, dtype=torch.float64):
    return torch.randn(*shape, dtype=dtype).requires_grad_()


TAPES = {
    "one node": (lambda x: x.logcumsumexp(-1), 1, True),
    "one leaf twice": (lambda x: x.scatter_add(-1, INDEX, x), 1, True),
    "three nodes": (lambda x: F.adaptive_max_pool1d(x, 2), 1, True),
    "two leaves": (lambda x, y: F.binary_cross_entropy(x.sigmoid(), y, reduction="none"), 2, True),
    "one of two results": (lambda x: torch.std_mean(x, -1, keepdim=True)[1], 1, True),
    "a broadcast leaf, whose gradient is summed": (lambda x, y: torch.atan2(x, y[:, :1]), 2, False),
    "Python": (Doubled.apply, 1, False),
    "more nodes than a small tape has": (lambda x: x.sin().cos().sin().cos().sin(), 1, False),
}


@pytest.mark.parametrize("name", TAPES)
def test_gradients_are_those_of_the_engine(name):
    program, count, walks = TAPES[name]
    leaves = [leaf(2, 3) for _ in range(count)]
    if name.startswith("two"):
        leaves[1] = torch.rand(2, 3, dtype=torch.float64).requires_grad_()
    result = program(*leaves)
    g = torch.randn_like(result)
    with torch.no_grad():
        found = chain_walked((result,), leaves, (g,))
    assert (found is not None) is walks
    if found is not None:
        expected = torch.autograd.grad(result, leaves, g)
        for ours, theirs in zip(found, expected, strict=True):
            assert torch.equal(ours, theirs)


def test_both_results_of_one_node():
    x = leaf(2, 3)
    results = torch.std_mean(x, -1)
    given = [torch.randn(2, dtype=torch.float64) for _ in results]
    with torch.no_grad():
        (found,) = chain_walked(results, (x,), given)
    assert torch.equal(found, torch.autograd.grad(results, x, given)[0])


def test_a_leaf_that_is_not_asked_for_costs_nothing():
    x, y = leaf(2, 3), leaf(2, 3)
    result = torch.atan2(x, y)
    with torch.no_grad():
        assert chain_walked((result,), (x,), (torch.ones_like(result),)) is None
    assert chain_walked((result,), (x, y), (torch.ones_like(result),)) is None  # gradients to be differentiated
