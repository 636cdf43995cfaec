"""Short columns that a thread holds each, groups of channels that are turned, and quotients by numbers are eager's.

With FRAMEFUSE_TEST_DEVICE=cpu the same tests run on the CPU by Triton's interpreter: see
tests/unit/codegen/test_interpreted_programs.py.
"""

import pytest
import torch
from tests.gpu.test_programs import DEVICE, checked, close, kernels, pytestmark  # noqa: F401
from torch.nn import functional as F

import framefuse
from framefuse.codegen.triton import blocks
from framefuse.ir import costs

PROGRAMS = {
    "softmax": lambda x: F.softmax(x, 1),
    "log_softmax": lambda x: F.log_softmax(x * 2, 1),
    "logsumexp of tanh": lambda x: torch.logsumexp(torch.tanh(x), 1),
    "standardized": lambda x: (x - x.mean(1, keepdim=True)) / (x.std(1, keepdim=True) + 1e-5),
    "layer norm": lambda x: F.layer_norm(x.movedim(1, -1), (x.size(1),)).movedim(-1, 1),
    "the largest and the sum": lambda x: (x.amax(1), (x - x.amax(1, keepdim=True)).sum(1)),
}


@pytest.mark.parametrize("rows", [3, 32, 48, 100])
@pytest.mark.parametrize("name", PROGRAMS)
def test_columns(name, rows, monkeypatch):
    monkeypatch.setattr(blocks, "BUSY", 16)  # so that few columns are many
    fast, function = framefuse.compile(PROGRAMS[name]), PROGRAMS[name]
    torch.manual_seed(rows)
    for shape in ((2, rows, 16, 16), (2, rows, 16, 16), (3, rows, 15, 17), (2, rows + 1, 16, 16), (1, 1, 3, 5)):
        x = torch.randn(shape, device=DEVICE) + 1
        if shape[1] > 1:
            close(fast(x), function(x), 10)
    assert kernels(checked(fast, 2)) >= 1


@pytest.mark.parametrize("groups", [2, 12])
def test_what_every_element_of_a_tile_would_compute_is_read(groups, monkeypatch):
    monkeypatch.setattr(costs, "GPU_SMALL", (0.2, 2, 0))
    function = lambda x: F.softmax(F.softplus(F.group_norm(x, groups)), 1)
    fast = framefuse.compile(function)
    torch.manual_seed(0)
    for shape in ((2, 24, 20, 20), (2, 24, 20, 20), (3, 24, 19, 21)):
        x = torch.randn(shape, device=DEVICE) + 1
        close(fast(x), function(x), 10)
    assert kernels(checked(fast, 2)) >= 2


@pytest.mark.parametrize("last", [False, True])
def test_groups_of_few_channels_are_turned(last):
    order = (torch.contiguous_format, torch.channels_last)[last]

    def function(x, mean):
        y = x.unflatten(1, (-1, 4)) - mean[:, :, None, None, None]
        return y.flatten(1, 2).contiguous(memory_format=order)

    fast = framefuse.compile(function)
    torch.manual_seed(0)
    for shape in ((2, 24, 20, 20), (2, 24, 20, 20), (3, 32, 19, 21), (1, 4, 5, 5)):
        x = torch.randn(shape, device=DEVICE)
        x = x if last else x.contiguous(memory_format=torch.channels_last)
        mean = torch.randn(shape[0], shape[1] // 4, device=DEVICE)
        found, wanted = fast(x, mean), function(x, mean)
        close(found, wanted)
        assert found.stride() == wanted.stride()
    assert kernels(checked(fast, 1)) >= 1


@pytest.mark.skipif(not DEVICE.startswith("cuda"), reason="eager divides on a CPU")
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.float16, torch.int64])
def test_quotients_by_numbers_have_eagers_bits(dtype):
    """Eager multiplies by the inverse of a number, and divides by a tensor (whose quotients of 16 bits may differ)."""

    def function(x, n, y):
        by_tensor = x / y if dtype is not torch.float16 else x
        return x / 3, x / n, by_tensor, x / torch.tensor(7.0, dtype=torch.float64), x / 0

    fast = framefuse.compile(function)
    for n in (0.1, 0.1, 41.7, -3.3):
        x = (torch.randn(10_001, device=DEVICE) * 1000).to(dtype)
        y = torch.randn((), device=DEVICE)
        for found, wanted in zip(fast(x, n, y), function(x, n, y), strict=True):
            assert found.dtype is wanted.dtype and torch.equal(found.nan_to_num(1.5), wanted.nan_to_num(1.5))
    assert kernels(checked(fast, 2)) >= 1
