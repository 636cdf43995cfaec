"""A break knows whether its step asks for gradients, by whatever name the program calls it."""

import functools

import pytest
import torch

import framefuse
from framefuse.capture.program.breaks import Break

X = torch.ones(2, requires_grad=True) * 1


@pytest.mark.parametrize(
    ("target", "asks"),
    [
        (torch.autograd.grad, True),
        (functools.partial(functools.partial(torch.autograd.grad, create_graph=True), allow_unused=True), True),
        (X.register_hook, True),
        (torch.Tensor.register_hook, True),
        (X.retain_grad, True),
        (torch.Tensor.retain_grad, True),
        (torch.nn.Module().zero_grad, False),
        (X.tolist, False),
        (print, False),
        (None, False),
    ],
)
def test_a_step_that_asks(target, asks):
    assert Break(target, (), {}, None, "native-call", "").asks is asks


def test_a_view_of_written_memory_is_asked_by_another_name():
    ask = functools.partial(torch.autograd.grad, create_graph=True)

    def f(x):
        x = x * 2
        t = x[:, :1]
        t.mul_(3)
        u = (t * x).sin()
        return ask(u.sum(), t)[0]

    fast = framefuse.compile(f)
    for number in range(4):
        x = torch.rand(3, 2 + number, requires_grad=True)
        torch.testing.assert_close(fast(x), f(x))
