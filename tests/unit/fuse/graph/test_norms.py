"""Batch norms in training by kernels of ours: values, statistics and gradients are eager's, in either layout."""

import copy

import pytest
import torch
from torch import nn
from torch.nn import functional as F

import framefuse
from framefuse.api import compiled_function
from framefuse.ir import costs
from framefuse.ir.schedule import RunCall, RunKernel

NORMS = {2: nn.BatchNorm1d, 3: nn.BatchNorm1d, 4: nn.BatchNorm2d, 5: nn.BatchNorm3d}
SHAPES = ((6, 4), (3, 4, 5), (3, 4, 5, 6), (2, 4, 3, 2, 5))
LAST = {4: torch.channels_last, 5: torch.channels_last_3d}


def items(compiled):
    """What the last plan of a compiled function does."""
    return compiled_function(compiled).products[-1].stages.code.schedule.items


def names(compiled):
    return [item.node.attr("name") for item in items(compiled) if isinstance(item, RunCall)]


def trained(norm, function, shape, dtype, last):
    """Values, gradients and statistics of three steps, each on other numbers and the last on another batch."""
    torch.manual_seed(0)
    found = []
    for batch in (shape[0], shape[0], shape[0] + 2):
        x = torch.randn(batch, *shape[1:], dtype=dtype) * 3 + 1
        x = (x.to(memory_format=LAST[len(shape)]) if last else x).requires_grad_()
        y = function(x)
        (y.float() * torch.arange(y.numel(), dtype=torch.float32).view(y.shape).cos()).sum().backward()
        found += [y.detach(), x.grad, *(p.grad.clone() for p in norm.parameters())]
        found += [buffer.clone() for buffer in norm.buffers()]
        assert y.stride() == x.stride()
    return found


def close(found, expected, dtype):
    bounds = {"rtol": 3e-2, "atol": 6e-2} if dtype is torch.bfloat16 else {"rtol": 2e-4, "atol": 2e-5}
    for one, other in zip(found, expected, strict=True):
        torch.testing.assert_close(one, other, **bounds)
        assert one.stride() == other.stride()


@pytest.mark.parametrize("own", [True, False])
@pytest.mark.parametrize("shape", SHAPES, ids=len)
@pytest.mark.parametrize("tracked", [True, False])
def test_training(monkeypatch, own, shape, tracked):
    monkeypatch.setattr(costs, "OWN_NORM", (1.0, 1.0) if own else (-1.0, -1.0))
    norm = NORMS[len(shape)](4, track_running_stats=tracked)
    with torch.no_grad():
        norm.weight.copy_(torch.tensor([0.5, -1.0, 2.0, 1.0]))
    twin = copy.deepcopy(norm)
    for last in (False, True)[: 1 + (len(shape) in LAST)]:
        fast = framefuse.compile(lambda x: torch.relu(norm(x * 1.5)))
        found = trained(norm, fast, shape, torch.float32, last)
        close(found, trained(twin, lambda x: torch.relu(twin(x * 1.5)), shape, torch.float32, last), torch.float32)
        assert compiled_function(fast).dispatch.hits == 2
        assert names(fast) == ([] if own else ["batch_norm_kept"])


@pytest.mark.parametrize("affine", [True, False])
def test_16_bits(monkeypatch, affine):
    monkeypatch.setattr(costs, "OWN_NORM", (1.0, 1.0))
    norm = nn.BatchNorm2d(4, affine=affine, momentum=0.3, eps=1e-3)
    twin, shape = copy.deepcopy(norm), (3, 4, 5, 6)
    fast = framefuse.compile(lambda x: torch.relu(norm(x * 1.5)))
    found = trained(norm, fast, shape, torch.bfloat16, False)
    close(found, trained(twin, lambda x: torch.relu(twin(x * 1.5)), shape, torch.bfloat16, False), torch.bfloat16)
    assert compiled_function(fast).dispatch.hits == 2 and names(fast) == []


def test_running_statistics_are_written_in_place(monkeypatch):
    monkeypatch.setattr(costs, "OWN_NORM", (1.0, 1.0))
    norm = nn.BatchNorm2d(4)
    twin, places = copy.deepcopy(norm), [buffer.data_ptr() for buffer in norm.buffers()]
    fast = framefuse.compile(norm)
    for function in (fast, twin):
        for _ in range(3):
            function(torch.randn(3, 4, 5, 6, requires_grad=True)).sum().backward()
    assert compiled_function(fast).dispatch.hits == 2
    assert [buffer._version for buffer in norm.buffers()] == [buffer._version for buffer in twin.buffers()]
    assert [buffer.data_ptr() for buffer in norm.buffers()] == places
    kernels = [item for item in items(fast) if isinstance(item, RunKernel)]
    assert [kernel.kernel.title for kernel in kernels] == ["sum_div_rsqrt_sub", "add", "mul_add", "div_sub_mul_add"]


