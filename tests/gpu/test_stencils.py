"""Depthwise convolutions by short windows are kernels, fused with what is around, if nothing is trained."""

import pytest
import torch
from tests.gpu.test_programs import DEVICE, checked, close, pytestmark  # noqa: F401
from torch import nn
from torch.nn import functional as F

import framefuse
from framefuse.ir import costs
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
            exact = module(x).copy_(exact)  # as it lies in this dtype
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


PICTURES = {
    "borders": (nn.Conv2d(3, 3, 3, padding=1, groups=3), (5, 9), F.relu),
    "steps": (nn.Conv2d(3, 3, 3, 2, 1, groups=3, bias=False), (5, 9), F.hardswish),
    "two lengths": (nn.Conv2d(3, 3, (3, 5), padding=(0, 2), dilation=(2, 1), groups=3), (7, 9), torch.tanh),
    "a row": (nn.Conv2d(3, 3, (1, 7), padding="same", groups=3), (4, 9), lambda y: y.sum(1)),
    "several each": (nn.Conv2d(2, 4, 3, groups=2), (5, 9), F.gelu),
    "of one channel": (nn.Conv2d(1, 4, 5, padding=2), (5, 9), lambda y: y.square().sum(1).sqrt()),
}


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize(("name", "turned"), [*((name, False) for name in PICTURES), ("borders", True)])
def test_depthwise_convolutions_of_pictures(name, turned, dtype):
    torch.manual_seed(0)
    conv, sizes, behind = PICTURES[name]
    order = torch.channels_last if turned else torch.contiguous_format

    def series(more):
        return torch.randn(1 + more, conv.in_channels, *(size + more for size in sizes)).contiguous(memory_format=order)

    run(nn.Sequential(conv, Behind(behind)).to(DEVICE), series, dtype)


class Behind(nn.Module):
    def __init__(self, function):
        super().__init__()
        self.function = function

    def forward(self, x):
        return self.function(x)


@pytest.mark.parametrize("turned", [False, True])
@pytest.mark.parametrize("freeze", [False, True])
def test_windows_of_large_pictures_are_copied_channel_by_channel(freeze, turned, monkeypatch):
    """Behind what kernels compute, which they leave in memory, as the middle of an inverted bottleneck."""
    monkeypatch.setattr(costs, "STENCIL_TURNED", 0)
    torch.manual_seed(0)
    layers = [nn.Conv2d(4, 8, 1), nn.BatchNorm2d(8), nn.SiLU(), nn.Conv2d(8, 8, 3, 2, 1, groups=8, bias=False)]
    module = nn.Sequential(*layers, nn.BatchNorm2d(8), nn.Hardswish(), nn.Conv2d(8, 4, 1)).to(DEVICE).eval()
    order = torch.channels_last if turned else torch.contiguous_format
    fast = framefuse.compile(module, options={"freeze": freeze})
    with torch.no_grad(), torch.backends.cudnn.flags(enabled=True, allow_tf32=False):
        for row in range(5):
            x = torch.randn(2, 4, 7 + row // 2, 9, device=DEVICE).contiguous(memory_format=order)
            found, expected = fast(x), module(x)
            assert found.stride() == expected.stride()
            close(found, expected, 4)
            if row == 2:
                layers[3].weight.mul_(2)
    for product in checked(fast, 2):
        calls = [item.node.attr("name") for item in product.stages.code.schedule.items if isinstance(item, RunCall)]
        assert calls.count("conv2d") == 2


def test_a_window_that_is_given_and_windows_in_a_row():
    """Sizes of a window are no run-time numbers, and what is computed is not computed for each point of a window."""

    def blurred(x, window, other):
        once = F.conv2d(x, window.expand(3, 1, 3, 3), padding=1, groups=3)
        return F.conv2d(once.relu(), other.expand(3, 1, 5, 1), padding=(2, 0), groups=3) + 1

    fast = framefuse.compile(blurred)
    for row in range(5):
        x, window, other = torch.randn(1, 3, 6 + row, 9), torch.randn(1, 1, 3, 3), torch.randn(1, 1, 5, 1)
        given = [each.to(DEVICE) for each in (x, window, other)]
        with torch.no_grad():
            close(fast(*given), blurred(*[each.double() for each in given]).float(), 4)
    for product in checked(fast, 2):
        items = product.stages.code.schedule.items
        assert not any(isinstance(item, RunCall) for item in items)


@pytest.mark.parametrize(
    ("dtype", "most", "own"), [("bfloat16", 0, False), ("float32", 0, True), ("bfloat16", 400, True)]
)
def test_large_results_of_16_bits_are_the_librarys(dtype, most, own, monkeypatch):
    monkeypatch.setattr(costs, "STENCIL_NARROW", most)
    conv = nn.Conv2d(3, 3, 3, padding=1, groups=3, bias=False).to(DEVICE, getattr(torch, dtype))
    fast = framefuse.compile(lambda x: conv(x) * 2)
    with torch.no_grad():
        for row in range(3):
            x = torch.randn(2, 3, 7 + row // 2, 7, device=DEVICE).to(conv.weight.dtype)
            close(fast(x), conv(x) * 2, 4)
    items = checked(fast, 1)[-1].stages.code.schedule.items
    assert any(isinstance(item, RunCall) for item in items) is not own


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
