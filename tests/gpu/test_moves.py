"""Borders, rolls, windows, shuffles and copies into another order are kernels that load each element once."""

import pytest
import torch
from tests.gpu.test_programs import DEVICE, checked, pytestmark  # noqa: F401
from torch.nn import functional as F

import framefuse
from framefuse.fuse import costs
from framefuse.ir.loops import Load
from framefuse.ir.loops.walk import values_of
from framefuse.ir.schedule import Allocate, RunKernel
from framefuse.lower import convolution, own_memory

MOVES = {
    "reflect": (lambda x: F.pad(x, (3, 2, 1, 3), mode="reflect"), (2, 3, 7, 9)),
    "replicate": (lambda x: F.pad(x.sin(), (3, 2, 1, 3, 2, 1), mode="replicate"), (2, 3, 4, 5, 6)),
    "circular": (lambda x: F.pad(x, (3, 2, 1, 3), mode="circular") * 2, (2, 3, 7, 9)),
    "roll": (lambda x: torch.roll(x, (3, -2), (2, 3)), (2, 3, 7, 9)),
    "windows": (lambda x: torch.stack([x[:, i : i + 6] for i in range(5)], 1).amax(1), (3, 11)),
    "unfold": (lambda x: F.unfold(x, (2, 3), (2, 1), (1, 2), (2, 1)), (2, 3, 8, 9)),
    "unfold of one": (lambda x: F.unfold(x, 3, padding=1) + 1, (3, 6, 5)),
    "shuffle": (lambda x: F.pixel_shuffle(x, 3), (2, 18, 4, 30)),
    "shuffle by 2": (lambda x: F.pixel_shuffle(x, 2), (2, 8, 5, 9)),
    "unshuffle": (lambda x: F.pixel_unshuffle(x, 3), (2, 2, 12, 33)),
    "contiguous": (lambda x: x.contiguous(), (2, 5, 6, 9)),
    "volume": (lambda x: x.contiguous(), (2, 5, 3, 6, 4)),
}
ORDERS = {"contiguous": torch.channels_last, "volume": torch.channels_last_3d}


@pytest.fixture(autouse=True)
def everywhere(monkeypatch):
    for module, name in ((convolution, "COPIED"), (own_memory, "TURNED")):
        monkeypatch.setattr(module, name, {})
    for name, value in {"GPU_TILE_LEAST": 16, "GPU_CROSSED": 4}.items():
        monkeypatch.setattr(costs, name, value)


@pytest.mark.parametrize("name", MOVES)
def test_moves(name):
    function, shape = MOVES[name]
    torch.manual_seed(0)
    fast = framefuse.compile(function)
    for row in range(4):
        more = {"roll": 1, "reflect": 1, "circular": 1, "contiguous": 1, "shuffle by 2": 4}.get(name, 0) * (row // 2)
        x = torch.randn([size + more for size in shape], device=DEVICE)
        x = x.to(memory_format=ORDERS.get(name, torch.contiguous_format))
        with torch.no_grad():
            found, expected = fast(x), function(x)
        torch.testing.assert_close(found, expected)
        assert found.stride() == expected.stride() and found.data_ptr() != x.data_ptr()
    for product in checked(fast, 2):
        items = [item for item in product.stages.code.schedule.items if not isinstance(item, Allocate)]
        assert items and all(isinstance(item, RunKernel) for item in items), items
        for item in items:
            assert sum(isinstance(value, Load) for value in values_of(item.kernel.body)) == 1


@pytest.mark.parametrize("mode", ["reflect", "replicate", "circular"])
def test_gradients_of_borders(mode):
    torch.manual_seed(0)
    fast = framefuse.compile(lambda x: F.pad(x * 2, (2, 1, 1, 2), mode=mode).sin())
    for _ in range(3):
        x = torch.randn(2, 3, 5, 6, device=DEVICE, requires_grad=True)
        y = F.pad(x * 2, (2, 1, 1, 2), mode=mode).sin()
        (expected,) = torch.autograd.grad(y.square().sum(), x)
        (found,) = torch.autograd.grad(fast(x).square().sum(), x)
        torch.testing.assert_close(found, expected)