@pytest.mark.parametrize("own", [True, False])
@pytest.mark.parametrize("tracked", [True, False])
def test_a_batch_without_elements_and_one_of_single_values_do_as_under_eager(monkeypatch, own, tracked):
    monkeypatch.setattr(costs, "OWN_NORM", (1.0, 1.0) if own else (-1.0, -1.0))
    norm = nn.BatchNorm2d(4, track_running_stats=tracked)
    twin = copy.deepcopy(norm)
    fast = framefuse.compile(norm)
    for shape in ((3, 4, 5, 6), (2, 4, 3, 6), (0, 4, 5, 6), (3, 4, 0, 6)):
        x = torch.randn(shape)
        found, expected = (function(x.clone().requires_grad_()) for function in (fast, twin))
        torch.testing.assert_close(found, expected)
        torch.testing.assert_close([*norm.buffers()], [*twin.buffers()])
    with pytest.raises(ValueError, match="more than 1 value"):
        fast(torch.randn(1, 4, 1, 1, requires_grad=True))


def gradients(function, x, slope, parameters, running):
    """The value, gradients and running statistics of one call, by name."""
    x, *parameters = (each.clone().requires_grad_() for each in (x, *parameters))
    running = [each.clone() for each in running]
    y = function(x, *running, *parameters)
    y.backward(slope)
    named = ("y", "x", "weight", "bias", "mean", "variance")
    return dict(zip(named, (y.detach(), x.grad, *(each.grad for each in parameters), *running), strict=True))


@pytest.mark.parametrize("last", [False, True])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("mean, spread", [(0.0, 1.0), (100.0, 1.0), (1000.0, 0.1), (0.0, 1e-4)])
def test_results_are_as_close_to_float64_as_the_librarys(monkeypatch, mean, spread, dtype, last):
    """Values far from zero cancel: what a long sum rounds stands in all distances from the mean."""
    monkeypatch.setattr(costs, "OWN_NORM", (1.0, 1.0))

    def function(x, running_mean, running_var, weight, bias):
        return F.batch_norm(x, running_mean, running_var, weight, bias, True, 0.1, 1e-5)

    fast = framefuse.compile(function)
    for seed in range(3):
        torch.manual_seed(seed)
        x, slope = ((torch.randn(32, 4, 64, 64) * scale + at).to(dtype) for scale, at in ((spread, mean), (1.0, 0.0)))
        if last:
            x, slope = (each.contiguous(memory_format=torch.channels_last) for each in (x, slope))
        channels = [torch.rand(4) + 0.5 for _ in range(4)]
        given = x, slope, channels[:2], channels[2:]
        found, library = (gradients(each, *given) for each in (fast, function))
        exact = gradients(function, x.double(), slope.double(), *([c.double() for c in each] for each in given[2:]))
        for name, value in exact.items():
            ours, theirs = ((each[name].double() - value).norm() for each in (found, library))
            # of 16 bits: beside the 2e-3 that values are rounded by, sums of float32 as they come
            floor = (3e-7 if dtype is torch.float32 else 1e-4) * value.norm()
            assert ours <= 2 * theirs + floor, (name, seed, ours, theirs)
    assert compiled_function(fast).dispatch.hits == 2 and names(fast) == []


@pytest.mark.parametrize(
    "dtype, last, own", [(torch.bfloat16, True, False), (torch.bfloat16, False, True), (None, True, True)]
)
def test_large_pictures_of_16_bits_channels_last_stay_with_the_library(dtype, last, own):
    norm = nn.BatchNorm2d(64)
    twin, fast = copy.deepcopy(norm), framefuse.compile(norm)
    for call in range(3):
        x = torch.randn(8, 64, 56, 56, dtype=dtype)
        x = (x.contiguous(memory_format=torch.channels_last) if last else x).requires_grad_()
        found, expected = fast(x), twin(x.contiguous())  # where the library sums up in float64
        if call:  # the first is the library's
            torch.testing.assert_close(found, expected)
        found.sum().backward()
    assert compiled_function(fast).dispatch.hits == 2
    assert names(fast) == ([] if own else ["batch_norm_kept"])
