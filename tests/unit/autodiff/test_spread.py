"""Large gradients that repeat what came are views of it, as under eager; small ones are tensors of their own."""

import pytest
import torch

import framefuse

SUMS = {
    "all": lambda x: x.sum(),
    "first": lambda x: x.sum(0),
    "middle": lambda x: x.sum(1, keepdim=True),
    "last": lambda x: x.sum(-1),
    "two": lambda x: x.sum((0, 2)),
    "narrow": lambda x: x.sum(1).sin(),
    "scaled": lambda x: x.sum(1) * 2,
    "twice": lambda x: x.sum(0) + x.sum(1).sum(0),
    "expanded": lambda x: x.sum(1, keepdim=True).expand(-1, 3, -1),
}


@pytest.mark.parametrize("name", SUMS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_gradients_of_sums_are_views(name, dtype):
    function = SUMS[name]
    fast = framefuse.compile(function)
    for shape in ((16, 64, 64), (16, 64, 64), (17, 64, 96), (3, 4, 5)):  # the first that comes decides
        torch.manual_seed(shape[0])
        x = torch.randn(shape, dtype=dtype, requires_grad=True)
        expected = function(x)
        g = torch.randn_like(expected)
        (theirs,) = torch.autograd.grad(expected, x, g)
        for came in (g, g.t().contiguous().t() if g.dim() == 2 else g):
            (ours,) = torch.autograd.grad(fast(x), x, came)
            torch.testing.assert_close(ours, theirs)
            if name in ("all", "first", "middle", "last", "two"):
                assert ours.untyped_storage().data_ptr() == came.untyped_storage().data_ptr()
        fast(x).backward(g)
        assert x.grad.is_contiguous()
        torch.testing.assert_close(x.grad, theirs)
    assert framefuse.explain(fast).hits >= 8


def test_small_gradients_are_written():
    fast = framefuse.compile(lambda x: x.sum(0))
    for number in range(3):
        x, g = torch.randn(8, 5, requires_grad=True), torch.randn(5)
        (ours,) = torch.autograd.grad(fast(x), x, g)
        assert ours.is_contiguous() == (number > 0) and torch.equal(ours, g.expand(8, 5))
    assert framefuse.explain(fast).hits >= 1


def test_views_of_gradients_go_on():
    """A gradient that is a view comes to another compiled function, and to second gradients."""
    inner, outer = framefuse.compile(lambda x: x.sin() * 2), framefuse.compile(lambda y: y.sum(0))
    for number in range(3):
        torch.manual_seed(number)
        x = torch.randn(64, 2048, requires_grad=True)
        g = torch.randn(2048, requires_grad=True)
        (first,) = torch.autograd.grad(outer(inner(x)), x, g, create_graph=True)
        second = torch.autograd.grad(first.square().sum(), (x, g))
        (expected,) = torch.autograd.grad((x.sin() * 2).sum(0), x, g, create_graph=True)
        torch.testing.assert_close(first, expected)
        torch.testing.assert_close(second, torch.autograd.grad(expected.square().sum(), (x, g)))
        (plain,) = torch.autograd.grad(outer(inner(x)), x, g.detach())
        torch.testing.assert_close(plain, expected.detach())
    assert framefuse.explain(outer).hits and framefuse.explain(inner).hits
