"""The gradient of a convolution's bias may be a sum of kernels, beside the library's call or without one."""

import pytest
import torch
from torch import nn

import framefuse
from framefuse.autodiff.rules import convolution


@pytest.mark.parametrize("frozen", [(), ("weight",), ("weight", "input")], ids=str)
@pytest.mark.parametrize(
    ("make", "shape"),
    [
        (lambda: nn.Conv2d(3, 4, 3), (2, 3, 6, 7)),
        (lambda: nn.ConvTranspose1d(3, 4, 3, 2), (3, 6)),
    ],
    ids=["pictures", "one sample"],
)
def test_a_bias_is_summed_by_kernels(make, shape, frozen, monkeypatch):
    monkeypatch.setattr(convolution, "BIAS_APART", {})
    module = make()
    module.weight.requires_grad_("weight" not in frozen)
    fast = framefuse.compile(module)
    for _ in range(3):
        x = torch.randn(shape).requires_grad_("input" not in frozen)
        wanted = [each for each in (x, *module.parameters()) if each.requires_grad]
        found, expected = (torch.autograd.grad(f(x).sin().sum(), wanted) for f in (fast, module))
        for one, other in zip(found, expected, strict=True):
            assert one.stride() == other.stride()
            torch.testing.assert_close(one, other, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("make", [lambda: nn.Conv1d(3, 4, 3, padding="same"), lambda: nn.ConvTranspose1d(3, 4, 3)])
def test_the_gradient_of_a_bias_leads_to_what_eagers_does(make, monkeypatch):
    """Eager's node gives all gradients: where one of them can be differentiated again, all can."""
    monkeypatch.setattr(convolution, "BIAS_APART", {})
    module = make()
    fast = framefuse.compile(module)
    for _ in range(3):
        x = torch.randn(2, 3, 6)
        weights = torch.randn(module(x).shape)
        found = []
        for f in (fast, module):
            for loss in ((f(x) * weights).sum(), f(x).square().sum()):
                (slope,) = torch.autograd.grad(loss, [module.bias], create_graph=True)
                assert slope.requires_grad
                found.append(torch.autograd.grad(slope.square().sum(), [module.weight], allow_unused=True)[0])
        assert found[0] is None and found[2] is None
        torch.testing.assert_close(found[1], found[3])
