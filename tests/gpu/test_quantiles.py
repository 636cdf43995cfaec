"""Quantiles on a GPU are the library's sort, once for all that are asked of the same rows, and two elements of each."""

import pytest
import torch
from tests.gpu.test_programs import DEVICE, checked, pytestmark  # noqa: F401

import framefuse
from framefuse.ir.schedule import RunCall

ASKED = {
    "rows": lambda x, q: x.quantile(0.3, -1) * 2,
    "all": lambda x, q: x.quantile(0.77) + torch.quantile(x, 1.0),
    "kept": lambda x, q: (x - torch.quantile(x, 0.05, dim=1, keepdim=True)) / x.quantile(0.95, 1, keepdim=True),
    "several": lambda x, q: torch.quantile(x, q, dim=0),
    "several of all": lambda x, q: torch.quantile(x, q, keepdim=True),
    "one that is given": lambda x, q: torch.quantile(x, q[1], -1, keepdim=True).sin(),
    "of what lies turned": lambda x, q: torch.quantile(x.transpose(0, 2) * 2, q, dim=1),
}


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("name", ASKED)
def test_quantiles(name, dtype):
    torch.manual_seed(0)
    asked = ASKED[name]
    fast = framefuse.compile(asked)
    for row in range(5):
        x, q = torch.randn(4 + row, 9, 6, device=DEVICE, dtype=dtype), torch.rand(3, device=DEVICE, dtype=dtype)
        if row == 2:
            x[1, 2, 3] = torch.nan
        if row == 3:
            x[0, 0] = torch.inf
        found, expected = fast(x, q), asked(x, q)
        assert found.stride() == expected.stride()
        torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-6, equal_nan=True)
    for product in checked(fast, 2):
        calls = [item.node.attr("name") for item in product.stages.code.schedule.items if isinstance(item, RunCall)]
        assert calls == ["sort"]


def test_gradients_are_the_librarys():
    fast = framefuse.compile(lambda x: x.quantile(0.4, 1).square())
    for _ in range(4):
        x = torch.randn(5, 8, device=DEVICE, requires_grad=True)
        (found,) = torch.autograd.grad(fast(x).sum(), x)
        (expected,) = torch.autograd.grad(x.quantile(0.4, 1).square().sum(), x)
        torch.testing.assert_close(found, expected)
    checked(fast, 2)
