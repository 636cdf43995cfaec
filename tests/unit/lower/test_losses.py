"""Losses and pooling that are made of other functions are kernels alone, with eager's values and gradients."""

import pytest
import torch
import torch.nn.functional as F

import framefuse
from framefuse.api import compiled_function
from framefuse.ir.schedule import RunCall

ROWS = torch.randint(0, 5, (30,), generator=torch.Generator().manual_seed(0))
SIGNS = torch.randn(30, 1, generator=torch.Generator().manual_seed(0)).sign().double()


@pytest.mark.parametrize("reduction", ["mean", "sum", "none"])
@pytest.mark.parametrize(
    "loss",
    [
        lambda x, how: F.soft_margin_loss(x, torch.sign(x.detach() - 0.5), reduction=how),
        lambda x, how: F.poisson_nll_loss(x.exp(), x.detach().abs(), log_input=False, reduction=how),
        lambda x, how: F.cross_entropy(x, ROWS, label_smoothing=0.3, ignore_index=3, reduction=how),
        lambda x, how: F.margin_ranking_loss(x, x.flip(0), SIGNS.expand(30, 5), 0.1, reduction=how),
        lambda x, how: F.hinge_embedding_loss(x, SIGNS, 0.7, reduction=how),
        lambda x, how: F.cosine_embedding_loss(x, x.roll(1, 0) * 2, SIGNS[:, 0], 0.1, reduction=how),
        lambda x, how: F.hinge_embedding_loss(x, SIGNS > 0, 0.7, reduction=how),
        lambda x, how: F.cosine_embedding_loss(x, x.roll(1, 0) * 2, SIGNS[:, 0] > 0, 0.1, reduction=how),
        lambda x, how: F.multilabel_soft_margin_loss(x, (SIGNS > 0).double().expand(30, 5), reduction=how),
        lambda x, how: F.gaussian_nll_loss(x, x.flip(0).detach(), x.square() / 4, eps=0.05, reduction=how),
        lambda x, how: F.gaussian_nll_loss(x.exp(), x * 3, x.abs(), full=True, reduction=how),
        lambda x, how: F.binary_cross_entropy(x.sigmoid(), (x * 2).sigmoid(), reduction=how),
        lambda x, how: F.binary_cross_entropy(x.sigmoid(), x.detach().sigmoid(), x.detach()[0].abs(), reduction=how),
        lambda x, how: F.binary_cross_entropy((x * 2).clamp(0, 1), (x > 0.1).double(), reduction=how) * 1e-9,
    ],
    ids=[
        "soft margin",
        "poisson",
        "smoothed labels",
        "ranking",
        "hinge",
        "cosine",
        "hinge of bools",
        "cosine of bools",
        "labels",
        "normal",
        "whole normal",
        "entropy",
        "weighted entropy",
        "entropy of certain ones",
    ],
)
def test_losses(loss, reduction):
    check(lambda x: loss(x, reduction), (30, 5))


@pytest.mark.parametrize("reduction", ["mean", "sum", "none"])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
def test_the_normal_loss_of_16_bits_rounds_where_eager_does(dtype, reduction):
    """The smallest variance too is a number of 16 bits on a CPU; it was a call of torch's function, on its tape."""

    def function(x, y, variance):
        return F.gaussian_nll_loss(x, y, variance, full=True, eps=0.13, reduction=reduction)

    fast = framefuse.compile(function, options={"numerics": "eager"})
    for _ in range(3):
        given = [make(32, 64).to(dtype).T.requires_grad_() for make in (torch.randn, torch.randn, torch.rand)]
        given[2].detach()[:3] = 0
        found, expected = fast(*given), function(*given)
        assert torch.equal(found, expected)
        assert found.stride() == expected.stride()
        wide = [x.detach().double().requires_grad_() for x in given]
        gradients = [torch.autograd.grad(loss.sum(), given) for loss in (found, expected)]
        for ours, eager, exact in zip(*gradients, torch.autograd.grad(function(*wide).sum(), wide), strict=True):
            assert (ours - exact).abs().max() <= 1.5 * (eager - exact).abs().max()
    assert fast.hits == 2
    (product,) = compiled_function(fast).products
    assert not any(isinstance(item, RunCall) for item in product.stages.code.schedule.items)


def test_products_that_sum_nothing():
    check(lambda x: torch.kron(x, x[:2, 1:]) + torch.kron(x[0], x[:, :2])[:1], (3, 3))
    check(lambda x: torch.einsum("bi,bj->jib", x, x + 1), (3, 4))
    check(lambda x: torch.norm(x, p=3, dim=-1), (3, 4))


def test_pooling_of_powers():
    check(lambda x: F.lp_pool2d(x.abs() + 0.1, 2, 3, 2), (2, 3, 9, 10))


@pytest.mark.parametrize("swap", [False, True])
def test_triplets_by_a_distance_of_the_users(swap):
    def distance(one, other):
        return 1 - F.cosine_similarity(one, other)

    triplet = torch.nn.TripletMarginWithDistanceLoss(distance_function=distance, margin=0.5, swap=swap)
    check(lambda x: triplet(x, x.flip(0), x.roll(1, 0).detach()), (6, 5))


def check(function, shape):
    fast = framefuse.compile(function)
    for _ in range(3):
        x = torch.randn(shape, dtype=torch.float64)
        found, expected = ((f(y), y) for f, y in ((fast, x.clone().requires_grad_()), (function, x.requires_grad_())))
        for result, _ in (found, expected):
            result.sin().sum().backward()
        torch.testing.assert_close(found[0], expected[0])
        torch.testing.assert_close(found[1].grad, expected[1].grad)
    (product,) = compiled_function(fast).products
    assert not any(isinstance(item, RunCall) for item in product.stages.code.schedule.items)
