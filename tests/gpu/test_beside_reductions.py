"""What is computed element by element of a value that is reduced too is written by the kernel that reduces it."""

import pytest
import torch
from tests.gpu.test_programs import DEVICE, checked, close, pytestmark  # noqa: F401
from torch.nn import functional as F

import framefuse
from framefuse.ir.schedule import RunKernel

BESIDE = {
    "a loss and its mask": lambda x, y: ((x - y).relu().sum(1), x - y > 0),
    "a sum and what is above it": lambda x, y: (x.sum(1), x - x.sum(1, keepdim=True) + y),
    "rows and their norm": lambda x, y: ((x * y).square().sum(1), (x * y).tanh()),
    "a largest element and where it is": lambda x, y: (x.amax(1), x == x.amax(1, keepdim=True)),
}


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("name", BESIDE)
def test_one_kernel_writes_both(name, dtype):
    function = BESIDE[name]
    fast = framefuse.compile(function)
    for row in range(4):
        x, y = (torch.randn(6 + row // 2, 70, device=DEVICE).to(dtype) for _ in range(2))
        with torch.no_grad():
            close(fast(x, y), function(x, y))
    for product in checked(fast, 2):
        items = [item for item in product.stages.code.schedule.items if isinstance(item, RunKernel)]
        assert len(items) == 1 or dtype is torch.bfloat16  # which is rounded in between


def divergence(x, y):
    p, q = x.log_softmax(-1), y.log_softmax(-1)
    return (p.exp() * (p - q)).sum(-1).mean()


LOSSES = {
    "divergence": divergence,
    "hinge": lambda x, y: (1 - x * y.sign()).relu().mean(),
    "batch norm": lambda x, y: (torch.nn.functional.batch_norm(x, None, None, training=True).relu() * y).mean(),
}


@pytest.mark.parametrize("name", LOSSES)
def test_gradients_beside_losses(name):
    function = LOSSES[name]
    fast = framefuse.compile(function)
    for row in range(4):
        x, y = (torch.randn(9 + row // 2, 70, device=DEVICE, requires_grad=True) for _ in range(2))
        found, expected = fast(x, y), function(x, y)
        close(found, expected)
        pairs = (torch.autograd.grad(loss, (x, y), allow_unused=True) for loss in (found, expected))
        for one, other in zip(*pairs, strict=True):
            assert (one is None) == (other is None)
            if one is not None:
                close(one, other)
    checked(fast, 2)


# Norms before what reduces or reads other rows than theirs: the mean is found with the deviation.
MOMENTS = {
    "largest channel": lambda x: F.instance_norm(x * 2).amax(1),
    "logsumexp of channels": lambda x: torch.logsumexp(x + F.hardswish(F.group_norm(x, 4).tanh()), 1),
    "smallest of groups": lambda x: F.group_norm(x, 4).amin(1, keepdim=True) * 2,
}


@pytest.mark.parametrize("name", MOMENTS)
def test_a_norm_before_another_reduction_reads_its_rows_once_more(name):
    function = MOMENTS[name]
    fast = framefuse.compile(function)
    for row in range(5):
        x = torch.randn(3 + row // 2, 8, 9, 10 + row, device=DEVICE) * 3 + 1
        with torch.no_grad():
            torch.testing.assert_close(fast(x), function(x), rtol=1e-4, atol=1e-4)
    for product in checked(fast, 2):
        kernels = [item.kernel for item in product.stages.code.schedule.items if isinstance(item, RunKernel)]
        assert len([kernel for kernel in kernels if "total" not in kernel.title]) == 2
