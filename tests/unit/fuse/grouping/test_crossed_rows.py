"""Reductions of what lies across the results are kernels apart, which walk along memory; what is left turns tiles."""

import pytest
import torch
from torch.nn import functional as F

import framefuse
from framefuse.api import compiled_function
from framefuse.ir.loops import Load, Loop, LoopKind, Scratch
from framefuse.ir.loops.walk import statements, values_of
from framefuse.ir.schedule import RunKernel

PROGRAMS = {
    "groups of channels": lambda x, w: F.group_norm(x, 4, w, w),
    "layers": lambda x, w: F.layer_norm(x, x.shape[1:]) * 2,
    "pictures": lambda x, w: F.instance_norm(x),
    "a softmax along channels": lambda x, w: x.softmax(1),
    "a logarithm of one": lambda x, w: (x * w[:, None, None]).log_softmax(1),
    "along rows": lambda x, w: x.log_softmax(2),
    "with the result": lambda x, w: (F.group_norm(x, 2, w), x.mean((2, 3)), x.amax(1)),
    "largest of all": lambda x, w: (x / x.abs().amax((1, 2, 3), keepdim=True)).contiguous(),
}
SIZES = ((2, 8, 17, 33), (2, 8, 17, 33), (1, 8, 40, 24), (3, 4, 9, 8), (2, 4, 1, 50), (2, 4, 50, 1), (1, 4, 2, 3))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16], ids=str)
@pytest.mark.parametrize("name", PROGRAMS)
def test_turned_pictures(name, dtype):
    program, near = PROGRAMS[name], {"rtol": 5e-2, "atol": 5e-2} if dtype is torch.bfloat16 else {}
    fast = framefuse.compile(program)
    torch.manual_seed(0)
    for batch, channels, height, width in SIZES:
        x, w = torch.randn(batch, channels, width, height).to(dtype).mT, torch.randn(channels).to(dtype)
        mine, others = fast(x, w), program(x, w)
        torch.testing.assert_close(mine, others, **near)
        pairs = zip(mine, others, strict=True) if isinstance(mine, tuple) else ((mine, others),)
        assert all(ours.stride() == eagers.stride() for ours, eagers in pairs)
    assert fast.hits >= 4


@pytest.mark.parametrize("name", ["groups of channels", "layers", "a softmax along channels", "along rows"])
def test_gradients(name):
    def step(x, w, g):
        return torch.autograd.grad((PROGRAMS[name](x, w) * g).sum(), x)

    fast = framefuse.compile(step)
    for height, width in ((17, 33), (17, 33), (40, 24), (8, 9)):
        x, w = torch.randn(2, 8, width, height).mT.requires_grad_(), torch.randn(8)
        g = torch.randn(2, 8, height, width)
        torch.testing.assert_close(fast(x, w, g), step(x, w, g), rtol=1e-4, atol=1e-4)
    assert fast.hits >= 2


@pytest.mark.parametrize("name", ["groups of channels", "layers", "a logarithm of one"])
def test_all_vectors_lie_along_memory(name):
    fast = framefuse.compile(PROGRAMS[name])
    for _ in range(2):
        fast(torch.randn(2, 8, 33, 17).mT, torch.randn(8))
    (product,) = compiled_function(fast).products
    kernels = [item.kernel for item in product.stages.code.schedule.items if isinstance(item, RunKernel)]
    parts = [part for kernel in kernels for part in statements(kernel.body)]
    assert any(isinstance(part, Scratch) for part in parts)
    for loop in (part for part in parts if isinstance(part, Loop) and part.kind is LoopKind.VECTOR):
        loads = [part for part in values_of(loop.body) if isinstance(part, Load)]
        assert all(load.index.coefficient(loop.axis).constant in (0, 1) for load in loads)


def test_small_and_narrow_ones_stay_one_kernel():
    for sizes in ((1, 4, 5, 6), (8, 4, 3, 400)):
        fast = framefuse.compile(PROGRAMS["layers"])
        for _ in range(2):
            fast(torch.randn(sizes).mT, None)
        (product,) = compiled_function(fast).products
        assert sum(isinstance(item, RunKernel) for item in product.stages.code.schedule.items) == 1
