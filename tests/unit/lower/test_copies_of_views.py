"""Parts of a copy of a view are written as parts of any tensor are: one graph, with eager's contents and gradients."""

from __future__ import annotations

import pytest
import torch

import framefuse
from framefuse.api import compiled_function


def boxes(x):
    y = x[:, :4].clone()
    y[:, 2:] += y[:, :2]
    y[:, :2].sub_(1)
    return y


def turned(x):
    y = x.t().clone()
    y.t().mul_(2)
    y[1:].add_(1)
    return y + x.t()


def reshaped(x):
    y = x.reshape(-1, 5).clone()
    y.view(-1)[3:].mul_(2)
    return y * 1


def expanded(x):
    y = x[:, :4].expand(2, -1, -1).clone()
    y[0, 1:].mul_(3)
    y[1, :, 2:] -= 1
    return y.sum(0)


def filled(x):
    nope, rest = x.split([6, 4], -1)
    y = x.new_empty(x.shape[0], 6)
    y[..., :6].copy_(nope)
    y[..., 2:].mul_(rest)
    y[0].add_(1)
    return y * 1


def twice(x):
    y, z = x[:, 1:5].clone(), x[:, 1:5].clone()
    y[:, 1:].mul_(2)
    z[:, 1:].mul_(3)
    y.copy_(x[:, 4:8])
    y[:, 2:].mul_(z[:, :2])
    return y + z


def positions(x):
    y = (x * 10).long()[:, 1:5].clone()
    y[:, :2] += y[:, 2:]
    mask = (x[:, :4] > 0).clone()
    mask[:, 2:] |= mask[:, :2]
    return y * mask


FUNCTIONS = [boxes, turned, reshaped, expanded, filled, twice, positions]


@pytest.mark.parametrize("gradients", [False, True])
@pytest.mark.parametrize("function", FUNCTIONS, ids=lambda function: function.__name__)
def test_one_graph(function, gradients):
    compiled = framefuse.compile(function)
    for turn in range(4):
        drawn = torch.randn(4 + turn, 10, generator=torch.Generator().manual_seed(turn))
        mine, other = (drawn.clone().requires_grad_(gradients) for _ in range(2))
        found, expected = compiled(mine), function(other)
        torch.testing.assert_close(found, expected, check_stride=True)
        assert found.requires_grad is expected.requires_grad
        if found.requires_grad:
            found.square().sum().backward(), expected.square().sum().backward()
            torch.testing.assert_close(mine.grad, other.grad)
    state = compiled_function(compiled)
    assert (len(state.products), state.dispatch.hits) == (1, 3)
    assert not state.resume_dispatches


def test_a_part_without_elements_is_written():
    layer = torch.nn.Linear(4, 5)

    def program(x):
        k = layer(x)
        y = k.new_empty(*k.shape[:-1], 5)
        y[..., :5].copy_(k[..., :5])
        tail = y[..., 5:]
        tail.copy_(k[..., 5:])
        y.mul_(2)
        return y, tail + 1

    compiled = framefuse.compile(program)
    for turn in range(4):
        x = torch.randn(2 + turn, 4)
        with torch.no_grad():
            torch.testing.assert_close(compiled(x), program(x))
    assert (len(compiled_function(compiled).products), compiled.hits) == (1, 3)
