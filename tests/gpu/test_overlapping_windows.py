"""Windows that overlap are views: kernels read them where they lie, few elements by one thread, and calls take them."""

import pytest
import torch
from tests.gpu.test_programs import DEVICE, checked, close, pytestmark  # noqa: F401
from torch.nn import functional as F

import framefuse
from framefuse.ir import costs
from framefuse.ir.loops import Loop, LoopKind
from framefuse.ir.loops.walk import statements
from framefuse.ir.schedule import RunCall, RunKernel
from framefuse.lower import line_windows


def bilateral(x):
    padded = F.pad(x, (2, 2, 2, 2), mode="reflect")
    patches = padded.unfold(2, 5, 1).unfold(3, 5, 1)
    near = torch.exp(-((patches - x[..., None, None]) ** 2) / 0.02)
    return (patches * near).sum((-1, -2)) / near.sum((-1, -2))


REDUCED = {
    "largest": (lambda x: x.unfold(-1, 16, 1).amax(-1), (3, 90), 1),
    "over both sides": (lambda x: x.unfold(1, 3, 1).unfold(2, 4, 1).amax((-1, -2)), (2, 12, 40), 1),
    "softmax": (lambda x: (x.unfold(-1, 5, 1).softmax(-1) * x.unfold(-1, 5, 1)).sum(-1), (2, 70), 1),
    "variance": (lambda x: x.unfold(-1, 9, 1).var(-1), (2, 70), 1),
    "bilateral": (bilateral, (1, 2, 12, 36), 2),
    "a Hankel matrix": (lambda x: x.as_strided((x.numel() - 19, 20), (1, 1)).logsumexp(1), (80,), 1),
    "computed before": (lambda x: (x.exp() * 2).unfold(-1, 6, 1).amin(-1), (3, 70), None),
}  # fmt: skip
OTHERS = {
    "far apart": lambda x: x.unfold(-1, 40, 3).sum(-1),
    "long": lambda x: x.unfold(-1, 70, 1).sum(-1),
    "by positions": lambda x: x.unfold(-1, 6, 1).argmax(-1),
    "written": lambda x: x.unfold(-1, 6, 1).softmax(-1),
    "along the first": lambda x: x.T.unfold(0, 7, 1).mean(-1),
}


@pytest.fixture(autouse=True)
def everywhere(monkeypatch):
    monkeypatch.setattr(line_windows, "VIEWED", {})
    monkeypatch.setattr(costs, "GPU_LANES", 4)
    monkeypatch.setattr(costs, "GPU_WINDOWED", 64)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("name", REDUCED)
def test_a_thread_goes_over_a_short_window(name, dtype):
    function, shape, kernels = REDUCED[name]
    fast = framefuse.compile(function)
    for row in range(4):
        x = torch.randn([*shape[:-1], shape[-1] + row // 2], device=DEVICE).to(dtype)
        with torch.no_grad():
            found, expected = fast(x), function(x)
        close(found, expected)
        assert found.stride() == expected.stride()
    for product in checked(fast, 2):
        items = [item for item in product.stages.code.schedule.items if isinstance(item, RunKernel)]
        assert kernels in (None, len(items))
        loops = [each for each in statements(items[-1].kernel.body) if isinstance(each, Loop)]
        assert {loop.kind for loop in loops} == {LoopKind.PARALLEL, LoopKind.SERIAL}


@pytest.mark.parametrize("name", OTHERS)
def test_other_windows_are_read_where_they_lie(name):
    function = OTHERS[name]
    fast = framefuse.compile(function)
    for row in range(4):
        x = torch.randn(3, 120 + row // 2, device=DEVICE)
        with torch.no_grad():
            found, expected = fast(x), function(x)
        close(found, expected)
        assert found.stride() == expected.stride()
    for product in checked(fast, 2):
        assert not any(isinstance(item, RunCall) for item in product.stages.code.schedule.items)


def test_products_take_them():
    def function(x, w):
        return x.as_strided((30, 20), (1, 1)) @ w

    fast = framefuse.compile(function)
    for _ in range(4):
        x, w = torch.randn(60, device=DEVICE), torch.randn(20, 8, device=DEVICE)
        with torch.no_grad():
            close(fast(x, w), function(x, w))
    checked(fast, 2)


@pytest.mark.parametrize("how", [(5, 1), (6, 2), (8, 6), (4, 3), (20, 1)])
def test_gradients_add_up(how):
    def function(x):
        return (x.exp().unfold(1, *how) ** 2).sum(-1).sqrt()

    fast = framefuse.compile(function)
    for row in range(4):
        x = torch.randn(2, 41 + row // 2, 3, device=DEVICE, requires_grad=True)
        given = torch.autograd.grad(fast(x).sum(), x)[0]
        close(given, torch.autograd.grad(function(x).sum(), x)[0])
    checked(fast, 2)


def test_a_view_that_leaves_is_the_programs_own():
    fast = framefuse.compile(lambda x: (x.unfold(0, 5, 1), x * 2))
    for _ in range(3):
        x = torch.randn(30, device=DEVICE)
        found = fast(x)[0]
        assert found.data_ptr() == x.data_ptr() and found.stride() == (1, 1)
        x.add_(1)
        close(found, x.unfold(0, 5, 1))
