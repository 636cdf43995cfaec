"""Positions as floats are eager's, however far they are moved; AVX2 makes them by the bits of doubles."""

import pytest
import torch

import framefuse


def floats_of_positions(x, first):
    places = torch.arange(x.shape[-1])
    moved = torch.arange(first, first + x.shape[-1])
    apart = places[None] - places[:, None]
    return (
        x + places, x * moved, apart.abs().float() * x, (places * 3 - 7).double() + x, places.to(torch.bfloat16),
        (moved - places).float() + x, (-places).to(torch.float16) * 2, (places * 16777217).float() + x,
    )  # fmt: skip


@pytest.mark.parametrize("first", [0, -3, 2**24 + 1, 2**31 - 3, 2**53 + 1, -(2**60)])
def test_positions_as_floats(first):
    fast = framefuse.compile(floats_of_positions)
    for size in (5, 5, 67, 300):
        x = torch.randn(size, size)
        for made, wanted in zip(fast(x, first), floats_of_positions(x, first), strict=True):
            assert torch.equal(made, wanted)
    assert fast.hits >= 1
