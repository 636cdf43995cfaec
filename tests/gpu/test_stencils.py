"""Depthwise convolutions of series by short windows are kernels, fused with what is around, if nothing is trained."""

import pytest
import torch
from tests.gpu.test_programs import DEVICE, checked, close, pytestmark  # noqa: F401
from torch import nn
from torch.nn import functional as F

import framefuse
from framefuse.ir.schedule import RunCall, RunKernel

FORMS = {
    "causal": ({"kernel_size": 4, "padding": 3}, lambda y, t: F.silu(y[..., :t])),
    "same": ({"kernel_size": 4, "padding": "same", "bias": False}, lambda y, t: y),
    "spread": ({"kernel_size": 3, "padding": 2, "dilation": 3, "stride": 2}, lambda y, t: y.tanh()),
    "point": ({"kernel_size": 1}, lambda y, t: y),
    "valid": ({"kernel_size": 5, "padding": "valid"}, lambda y, t: y.transpose(1, 2).sigmoid()),
}


class Causal(nn.Module):
    """Of texts whose channels lie side by side."""

    def __init__(self):
        super().__init__()
        self.conv = nn.Conv1d(12, 12, 4, groups=12, padding=3)

    def forward(self, x):
        return F.silu(self.conv(x.transpose(1, 2))[..., : x.shape[1]]).transpose(1, 2)


def run(module, series, dtype):
    fast = framefuse.compile(module)
    with torch.no_grad():
        for row in range(4):
            x = series(row // 2).to(DEVICE, dtype)
            # In float64, where a CPU's own kernels round 16 bits after each product.
            exact = module.double()(x.double()).to(dtype)
            module.to(dtype)
            found = fast(x)
            assert found.stride() == exact.stride()
            if row:
                close(found, exact, 4)
    for product in checked(fast, 2):
        items = product.stages.code.schedule.items
        assert sum(isinstance(item, RunKernel) for item in items) == 1
        assert not any(isinstance(item, RunCall) for item in items)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("name", FORMS)
def test_depthwise_convolutions_of_series(name, dtype):
    how, behind = FORMS[name]
    torch.manual_seed(0)

    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.conv = nn.Conv1d(6, 6, groups=6, **how)

        def forward(self, x):
            return behind(self.conv(x), x.shape[-1])

    run(Net().to(DEVICE, dtype), lambda more: torch.randn(2 + more, 6, 33 + more), dtype)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_channels_side_by_side(dtype):
    torch.manual_seed(0)
    run(Causal().to(DEVICE, dtype), lambda more: torch.randn(2, 40 + more, 12), dtype)


def test_what_is_trained_is_the_librarys():
    torch.manual_seed(0)
    module = Causal().to(DEVICE)
    fast = framefuse.compile(module)
    for row in range(4):
        x = torch.randn(2, 40 + row, 12, device=DEVICE)
        sums = []
        for each in (module, fast):
            module.zero_grad()
            each(x).square().sum().backward()
            sums.append(module.conv.weight.grad.clone())
        torch.testing.assert_close(sums[1], sums[0], rtol=1e-3, atol=1e-3)
    for product in checked(fast, 2):
        assert any(isinstance(item, RunCall) for item in product.stages.code.schedule.items)
