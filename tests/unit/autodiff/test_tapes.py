"""Calls without a rule are differentiated by torch as eager would have been."""

import torch
from torch.nn import functional as F

import framefuse
from framefuse.autodiff import tapes


def test_gradients_reach_a_tape_as_eagers_result_lay(monkeypatch):
    """cuDNN's attention remembers a kernel without how the gradient lay for which it was made."""
    projection = torch.nn.Linear(16, 32)
    given = []

    def spy(results, leaves, gradients, **how):
        given.extend(gradients)
        return of_tape(results, leaves, gradients, **how)

    of_tape = tapes._gradients
    monkeypatch.setattr(tapes, "_gradients", spy)

    def attention(x):
        parts = projection(x)
        query = parts[..., :16].unflatten(-1, (4, 4)).transpose(1, 2)
        key, value = (parts[..., at : at + 8].unflatten(-1, (2, 4)).transpose(1, 2) for at in (16, 24))
        return F.scaled_dot_product_attention(query, key, value, enable_gqa=True)

    def run(x):
        return attention(x).transpose(1, 2).reshape(x.shape).exp()

    fast = framefuse.compile(run)
    for number in range(3):
        torch.manual_seed(number)
        x = torch.randn(2, 5, 16, requires_grad=True)
        (ours,) = torch.autograd.grad(fast(x).sin().sum(), x)
        (theirs,) = torch.autograd.grad(run(x).sin().sum(), x)
        torch.testing.assert_close(ours, theirs)
    assert len(given) == 2
    assert all(gradient.stride() == attention(x).stride() for gradient in given)
