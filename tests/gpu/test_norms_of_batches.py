"""Batch norms in training without gradients: kernels of ours normalise, and write the running statistics in place."""

import copy

import pytest
import torch
from tests.gpu.test_programs import DEVICE, checked, close, kernels, pytestmark  # noqa: F401
from torch import nn

import framefuse
from framefuse.ir.schedule import RunCall

MODULES = {
    "plain": lambda: nn.BatchNorm2d(6),
    "without weights": lambda: nn.BatchNorm2d(6, affine=False),
    "untracked": lambda: nn.BatchNorm2d(6, track_running_stats=False),
    "momentum": lambda: nn.BatchNorm2d(6, momentum=0.3, eps=1e-3),
    "behind a convolution": lambda: nn.Sequential(nn.Conv2d(6, 6, 3), nn.BatchNorm2d(6), nn.ReLU()),
}


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("name", MODULES)
def test_results_and_statistics(name, dtype):
    torch.manual_seed(0)
    model = MODULES[name]().to(DEVICE)
    for layer in model.modules():
        if isinstance(layer, nn.Conv2d):
            layer.to(dtype)
    eager, places = copy.deepcopy(model), [buffer.data_ptr() for buffer in model.buffers()]
    before = [[buffer._version for buffer in module.buffers()] for module in (model, eager)]
    fast = framefuse.compile(model)
    with torch.no_grad():
        for rows in (3, 3, 5, 3):
            x = torch.randn(rows, 6, 7, 9, device=DEVICE).to(dtype) * 2 + 1
            close(fast(x), eager(x), 10)
            # Of what a convolution of 16 bits gives, which rounds otherwise with its bias apart.
            close([*model.buffers()], [*eager.buffers()], 10 if dtype is torch.float32 else 100)
    counted = [
        [buffer._version - old for buffer, old in zip(module.buffers(), olds, strict=True)]
        for module, olds in zip((model, eager), before, strict=True)
    ]
    assert counted[0] == counted[1]
    products = checked(fast, 2)
    assert kernels(products) >= 1 and [buffer.data_ptr() for buffer in model.buffers()] == places
    calls = [item for product in products for item in product.stages.code.schedule.items if isinstance(item, RunCall)]
    assert [call.node.attr("name") for call in calls if "norm" in call.node.attr("name")] == []
    assert all(call.node.attr("args")[2] is None for call in calls if call.node.attr("name") == "conv2d")


def test_a_moving_average_of_all_batches_stays_with_the_library():
    model = nn.BatchNorm2d(6, momentum=None).to(DEVICE)
    eager = copy.deepcopy(model)
    fast = framefuse.compile(model)
    with torch.no_grad():
        for _ in range(4):
            x = torch.randn(3, 6, 7, 9, device=DEVICE)
            close(fast(x), eager(x), 10)
            close([*model.buffers()], [*eager.buffers()], 10)
    checked(fast, 2)


def test_channels_that_are_neighbours_stay_with_the_library():
    model = nn.BatchNorm2d(6).to(DEVICE)
    eager = copy.deepcopy(model)
    fast = framefuse.compile(model)
    with torch.no_grad():
        for _ in range(3):
            x = torch.randn(3, 6, 7, 9, device=DEVICE).contiguous(memory_format=torch.channels_last)
            close(fast(x), eager(x), 10)
            close([*model.buffers()], [*eager.buffers()], 10)
    items = [item for product in checked(fast, 2) for item in product.stages.code.schedule.items]
    assert "batch_norm" in [item.node.attr("name") for item in items if isinstance(item, RunCall)]


@pytest.mark.parametrize("side", [4, 7, 8])
@pytest.mark.parametrize("channels", [3, 64, 100])
@pytest.mark.parametrize("rows", [1, 2])
def test_gradients_over_two_layouts(rows, channels, side):
    """What comes of a channels-last picture and a contiguous one is summed by channel: where a tile reads both,
    Triton's LLVM packed rows of the two in pairs, and read one at the other's places.
    """

    def step(mask, grad, x, scale, centre, weight):
        grad = torch.where(mask, 0.0, grad)
        plain, squares = grad.sum((0, 2, 3)), (grad * x).sum((0, 2, 3))
        return (squares - plain * centre) * weight, plain, grad * scale[None, :, None, None]

    def last(x):
        return x.contiguous(memory_format=torch.channels_last)

    fast = framefuse.compile(step, dynamic=False)
    for _ in range(3):
        picture = [torch.randn(rows, channels, side, side, device=DEVICE) for _ in range(3)]
        values = [torch.randn(channels, device=DEVICE) for _ in range(3)]
        given = last(picture[0] > 0), picture[1], last(picture[2]), *values
        close(fast(*given), step(*given), 10)
    assert kernels(checked(fast, 2)) >= 1
