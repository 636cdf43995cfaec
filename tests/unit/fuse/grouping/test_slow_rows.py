"""What a slow operation gives for a row is kept on a CPU, where each row would compute it again."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

import framefuse
from framefuse.ir.schedule import RunKernel
from framefuse.runtime.function import compiled_function

SLOW: dict[str, Callable[[torch.Tensor, torch.Tensor], torch.Tensor]] = {
    "exp": lambda x, w: x * w.exp(),
    "sigmoid and an addition": lambda x, w: x * (w.sigmoid() + 1),
    "root": lambda x, w: x / (w.abs() + 1).sqrt(),
}
ONCE: dict[str, Callable[[torch.Tensor, torch.Tensor], torch.Tensor]] = {
    "a sum": lambda x, w: x * (w + 1),
    "of each row": lambda x, w: x * x[:, :1].exp(),
    "few rows": lambda x, w: x[:4, :40] * w[:40].exp(),
}


def kernels(program: Callable[[torch.Tensor, torch.Tensor], torch.Tensor]) -> int:
    fast = framefuse.compile(program)
    for rows, columns in ((300, 256), (300, 256), (70, 90)):
        x, w = torch.randn(rows, columns), torch.randn(columns)
        torch.testing.assert_close(fast(x, w), program(x, w))
    (product,) = compiled_function(fast).products  # type: ignore[union-attr]
    return sum(isinstance(item, RunKernel) for item in product.stages.code.schedule.items)


@pytest.mark.parametrize("name", SLOW)
def test_it_is_computed_once(name: str) -> None:
    assert kernels(SLOW[name]) == 2


@pytest.mark.parametrize("name", ONCE)
def test_what_is_cheap_or_rare_is_computed_where_it_is_used(name: str) -> None:
    assert kernels(ONCE[name]) == 1


@pytest.mark.parametrize("last", [False, True])
def test_what_is_slow_for_each_channel_is_computed_once_in_either_layout(last: bool) -> None:
    def gated(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        return x * w.sigmoid()

    fast, layout = framefuse.compile(gated), torch.channels_last if last else torch.contiguous_format
    for sides in ((14, 20), (14, 20), (9, 11)):
        x, w = torch.randn(4, 64, *sides).to(memory_format=layout), torch.randn(4, 64, 1, 1)
        torch.testing.assert_close(fast(x, w), gated(x, w))
    (product,) = compiled_function(fast).products  # type: ignore[union-attr]
    # a channel is a row of contiguous pictures, which computes it before its loop
    assert sum(isinstance(item, RunKernel) for item in product.stages.code.schedule.items) == 1 + last
