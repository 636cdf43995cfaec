"""``as_strided`` of row-major memory is a view that kernels read where it lies: values, gradients, writes, calls."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

import framefuse
from framefuse.api import compiled_function
from framefuse.ir.plan import CallStep

VIEWS: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "turned": lambda x: x.as_strided((8, 10), (2, 48)) * 2,
    "rows of another length": lambda x: x.as_strided((5, 30), (40, 1)).sum(-1),
    "cut three times": lambda x: x.as_strided((2, 4, 3, 5), (300, 5, 90, 1)) + 1,
    "the diagonal": lambda x: x.as_strided((8,), (x.size(1) + 1,)).exp(),
    "the transpose": lambda x: x.as_strided((x.size(1), x.size(0)), (1, x.size(1))) * 3,
    "every second": lambda x: x.view(-1).as_strided((x.size(0), x.size(1) // 2), (x.size(1), 2)) - 1,
    "of one element": lambda x: x.as_strided((3, 1, 5), (7, 10**6, 1)).amax(0),
    "the same again": lambda x: x.as_strided((4, 6), (0, 2)) * x[:4, :6],
    "windows": lambda x: x.as_strided((9, 8), (2, 1)) * 2,
    "windows of many blocks": lambda x: x.as_strided((9, 37), (2, 1)) * 2,
    "windows in rows": lambda x: x.as_strided((4, 5, 16), (100, 8, 1)) * 2,
    "windows of every second": lambda x: x.as_strided((3, 12, 5), (60, 3, 2)).sum(1),
    "no dimension": lambda x: x.as_strided((), ()) * 2,
}
LIBRARY: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "an offset": lambda x: x.as_strided((4, 4), (4, 1), 3) * 2,
    "a part": lambda x: x[2:].as_strided((4, 4), (4, 1)) * 2,
    "a transpose": lambda x: x.t().as_strided((4, 4), (1, 4)) * 2,
    "no row behind the last": lambda x: x[:4].clone().as_strided((2, 4), (x.size(1) * 2 + 3, 7)) * 2,
}
SIZES = ((24, 30), (24, 30), (26, 34), (40, 30))


def check(function: Callable[..., torch.Tensor], *, library: bool) -> None:
    compiled = framefuse.compile(function)
    for sizes in SIZES:
        x = torch.randn(sizes)
        expected, found = function(x), compiled(x)
        torch.testing.assert_close(found, expected)
        assert found.stride() == expected.stride()
        given = torch.autograd.grad(compiled(x.requires_grad_()).sin().sum(), x)[0]
        torch.testing.assert_close(given, torch.autograd.grad(function(x).sin().sum(), x)[0])
    steps = [product.stages.plan.steps for product in compiled_function(compiled).products]
    called = [[step for step in each if isinstance(step, CallStep) and step.name != "attach"] for each in steps]
    assert {len(each) > 0 for each in called} == {library}


@pytest.mark.parametrize("name", VIEWS)
def test_kernels_read_it(name: str) -> None:
    check(VIEWS[name], library=False)


@pytest.mark.parametrize("name", LIBRARY)
def test_the_library_makes_the_others(name: str) -> None:
    check(LIBRARY[name], library=True)


def test_other_memory_is_recorded_anew() -> None:
    function = VIEWS["turned"]
    compiled = framefuse.compile(function)
    layouts: tuple[Callable[[], Any], ...] = (
        lambda: torch.randn(24, 30),
        lambda: torch.randn(30, 24).t(),
        lambda: torch.randn(24, 60)[:, ::2],
        lambda: torch.randn(48, 30)[24:],
    )
    for make in (*layouts, *layouts):
        x = make()
        torch.testing.assert_close(compiled(x), function(x))
    assert compiled_function(compiled).dispatch.hits >= len(layouts)


def test_writes_go_to_the_memory() -> None:
    def function(x: torch.Tensor) -> torch.Tensor:
        x.as_strided((4, 4), (60, 2)).mul_(3)
        return x + 1

    compiled = framefuse.compile(function)
    for _ in range(3):
        mine = torch.randn(24, 30)
        other = mine.clone()
        torch.testing.assert_close(compiled(mine), function(other))
        torch.testing.assert_close(mine, other)
    assert compiled_function(compiled).dispatch.hits == 2


def test_it_leaves_as_a_view() -> None:
    compiled = framefuse.compile(lambda x: x.as_strided((4, 4), (60, 2)))
    for _ in range(3):
        x = torch.randn(24, 30)
        found = compiled(x)
        assert found.stride() == (60, 2) and found.data_ptr() == x.data_ptr() and found._is_view()
