"""Group norms behind convolutions read them twice, contiguous and channels-last; the largest of equal windows.

With FRAMEFUSE_TEST_DEVICE=cpu the same tests run on the CPU by Triton's interpreter: see
tests/unit/codegen/test_interpreted_programs.py.
"""

import pytest
import torch
from tests.gpu.test_programs import DEVICE, checked, close, pytestmark  # noqa: F401
from torch import nn
from torch.nn import functional as F

import framefuse
from framefuse.fuse.layouts import movable_calls
from framefuse.ir import costs
from framefuse.ir.schedule import RunCall, RunKernel
from framefuse.runtime.trial import elements

TAILS = {
    "relu": lambda norm, x: F.relu(norm(x)),
    "of a gelu": lambda norm, x: norm(F.gelu(x)),
    "logsumexp": lambda norm, x: torch.logsumexp(x + F.hardswish(torch.tanh(norm(x))), 1, keepdim=True),
    "windows": lambda norm, x: F.max_pool2d(norm(x), 4).clamp(0, 1),
    "means": lambda norm, x: norm(x).mean((2, 3)),
}


@pytest.fixture(autouse=True)
def any_size(monkeypatch):
    """Small values count as large ones; convolutions keep all digits."""
    monkeypatch.setattr(costs, "GPU_AGAIN", 0)
    with torch.backends.cudnn.flags(enabled=True, allow_tf32=False):
        yield


@pytest.mark.parametrize("last", [False, True])
@pytest.mark.parametrize("name", TAILS)
def test_a_norm_reads_what_a_convolution_made_twice(name, last, monkeypatch):
    price = (-50.0, 50.0)[last]
    monkeypatch.setattr(costs, "CONVOLUTION", dict.fromkeys(costs.CONVOLUTION, (price, price)))
    monkeypatch.setattr(movable_calls, "_rounds_turned", lambda *given: False)
    torch.manual_seed(0)
    head, norm = nn.Conv2d(8, 16, 3).to(DEVICE), nn.GroupNorm(4, 16).to(DEVICE)
    nn.init.normal_(norm.weight)
    function = lambda x: TAILS[name](norm, head(x))
    fast = framefuse.compile(function)
    for batch, side in ((2, 42), (2, 42), (3, 42), (2, 35), (2, 30)):
        x = torch.randn(batch, 8, side, side, device=DEVICE) + 3
        with torch.no_grad():
            close(fast(x), function(x), scale=10)
    for product in checked(fast, 2):
        schedule = product.stages.code.schedule
        made = {memory for item in schedule.items if isinstance(item, RunCall) for _, memory in item.outs}
        kernels = [item for item in schedule.items if isinstance(item, RunKernel)]
        readers = [item.kernel.title for item in kernels if not made.isdisjoint(item.buffers)]
        assert 1 <= len(readers) <= 2, readers
        if name in ("logsumexp", "windows", "means"):
            pairs = [pair for item in kernels for pair in zip(item.kernel.buffers, item.buffers, strict=True)]
            given = {number for item in schedule.items if isinstance(item, RunCall) for number in item.operands}
            found = [number for buffer, number in pairs if buffer.written and number not in given]
            written = max(elements(schedule, number) for number in found)
            assert written < min(elements(schedule, memory) for memory in made) / 8, "nothing as large is written"


@pytest.mark.parametrize("output", [7, 6, (1, 3), (None, 2)])
def test_the_largest_of_equal_windows_is_a_kernel(output):
    function = lambda x: F.adaptive_max_pool2d(F.relu(x), output)
    fast = framefuse.compile(function)
    for batch, side in ((2, 42), (2, 42), (3, 42), (2, 84), (2, 40)):
        x = torch.randn(batch, 3, side, side, device=DEVICE)
        x[0, 0, 3, 3] = float("nan")
        with torch.no_grad():
            found, eager = fast(x), function(x)
        torch.testing.assert_close(found, eager, rtol=0, atol=0, equal_nan=True)
        assert found.stride() == eager.stride()
    product = checked(fast, 2)[0]
    assert not any(isinstance(item, RunCall) for item in product.stages.code.schedule.items)


def test_gradients_of_equal_elements_go_to_one_of_them():
    function = lambda x: F.adaptive_max_pool2d(x, 2)
    fast = framefuse.compile(function)
    for _ in range(3):
        x = torch.randint(0, 2, (2, 3, 8, 8), device=DEVICE).float().requires_grad_()
        (mine,), (eagers,) = (torch.autograd.grad(each(x).square().sum(), x) for each in (fast, function))
        torch.testing.assert_close(mine, eagers, rtol=0, atol=0)
