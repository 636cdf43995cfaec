"""Layers whose activation the library computes with their product: eager's results, and one kernel fewer."""

from __future__ import annotations

import copy

import pytest
import torch
from tests.gpu.kernels import NEEDS_GPU
from torch import nn
from torch.autograd import DeviceType
from torch.profiler import ProfilerActivity, profile

import framefuse
from framefuse.api import compiled_function
from framefuse.ir.schedule import RunCall

pytestmark = NEEDS_GPU
LOOSE = {torch.bfloat16: 2e-2, torch.float16: 4e-3, torch.float32: 1e-4}
ACTIVATIONS = {"relu": nn.ReLU(), "gelu_tanh": nn.GELU("tanh")}


def fused(name, dtype):
    """Whether the library computes this activation."""
    return torch.version.hip is None and name == "gelu_tanh" and dtype is not torch.float32


def calls(fast):
    state = compiled_function(fast)
    assert not state.reasons and not state.breaks
    items = [item for product in state.products for item in product.stages.code.schedule.items]
    return [item.node.attr("name") for item in items if isinstance(item, RunCall)]


def launches(function):
    """How many kernels a call launches, memory operations left out."""
    function()
    torch.cuda.synchronize()
    with profile(activities=[ProfilerActivity.CUDA]) as seen:
        function()
        torch.cuda.synchronize()
    there = (event for event in seen.events() if event.device_type == DeviceType.CUDA)  # others are calls of the driver
    return sum(not event.name.lower().startswith("mem") for event in there)


@pytest.mark.parametrize("name", ACTIVATIONS)
@pytest.mark.parametrize("dtype", LOOSE)
@pytest.mark.parametrize("shape", [(64, 512), (3, 40, 512)])
def test_layers(name, dtype, shape):
    torch.manual_seed(0)
    module = nn.Sequential(nn.Linear(512, 768), ACTIVATIONS[name], nn.Linear(768, 256)).to("cuda", dtype)
    fast = framefuse.compile(module)
    for rows in (shape[0], shape[0], 7, 1):
        x = torch.randn(rows, *shape[1:], device="cuda", dtype=dtype)
        with torch.no_grad():
            torch.testing.assert_close(fast(x), module(x), rtol=LOOSE[dtype], atol=LOOSE[dtype])
    assert compiled_function(fast).dispatch.hits >= 2
    assert calls(fast)[0] == (f"linear_{name}" if fused(name, dtype) else "linear")
    x = torch.randn(shape, device="cuda", dtype=dtype)
    with torch.no_grad():
        ours, theirs = launches(lambda: fast(x)), launches(lambda: module(x))
    assert 0 < ours <= theirs - fused(name, dtype)


@pytest.mark.parametrize("name", ACTIVATIONS)
@pytest.mark.parametrize("dtype", LOOSE)
@pytest.mark.parametrize("value", [float("nan"), float("inf"), -float("inf")])
def test_what_is_not_finite_stays(name, dtype, value):
    """A NaN that an activation hides is a fault of the program that nobody sees: the library's relu would hide some."""
    torch.manual_seed(0)
    for rows, inner, columns in ((64, 512, 768), (17, 100, 40), (1000, 72, 264), (512, 1024, 1024)):
        module = nn.Sequential(nn.Linear(inner, columns), ACTIVATIONS[name]).to("cuda", dtype)
        fast = framefuse.compile(module)
        for _ in range(2):
            x = torch.randn(rows, inner, device="cuda", dtype=dtype)
            x[rows // 2, 0] = value
            with torch.no_grad():
                ours, theirs = fast(x), module(x)
            assert torch.equal(ours.isnan(), theirs.isnan()) and torch.equal(ours.isinf(), theirs.isinf())
            assert not theirs.isfinite().all()


@pytest.mark.parametrize("name", ACTIVATIONS)
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
def test_a_step_of_training(name, dtype):
    """The gradient of gelu reads the product, so that it stays a step of its own."""
    torch.manual_seed(0)
    act = ACTIVATIONS[name]
    module = nn.Sequential(nn.Linear(512, 768), act, nn.Linear(768, 768), act, nn.Linear(768, 4)).to("cuda", dtype)
    twin = copy.deepcopy(module)
    fast = framefuse.compile(module)
    for _ in range(3):
        x = torch.randn(64, 512, device="cuda", dtype=dtype)
        for function, model in ((fast, module), (twin, twin)):
            model.zero_grad()
            function(x).float().square().mean().backward()
        for ours, theirs in zip(module.parameters(), twin.parameters(), strict=True):
            torch.testing.assert_close(ours.grad, theirs.grad, rtol=LOOSE[dtype], atol=LOOSE[dtype] / 10)
    assert calls(fast) == ["linear"] * 3


@pytest.mark.parametrize("mode", ["max-autotune-no-cudagraphs", "reduce-overhead"])
def test_in_other_modes(mode):
    """A kernel of ours may win against the call; a graph replays it."""
    torch.manual_seed(0)
    module = nn.Sequential(nn.Linear(512, 768), nn.GELU("tanh"), nn.Linear(768, 256)).to("cuda", torch.bfloat16)
    fast = framefuse.compile(module, mode=mode)
    for _ in range(4):
        x = torch.randn(64, 512, device="cuda", dtype=torch.bfloat16)
        with torch.no_grad():
            torch.testing.assert_close(fast(x), module(x), rtol=2e-2, atol=2e-2)
    assert compiled_function(fast).dispatch.hits >= 2
