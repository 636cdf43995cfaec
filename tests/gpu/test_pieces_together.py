"""Pieces of a cat or stack of one size are computed together, each element of theirs is loaded once and written where
it belongs: neighbours by whole vectors.
"""

import pytest
import torch
from tests.gpu.test_programs import DEVICE, checked, kernels, pytestmark  # noqa: F401

import framefuse
from framefuse.ir import costs
from framefuse.ir.loops import Load
from framefuse.ir.loops.walk import values_of
from framefuse.ir.schedule import RunKernel


def turned(x, cos, sin):
    even, odd = x[..., ::2], x[..., 1::2]
    return torch.stack([even * cos - odd * sin, even * sin + odd * cos], dim=-1).flatten(-2)


def halves(x, cos, sin):
    first, second = x.chunk(2, dim=-1)
    return torch.cat([first * cos - second * sin, second * cos + first * sin], dim=-1)


def rotated(x, cos, sin):
    half = x.shape[-1] // 2
    cos, sin = torch.cat([cos, cos], -1), torch.cat([sin, sin], -1)
    return x * cos + torch.cat([-x[..., half:], x[..., :half]], -1) * sin


def pairs(x, cos, sin):
    one, other = x.float().reshape(*x.shape[:-1], -1, 2).unbind(-1)
    return torch.stack([one * cos - other * sin, one * sin + other * cos], -1).flatten(-2).type_as(x)


def four(x, cos, sin):
    a, b, c, d = (x[..., k::4] for k in range(4))
    return torch.stack([a + b, a - b, c * d, c - a], -1).flatten(-2) * 2


def three(x, cos, sin):
    return torch.stack([x.sin(), x + 1, x * 2], -1)


def in_front(x, cos, sin):
    return torch.cat([x.sin(), x * 2]), torch.stack([x, -x], 1) + 1


def of_stacks(x, cos, sin):
    a, b = x[..., ::2], x[..., 1::2]
    return torch.cat([torch.stack([a + b, a - b], -1), torch.stack([b - a, a * b], -1)], -1)


def written(x, cos, sin):
    y = x + 1
    a, b = y[..., ::2], y[..., 1::2]
    y.copy_(torch.stack([b, a], -1).flatten(-2))
    return y


@pytest.fixture(autouse=True)
def small_tiles(monkeypatch):
    monkeypatch.setattr(costs, "GPU_TILE_LEAST", 16)


PROGRAMS = {f.__name__: f for f in (turned, halves, rotated, pairs, four, three, in_front, of_stacks, written)}
LOADS = {"turned": 4, "halves": 4, "rotated": 4, "pairs": 4, "four": 4, "three": 1, "of_stacks": 2}
SHAPES = (2, 3, 5, 12), (3, 1, 7, 64), (1, 2, 16, 136), (2, 2, 1, 4)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64])
@pytest.mark.parametrize("name", PROGRAMS)
def test_pieces_are_computed_together(name, dtype):
    function = PROGRAMS[name]
    torch.manual_seed(0)
    fast = framefuse.compile(function)
    for shape in (SHAPES[0], *SHAPES):
        x = torch.randn(shape, device=DEVICE).to(dtype)
        cos, sin = (torch.randn(shape[-2], shape[-1] // 2, device=DEVICE).to(dtype) for _ in range(2))
        with torch.no_grad():
            found, expected = fast(x, cos, sin), function(x.double(), cos.double(), sin.double())
        both = ((each,) if isinstance(each, torch.Tensor) else each for each in (found, expected))
        for one, other in zip(*both, strict=True):
            near = {"atol": 0.05, "rtol": 0.02} if dtype is torch.bfloat16 else {}
            torch.testing.assert_close(one, other.to(dtype), **near)
            assert one.stride() == other.stride()
    products = checked(fast, 4)
    if name in LOADS:
        assert kernels(products) == len(products)
        for product in products:
            (item,) = (item for item in product.stages.code.schedule.items if isinstance(item, RunKernel))
            loads = [value for value in values_of(item.kernel.body) if isinstance(value, Load)]
            assert len({(load.buffer, load.index) for load in loads}) == LOADS[name]
            assert all(load.mask is None for load in loads)


def test_an_odd_length_has_a_trace_of_its_own():
    fast = framefuse.compile(lambda x: torch.cat([-x[..., x.shape[-1] // 2 :], x[..., : x.shape[-1] // 2]], -1) * 2)
    for length in (8, 12, 9, 8, 13, 10):
        x = torch.randn(3, length, device=DEVICE)
        half = length // 2
        torch.testing.assert_close(fast(x), torch.cat([-x[:, half:], x[:, :half]], -1) * 2)
    checked(fast, 4)


@pytest.mark.parametrize("heads", [1, 4])
@pytest.mark.parametrize("half", [3, 4])
@pytest.mark.parametrize("spare", [0, 8])
def test_rotary_of_neighbours_in_wider_heads(heads, half, spare):
    """Where points of a tile find their row by a division, what is neighbours in one row is none in the next."""

    def rotary(q, cos, sin):
        batch, length, _ = q.shape
        q = q.view(batch, length, heads, -1).transpose(1, 2)[..., spare:]
        cos, sin = cos[..., :half], sin[..., :half]
        even, odd = q[..., ::2], q[..., 1::2]
        return torch.cat([even * cos - odd * sin, odd * cos + even * sin], -1)

    fast = framefuse.compile(rotary)
    for batch, length in ((2, 16), (2, 16), (3, 16), (2, 24), (3, 17)):
        q = torch.randn(batch, length, heads * (spare + 2 * half), device=DEVICE)
        cos, sin = torch.randn(2, length, 2 * half, device=DEVICE)
        torch.testing.assert_close(fast(q, cos, sin), rotary(q, cos, sin))
    assert kernels(checked(fast, 3)) >= 1
