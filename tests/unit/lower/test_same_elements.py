"""Sizes that a reshape is given as numbers follow the dimensions that hold the same elements."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

import framefuse
from framefuse.api import compiled_function
from framefuse.ir.loops.print import kernel_text
from framefuse.ir.schedule import RunKernel

LAST = torch.channels_last
PROGRAMS: dict[str, tuple[Callable[[torch.Tensor], torch.Tensor], list[tuple[int, ...]]]] = {
    "patches": (
        lambda x: x.unfold(2, 4, 4).unfold(3, 4, 4).permute(0, 2, 3, 1, 4, 5).reshape(2, 12, -1) * 2,
        [(2, 3, 12, 16), (2, 3, 12, 16), (2, 5, 12, 16), (2, 3, 24, 8)],
    ),
    "shuffled channels": (
        lambda x: x.to(memory_format=LAST).view(2, 3, 4, 6, 5).transpose(1, 2).reshape(2, 12, 6, 5) + 1,
        [(2, 12, 6, 5), (2, 12, 6, 5)],
    ),
    "heads": (
        lambda x: x.view(2, 5, 4, 8).transpose(1, 2).reshape(8, 5, 8) * 2,
        [(2, 5, 32), (2, 5, 32)],
    ),
    "rows of numbers": (lambda x: x.t().reshape(-1, 6).exp().amax(1), [(6, 8), (6, 8), (4, 9), (12, 7), (6, 6)]),
    "by chance": (lambda x: x.reshape(4, -1).sum(1), [(4, 6), (4, 6), (8, 3), (2, 10), (16, 1)]),
    "of one": (lambda x: x.reshape(1, 6, 1, -1) * 3, [(6, 1, 4), (6, 1, 4), (1, 6, 4), (3, 2, 2), (6, 1, 1)]),
}


@pytest.mark.parametrize("requires_grad", [False, True])
@pytest.mark.parametrize("name", PROGRAMS)
def test_it_is_eager(name: str, requires_grad: bool) -> None:
    program, shapes = PROGRAMS[name]
    fast = framefuse.compile(program)
    for shape in (*shapes, *shapes):
        x = torch.randn(shape, requires_grad=requires_grad)
        found, expected = fast(x), program(x)
        torch.testing.assert_close(found, expected)
        assert found.stride() == expected.stride()
        if requires_grad:
            mine, yours = (torch.autograd.grad(each.square().sum(), x)[0] for each in (found, expected))
            torch.testing.assert_close(mine, yours)
    assert compiled_function(fast).dispatch.hits >= len(shapes)  # type: ignore[union-attr]


@pytest.mark.parametrize("name", ["patches", "shuffled channels", "heads"])
def test_kernels_divide_no_position_of_an_element(name: str) -> None:
    program, shapes = PROGRAMS[name]
    fast = framefuse.compile(program)
    for _ in range(2):
        x = torch.randn(shapes[0])
        torch.testing.assert_close(fast(x), program(x))
    (product,) = compiled_function(fast).products  # type: ignore[union-attr]
    (kernel,) = (item.kernel for item in product.stages.code.schedule.items if isinstance(item, RunKernel))
    stores = [line for line in kernel_text(kernel).splitlines() if "] =" in line]
    assert stores and not any("//" in line or "%" in line for line in stores), stores
