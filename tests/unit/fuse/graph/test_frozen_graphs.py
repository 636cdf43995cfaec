"""Graphs of which parameters and buffers stay: what is left to do in each call."""

import pytest
import torch
from torch import nn

import framefuse
from framefuse.ir import costs
from framefuse.ir.derivations import Derived, Packed
from framefuse.ir.schedule import RunCall, RunKernel
from framefuse.runtime.function import compiled_function


@pytest.fixture(autouse=True)
def small_ones_are_packed(monkeypatch):
    for name in ("PACKED_POINTS", "PACKED_WINDOWS", "PACKED_PRODUCT"):
        monkeypatch.setattr(costs, name, 0)


@pytest.mark.parametrize("sizes", [(8, 16, 1, 9), (8, 16, 3, 2), (64, 64, 3, 9), (256, 512, 1, 14)], ids=str)
def test_small_convolutions_are_calls_of_torch(monkeypatch, sizes):
    monkeypatch.undo()
    channels, made, window, side = sizes
    model = nn.Conv2d(channels, made, window, padding=window // 2)
    found = items(model, torch.randn(2, channels, side, side).to(memory_format=torch.channels_last))
    assert any(isinstance(target, Packed) for target in targets(found)) == (channels >= 64)


def items(model, *inputs, **options):
    fast = framefuse.compile(model.eval(), options={"freeze": True, **options})
    with torch.no_grad():
        for _ in range(3):
            torch.testing.assert_close(fast(*inputs), model(*inputs), rtol=1e-4, atol=1e-4)
    assert framefuse.explain(fast).hits
    return compiled_function(fast).products[-1].stages.code.schedule.items


def targets(found):
    return [item.node.attr("target") for item in found if isinstance(item, RunCall)]


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("affine", [True, False])
def test_a_norm_behind_a_convolution_is_within_its_weight(bias, affine):
    model = nn.Sequential(nn.Conv2d(3, 8, 3, bias=bias), nn.BatchNorm2d(8, affine=affine))
    found = items(model, torch.randn(2, 3, 9, 9).to(memory_format=torch.channels_last))
    (call,) = targets(found)
    assert isinstance(call, Packed) and call.biased and not any(isinstance(item, RunKernel) for item in found)
    assert len(call.witnesses) == 2  # mean and variance: no version counts what training writes there


@pytest.mark.parametrize("rank", [1, 3])
def test_other_convolutions_are_scaled_too(rank):
    convolution = (nn.Conv1d, None, nn.Conv3d)[rank - 1](4, 8, 3, groups=2)
    model = nn.Sequential(convolution, (nn.BatchNorm1d, None, nn.BatchNorm3d)[rank - 1](8))
    found = items(model, torch.randn(2, 4, *(7,) * rank))
    assert isinstance(targets(found)[0], Derived)
    assert not any(isinstance(item, RunKernel) for item in found)


def test_a_result_that_is_read_before_the_norm_is_not_scaled():
    class Both(nn.Module):
        def __init__(self):
            super().__init__()
            self.conv, self.norm = nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8)

        def forward(self, x):
            y = self.conv(x)
            return y + self.norm(y)

    found = items(Both(), torch.randn(2, 3, 9, 9))
    assert any(isinstance(item, RunKernel) for item in found)


def test_eagers_numerics_keep_the_order_of_operations():
    model = nn.Sequential(nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8))
    found = items(model, torch.randn(2, 3, 9, 9), numerics="eager")
    assert not any(isinstance(target, (Packed, Derived)) for target in targets(found))


def test_what_is_larger_than_its_parents_is_not_kept():
    class Spread(nn.Module):
        def __init__(self):
            super().__init__()
            self.row, self.column = nn.Parameter(torch.randn(1, 300)), nn.Parameter(torch.randn(200, 1))

        def forward(self, x):
            return x + self.row.exp() * self.column.sin()

    (target,) = (t for t in targets(items(Spread(), torch.randn(200, 300))) if isinstance(t, Derived))
    assert sorted(len(output.node.shape) and output.node.shape[0].constant for output in target.graph.outputs) == [
        1,
        200,
    ]


def test_nothing_is_kept_without_the_option():
    model = nn.Sequential(nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8))
    assert not any(
        isinstance(target, (Packed, Derived)) for target in targets(items(model, torch.randn(2, 3, 9, 9), freeze=False))
    )


def test_modes_that_replay_graphs_keep_values_too():
    model = nn.Sequential(nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8)).eval()
    fast = framefuse.compile(model, mode="reduce-overhead", options={"freeze": True})
    with torch.no_grad():
        for scale in (1, 1, 2, 3):
            model[1].weight.mul_(scale)
            x = torch.randn(2, 3, 9, 9)
            torch.testing.assert_close(fast(x), model(x), rtol=1e-4, atol=1e-4)
    (graph,) = framefuse.explain(fast).graphs
    assert graph.derived.times == 3 and framefuse.explain(fast).hits == 3
