"""Tensors that are given other data (``weight.data = ...``), as averages of weights do it: a write like any other."""

from __future__ import annotations

import copy

import torch
from tests.traps.trap import Table, Trap, hold
from torch import nn

TABLE = Table()
trap = TABLE.trap


def batches():
    return (torch.randn(3 + number % 2, 4) for number in range(8))


@trap(traces=1, hits=6)
def a_target_net_that_follows(compiled):
    net = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 4))
    target = copy.deepcopy(net)
    optimizer = torch.optim.SGD(net.parameters(), 0.01)

    @compiled
    def loss_of(x):
        with torch.no_grad():
            for own, followed in zip(target.parameters(), net.parameters(), strict=True):
                own.data = own.data * 0.9 + followed.data * 0.1
            wanted = target(x)
        return (net(x) - wanted).square().mean()

    for x in batches():
        loss = loss_of(x)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        yield loss, [weight.detach().clone() for weight in target.parameters()]


@trap(traces=1, hits=6)
def weights_that_are_clipped_behind_their_use(compiled):
    weight = nn.Parameter(torch.randn(4))
    before, view = weight.data, weight.detach()

    @compiled
    def f(x):
        y = (weight * x).sum()
        weight.data = weight.data.clamp(-0.5, 0.5) + 0.1 * x[0]
        return y, view + 1

    for x in batches():
        y, seen = f(x)
        y.backward()
        yield y, seen, weight.detach().clone(), weight.grad.clone(), before.clone()


@trap(traces=1, hits=6)
def two_weights_that_change_their_places(compiled):
    one, two = nn.Parameter(torch.randn(4)), nn.Parameter(torch.randn(4))

    @compiled
    def f(x):
        kept = one.data * 1.0
        one.data = two.data + 0.0
        two.data = kept
        return kept.mul_(2) + x

    for x in batches():
        yield f(x), one.detach().clone(), two.detach().clone()


@trap(traces=2, hits=6)
def steps_by_hand_between_backwards(compiled):
    weight = nn.Parameter(torch.randn(4))

    @compiled
    def f(x):
        weight.data = weight.data * 0.9 + x[0]
        y = (weight * x).sum()
        y.backward()
        weight.data = weight.data - 0.1 * weight.grad
        weight.grad.zero_()
        return y.detach()

    for x in batches():
        yield f(x), weight.detach().clone(), weight.grad.clone()


@trap(traces=2, hits=6)
def data_that_lies_in_another_way(compiled):
    weight = nn.Parameter(torch.randn(4, 4))

    @compiled
    def f(x):
        weight.data = x[:1].expand(4, 4).t() * 2
        return x + 1

    for x in batches():
        yield f(x), weight.detach().clone(), weight.stride()


@trap(traces=2, hits=5)
def data_of_views(compiled):
    @compiled
    def f(x, y):
        with torch.no_grad():
            y.sub_(1)
        y.data = x * 3
        return x * 2

    for x in batches():
        base = torch.randn(3, 4, requires_grad=True) * 1
        part = base[1]
        yield f(x[0], part), part.detach().clone(), base.detach().clone(), part.is_leaf


@trap(traces=3, hits=4)
def data_of_what_a_view_wrote(compiled):
    @compiled
    def f(x, y):
        view = x.view_as(x)
        view.mul_(2)
        x.data = y
        return view * 3

    for number in range(6):
        leaf = torch.randn(2, 3, requires_grad=True)
        x, y = leaf * 1, torch.randn(3, 2 + number % 2)[:, :2].t()
        result = f(x, y)
        (result.sin().sum() + x.sin().sum()).backward()
        yield result, x, leaf.grad


@trap(traces=3, hits=4)
def memory_replaced_in_inference_mode(compiled):
    @compiled
    def f(x, y):
        with torch.inference_mode():
            y.set_(x)
        return y * 2

    for number in range(6):
        x, y = torch.randn(2 + number % 2, 3), torch.randn(3, 2)
        yield f(x, y), y, y.data_ptr() == x.data_ptr(), y._version


@trap(traces=4, hits=3)
def a_view_of_what_requires_a_gradient_is_written_without(compiled):
    @compiled
    def f(x):
        x.requires_grad_()
        view = x.unsqueeze(0)
        alias = view.detach()
        view.copy_((x * 2 + 2).sum())
        return alias

    with torch.no_grad():
        for number in range(6):
            x = torch.arange(2.0 + number % 2).view(1, -1)
            yield f(x), x


@TABLE.parametrize()
def test_programs_match_eager(trap: Trap) -> None:
    hold(trap)
