"""Custom autograd functions: their forward is part of the trace."""

import pytest
import torch
from torch.autograd import Function

import framefuse

SCALE = {"by": 2.0}


class Scaled(Function):
    @staticmethod
    def forward(ctx, x, power):
        ctx.save_for_backward(x)
        ctx.power = power
        return x * SCALE["by"] ** power

    @staticmethod
    def backward(ctx, g):
        return g, None


class Split(Function):
    @staticmethod
    def forward(x):
        return x + 1, x - 1

    @staticmethod
    def setup_context(ctx, inputs, output):
        ctx.save_for_backward(*output)
        ctx.set_materialize_grads(False)

    @staticmethod
    def backward(ctx, a, b):
        return a + b


class Same(Function):
    @staticmethod
    def forward(ctx, x):
        return x

    @staticmethod
    def backward(ctx, g):
        return g


class Written(Function):
    @staticmethod
    def forward(ctx, x):
        ctx.mark_dirty(x)
        return x.mul_(2)

    @staticmethod
    def backward(ctx, g):
        return g * 2


def scaled(x):
    return Scaled.apply(x, 3) + 1


def split(x):
    a, b = Split.apply(x)
    return a * b


@pytest.mark.parametrize("function", [scaled, split])
def test_forward_is_captured(function):
    fast = framefuse.compile(function)
    with torch.no_grad():
        for size in (3, 4, 1):
            x = torch.randn(size)
            torch.testing.assert_close(fast(x), function(x))
    assert fast.__framefuse__.dispatch.hits == 2, fast.__framefuse__.reasons


def test_what_forward_reads_is_a_fact(monkeypatch):
    fast = framefuse.compile(scaled)
    x = torch.randn(3)
    with torch.no_grad():
        torch.testing.assert_close(fast(x), x * 8 + 1)
        monkeypatch.setitem(SCALE, "by", 3.0)
        torch.testing.assert_close(fast(x), x * 27 + 1)
        monkeypatch.setattr(Scaled, "forward", staticmethod(lambda ctx, x, power: x - power))
        for x in (torch.randn(3), torch.randn(4)):
            torch.testing.assert_close(fast(x), x - 2)


def test_with_gradients_backward_is_the_functions_own():
    fast = framefuse.compile(scaled)
    for _ in range(3):
        x = torch.randn(3, requires_grad=True)
        fast(x).sum().backward()
        torch.testing.assert_close(x.grad, torch.ones(3))  # its own backward


def test_an_operand_that_is_returned():
    fast = framefuse.compile(lambda x: Same.apply(x))
    for _ in range(3):
        x = torch.randn(3)
        with torch.no_grad():
            mine, theirs = fast(x), Same.apply(x)
        assert (mine is x) == (theirs is x) and mine.data_ptr() == x.data_ptr()


def test_an_operand_that_is_written():
    fast = framefuse.compile(lambda x: Written.apply(x))
    for _ in range(3):
        x = torch.randn(3)
        expected = x * 2
        with torch.no_grad():
            mine = fast(x)
        assert mine is x
        torch.testing.assert_close(x, expected)
