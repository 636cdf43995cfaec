"""Few long rows on a GPU are cut into parts, each read once for its largest element and its sum of exponentials."""

import math

import pytest
import torch
from tests.gpu.test_programs import DEVICE, checked, pytestmark  # noqa: F401
from torch.nn import functional as F

import framefuse
from framefuse.ir import costs
from framefuse.ir.schedule import RunKernel

ROWS = {
    "softmax": lambda x: F.softmax(x.abs() * 2, 1) + 1,
    "log_softmax": lambda x: F.log_softmax(x, -1).clamp(min=-50),
    "logsumexp": lambda x: x - torch.logsumexp(x, 1, keepdim=True),
    "all three": lambda x: (F.softmax(x, -1) * 2, x.amax(-1), x.logsumexp(-1)),
    "of several axes": lambda x: F.softmax(x.view(x.size(0), 1, -1) / 3, -1) * 2,
    "cross_entropy": lambda x: F.cross_entropy(x, torch.arange(x.size(0), device=x.device)),
}


@pytest.fixture(autouse=True)
def small_parts(monkeypatch):
    monkeypatch.setattr(costs, "GPU_CHUNK_MOST", 64)
    monkeypatch.setattr(costs, "GPU_FEW_SOFTMAX_ROWS", (256, 100))


def drawn():
    """Rows of several lengths, the last ones with parts of nothing but infinities, with NaN and far from zero."""
    torch.manual_seed(0)
    for shape in ((5, 200), (7, 331), (5, 129), (6, 200), (5, 6)):
        yield torch.randn(shape) * 20
    x = torch.randn(7, 333)
    x[0] = -math.inf
    x[1, :100] = x[2, 200:] = -math.inf
    x[3, 5], x[4, 7] = math.inf, math.nan
    x[5], x[6] = -1000.0, 1000.0
    x[5, :70] = x[6, 100:300] = -math.inf
    yield x


def flat(results):
    return [results] if isinstance(results, torch.Tensor) else list(results)


@pytest.mark.parametrize("gradients", [False, True])
@pytest.mark.parametrize("name", ROWS)
def test_rows_in_parts(name, gradients):
    function = ROWS[name]
    fast = framefuse.compile(function)
    for x in (*drawn(), *drawn()):
        mine, theirs = (x.to(DEVICE).requires_grad_(gradients) for _ in range(2))
        found, expected = flat(fast(mine)), flat(function(theirs))
        torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-5, equal_nan=True)
        if gradients:
            towards = [torch.randn_like(each) for each in expected]
            torch.autograd.backward(found, towards)
            torch.autograd.backward(expected, towards)
            torch.testing.assert_close(mine.grad, theirs.grad, rtol=1e-3, atol=1e-4, equal_nan=True)
    product = checked(fast, 8)[0]
    schedule = product.stages.code.schedule
    assert any(step.name == "parts of softmaxes" and step.changed for step in schedule.steps)
    titles = [item.kernel.title for item in schedule.items if isinstance(item, RunKernel)]
    assert not any("chunks" in title for title in titles)


def test_rows_of_16_bits():
    fast = framefuse.compile(lambda x: F.softmax(x * 2, 1))
    for length in (200, 331, 200):
        x = torch.randn(5, length, device=DEVICE, dtype=torch.bfloat16)
        torch.testing.assert_close(fast(x), F.softmax(x * 2, 1), rtol=2e-2, atol=1e-3)
    checked(fast, 1)


def test_what_is_written_to_long_rows_is_a_kernel_of_its_own(monkeypatch):
    monkeypatch.setattr(costs, "GPU_LONG_ROW", 150)
    monkeypatch.setattr(costs, "GPU_FEW_ROWS", (4, 100))
    fast = framefuse.compile(lambda x: F.softmax(x, 1) * 2)
    for rows in (6, 6, 7):
        x = torch.randn(rows, 200, device=DEVICE)
        torch.testing.assert_close(fast(x), F.softmax(x, 1) * 2)
    kernels = [i for i in checked(fast, 1)[0].stages.code.schedule.items if isinstance(i, RunKernel)]
    assert len(kernels) == 3
