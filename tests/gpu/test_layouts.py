"""Kernels around convolutions read and write channels-last, in pictures and volumes; results lie as eager's.

With FRAMEFUSE_TEST_DEVICE=cpu the same tests run on the CPU by Triton's interpreter: see
tests/unit/codegen/test_interpreted_programs.py.
"""

import copy
import os

import pytest
import torch
from torch import nn
from torch.nn import functional as F

import framefuse
from framefuse.ir import costs
from framefuse.ir.schedule import RunCall
from framefuse.runtime.function import compiled_function

DEVICE = os.environ.get("FRAMEFUSE_TEST_DEVICE", "cuda")
pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(DEVICE == "cuda" and not torch.cuda.is_available(), reason="torch finds no GPU"),
]


@pytest.fixture(autouse=True)
def eager_to_turn(monkeypatch):
    """Contiguous convolutions cost so much that even small ones lie channels-last; they keep all digits."""
    monkeypatch.setattr(costs, "CONVOLUTION", dict.fromkeys(costs.CONVOLUTION, (50.0, 50.0)))
    with torch.backends.cudnn.flags(enabled=True, allow_tf32=False):
        yield


class Norms(nn.Module):
    """Kernels of every kind behind convolutions: pointwise, rows, columns, windows, a sum over channels."""

    def __init__(self, volumes):
        super().__init__()
        one, back = (nn.Conv3d, nn.ConvTranspose3d) if volumes else (nn.Conv2d, nn.ConvTranspose2d)
        self.first, self.second = one(3, 8, 3), one(8, 8, 3, padding=1)
        self.third, self.up = one(8, 6, 1), back(6, 4, 2)
        self.norm = nn.GroupNorm(2, 8)
        self.axes = (2, 3, 4) if volumes else (2, 3)

    def forward(self, x):
        x = F.silu(self.first(x))
        x = x + self.norm(self.second(x))
        y = torch.tanh(self.up(F.instance_norm(self.third(x))))
        return y.amin(1, keepdim=True), y.mean(self.axes), y.softmax(1), x


@pytest.mark.parametrize("volumes", [False, True])
def test_forward_and_gradients(volumes):
    torch.manual_seed(0)
    net = Norms(volumes).to(DEVICE)
    other = copy.deepcopy(net)
    compiled = framefuse.compile(other)
    sides = (5, 6, 7) if volumes else (7, 9)
    for batch in (2, 2, 3):
        x = torch.randn(batch, 3, *sides, device=DEVICE)
        with torch.no_grad():
            expected, found = net(x), compiled(x)
        assert [each.stride() for each in found] == [each.stride() for each in expected]
        torch.testing.assert_close(found, expected, rtol=1e-3, atol=1e-3)
        sums = []
        for module, run in ((net, net), (other, compiled)):
            module.zero_grad()
            sums.append(sum(each.sin().sum() for each in run(x)))
            sums[-1].backward()
        torch.testing.assert_close(sums[1], sums[0], rtol=1e-3, atol=1e-3)
        for mine, theirs in zip(other.parameters(), net.parameters(), strict=True):
            assert mine.grad.stride() == theirs.grad.stride()
            torch.testing.assert_close(mine.grad, theirs.grad, rtol=1e-2, atol=1e-2)
    state = compiled_function(compiled)
    assert state.dispatch.hits >= 2 and not state.reasons
    if DEVICE != "cpu" or not volumes:  # there, volumes of floats have one layout
        schedule = state.products[0].stages.code.schedule
        calls = [item.node for item in schedule.items if isinstance(item, RunCall)]
        assert any(call.attr("orders")[0] in ((0, 2, 3, 1), (0, 2, 3, 4, 1)) for call in calls)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_bias_is_added_by_the_kernel_that_reads_the_convolution(dtype):
    torch.manual_seed(0)
    one, two = nn.Conv2d(4, 8, 3, device=DEVICE, dtype=dtype), nn.ConvTranspose2d(8, 4, 3, device=DEVICE, dtype=dtype)
    alone = nn.Conv1d(4, 3, 2, device=DEVICE, dtype=dtype)

    def f(x, y):
        return torch.tanh(two(F.relu(one(x)))), torch.sin(alone(y)), alone(y)

    compiled = framefuse.compile(f)
    with torch.no_grad():
        for batch in (2, 2, 3):
            x = torch.randn(batch, 4, 7, 9, device=DEVICE, dtype=dtype)
            y = torch.randn(4, 5 + batch, device=DEVICE, dtype=dtype)
            expected, found = f(x, y), compiled(x, y)
            assert [each.stride() for each in found] == [each.stride() for each in expected]
            # The CPU's library adds a bias of 16 bits before it rounds; a GPU's does not.
            near = 1e-4 if dtype is torch.float32 else 3e-2
            torch.testing.assert_close(found, expected, rtol=near, atol=near)
    schedule = compiled_function(compiled).products[0].stages.code.schedule
    calls = [item.node for item in schedule.items if isinstance(item, RunCall)]
    assert compiled_function(compiled).dispatch.hits
    assert sorted(len(call.inputs) for call in calls) == [2, 2, 2, 3]  # what no kernel reads keeps its bias


def test_a_bias_is_added_where_sizes_are_known_at_run_time_alone():
    """The sizes are those of the call's result, which is not the sum."""
    layer = nn.Conv1d(4, 8, 3).to(DEVICE)

    def chosen(x, keep):
        return F.elu(layer(x[:, :, keep])) * 2

    fast = framefuse.compile(chosen)
    with torch.no_grad():
        for length in (20, 20, 33, 20):
            x, keep = torch.randn(2, 4, length, device=DEVICE), torch.rand(length, device=DEVICE) > 0.3
            torch.testing.assert_close(fast(x, keep), chosen(x, keep), rtol=1e-4, atol=1e-5)
    state = compiled_function(fast)
    assert state.dispatch.hits == 3 and not state.reasons and not state.breaks, framefuse.explain(fast)
