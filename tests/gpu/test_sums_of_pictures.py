"""Sums over pictures that keep channels or groups, of operands that lie in one order or in two, are eager's."""

import pytest
import torch
from tests.gpu.test_programs import DEVICE, checked, close, kernels, pytestmark  # noqa: F401

import framefuse
from framefuse.ir import costs


def sums(x, g):
    return (x * g).sum((0, 2, 3)), g.sum((2, 3)), (x - g).amax((0, 2, 3))


def kept(x, g):
    y = torch.exp(-x.abs()) * g
    return y, y.sum((2, 3)), (y * x).sum((2, 3))


def grouped(x, g):
    x, g = (one.unflatten(1, (-1, 3)) for one in (x, g))
    return (x * g).sum((3, 4)), (g * (x - x.mean((2, 3, 4), keepdim=True))).sum((3, 4))


@pytest.mark.parametrize("program", [sums, kept, grouped], ids=lambda program: program.__name__)
@pytest.mark.parametrize("lay", [("first", "last"), ("last", "last")], ids="-".join)
def test_channels_stay(program, lay, monkeypatch):
    monkeypatch.setattr(costs, "GPU_ALONE", 256)  # so that small pictures are cut into chunks as large ones are
    monkeypatch.setattr(costs, "GPU_CHUNK", (64, 16))
    order = {"first": torch.contiguous_format, "last": torch.channels_last}
    fast = framefuse.compile(program)
    torch.manual_seed(0)
    for shape in ((2, 24, 9, 11), (2, 24, 9, 11), (1, 9, 14, 10)):
        x, g = (torch.randn(shape, device=DEVICE).contiguous(memory_format=order[one]) for one in lay)
        close(fast(x, g), program(x, g), 100)
    assert kernels(checked(fast, 2)) >= 1
