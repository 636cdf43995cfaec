"""Compiled float32 convolutions round to TF32 where eager's do, and nowhere else, forward and backward."""

import copy

import pytest
import torch
from torch import nn

import framefuse

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="torch finds no GPU"),
]

ROUNDED = 5e-5  # of the largest element: TF32 leaves 1e-4 to 6e-4, all digits 1e-6
# Sizes of which an H100 rounds some, in either layout: channels, results, window, step, points of a side, transposed.
CASES = [
    (16, 48, 1, 2, 112, False), (48, 160, 3, 1, 14, False), (64, 24, 1, 2, 28, False), (32, 48, 1, 1, 7, False),
    (40, 8, 3, 1, 56, False), (16, 20, 3, 2, 112, False), (64, 64, 3, 1, 56, False), (128, 32, 5, 1, 14, False),
    (40, 48, 4, 2, 14, True), (48, 512, 3, 1, 7, True), (32, 40, 3, 2, 7, True), (64, 32, 4, 2, 28, True),
]  # fmt: skip


def digits(result, exact):
    return float((result - exact).abs().max() / exact.abs().max().clamp_min(1e-30))


@pytest.fixture(autouse=True)
def may_round():
    with torch.backends.cudnn.flags(enabled=True, allow_tf32=True):
        yield


def values(function, x, net):
    for parameter in net.parameters():
        parameter.grad = None
    x.grad = None
    made = function(x)
    (made * torch.linspace(-1, 1, made.numel(), device="cuda").view_as(made)).sum().backward()
    return [made.detach(), x.grad, *(parameter.grad for parameter in net.parameters() if parameter.dim() == 4)]


@pytest.mark.parametrize("case", CASES)
def test_digits_are_eagers(case):
    channels, made, window, step, side, transposed = case
    torch.manual_seed(0)
    kind = nn.ConvTranspose2d if transposed else nn.Conv2d
    head = kind(channels, made, window, step, window // 2)
    net = nn.Sequential(nn.Conv2d(channels, channels, 3, padding=1), nn.SiLU(), head, nn.Tanh()).cuda()
    precise, own = copy.deepcopy(net), copy.deepcopy(net)
    fast = framefuse.compile(own)
    for _ in range(3):
        x = torch.randn(8, channels, side, side, device="cuda", requires_grad=True)
        eager = values(net, x, net)
        with torch.backends.cudnn.flags(enabled=True, allow_tf32=False):
            exact = values(precise, x, net=precise)
        found = values(fast, x, own)
    # What is behind one that rounds is rounded, too: what eager has whole is whole.
    for place, (one, other, all_digits) in enumerate(zip(found, eager, exact, strict=True)):
        if digits(other, all_digits) < ROUNDED:
            assert digits(one, all_digits) < ROUNDED, place


@pytest.mark.parametrize("case", CASES)
def test_digits_are_eagers_in_inference(case):
    channels, made, window, step, side, transposed = case
    torch.manual_seed(0)
    kind = nn.ConvTranspose2d if transposed else nn.Conv2d
    head = kind(channels, made, window, step, window // 2).cuda()
    fast = framefuse.compile(lambda x: torch.tanh(head(torch.nn.functional.silu(x)) * 0.1))
    with torch.no_grad():
        for _ in range(3):
            x = torch.randn(8, channels, side, side, device="cuda")
            function = lambda x: torch.tanh(head(torch.nn.functional.silu(x)) * 0.1)
            found, eager = fast(x), function(x)
            with torch.backends.cudnn.flags(enabled=True, allow_tf32=False):
                exact = function(x)
    assert digits(eager, exact) >= ROUNDED or digits(found, exact) < ROUNDED
