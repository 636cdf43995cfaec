"""What the program gets lies as under eager, whichever layout the call that gives it is made in."""

import pytest
import torch

import framefuse
from framefuse.runtime.function import compiled_function

F = torch.nn.functional
WEIGHT = torch.randn(32, 32, 3, 3)
CALLS = {
    "nearest": lambda x: F.interpolate(x, scale_factor=2),
    "bilinear": lambda x: F.interpolate(x, scale_factor=2, mode="bilinear"),
    "bicubic": lambda x: F.interpolate(x, scale_factor=2, mode="bicubic"),
    "average": lambda x: F.avg_pool2d(x, 3, 1, 1),
    "adaptive": lambda x: F.adaptive_avg_pool2d(x, 5),
    "positions": lambda x: F.max_pool2d(x, 2, return_indices=True)[1],
    "convolution": lambda x: F.conv2d(x, WEIGHT, padding=1),
    "transposed": lambda x: F.conv_transpose2d(x, WEIGHT, stride=2),
    "shuffled": lambda x: F.pixel_shuffle(F.conv2d(x, WEIGHT), 2),
}


@pytest.mark.parametrize("memory", [torch.contiguous_format, torch.channels_last], ids=["contiguous", "last"])
@pytest.mark.parametrize("shape", [(4, 32, 56, 56), (2, 32, 5, 4)], ids=["large", "small"])
@pytest.mark.parametrize("name", CALLS)
def test_strides_are_eagers(name, shape, memory):
    call = CALLS[name]
    fast = framefuse.compile(call)
    for _ in range(3):
        x = torch.randn(shape).contiguous(memory_format=memory)
        found, expected = fast(x), call(x)
        assert found.stride() == expected.stride()
        torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-4)
    assert compiled_function(fast).dispatch.hits == 2
