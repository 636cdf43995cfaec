"""Kernels that write inputs in place: where nothing reads the old contents later, and nothing after them can fail."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import framefuse
from framefuse.ir.identity import identity
from framefuse.ir.plan import CallStep


def compiled(function: Any, *args: Any) -> tuple[Any, list[str]]:
    """The compiled function after a first call, and the names of its plan's calls."""
    made = framefuse.compile(function)
    made(*args)
    plan = made.__framefuse__.products[-1].stages["plan"]
    return made, [step.name for step in plan.steps if isinstance(step, CallStep)]


def same(function: Any, made: Any, make: Any) -> None:
    for seed in range(3):
        torch.manual_seed(seed)
        eager = make()
        torch.manual_seed(seed)
        ours = make()
        expected, found = function(*eager), made(*ours)
        torch.testing.assert_close(found, expected)
        for left, right in zip(eager, ours, strict=True):
            torch.testing.assert_close(right, left)
            assert right._version == left._version
    assert made.__framefuse__.dispatch.hits == 3


def pair() -> tuple[torch.Tensor, torch.Tensor]:
    return torch.randn(6, 5), torch.randn(6, 5)


def test_a_last_write_needs_no_copy() -> None:
    def step(x: torch.Tensor, g: torch.Tensor) -> None:
        x.mul_(0.5).add_(g)
        g.zero_()

    made, calls = compiled(step, *pair())
    assert calls == ["versions"]
    same(step, made, pair)


def test_old_contents_that_are_read_later_are_kept() -> None:
    def swap(x: torch.Tensor, y: torch.Tensor) -> None:
        z = x.clone()
        x.copy_(y)
        y.copy_(z)

    def transposed(x: torch.Tensor, y: torch.Tensor) -> None:
        x.add_(y.sum(0))
        x.copy_(x.flip(0))

    for function in (swap, transposed):
        made, calls = compiled(function, *pair())
        assert "copy_" in calls
        same(function, made, pair)


def test_a_result_has_memory_of_its_own() -> None:
    def step(x: torch.Tensor, g: torch.Tensor) -> torch.Tensor:
        y = x + g
        x.copy_(y)
        return y

    made, _ = compiled(step, *pair())
    same(step, made, pair)
    x, g = pair()
    y = made(x, g)
    y.zero_()
    assert x.abs().sum() > 0


def test_nothing_is_half_written_when_a_later_step_fails() -> None:
    def step(x: torch.Tensor, places: torch.Tensor) -> torch.Tensor:
        x.add_(1)
        return torch.ones(3)[places]

    made, _ = compiled(step, torch.zeros(4), torch.tensor([0, 1]))
    x = torch.zeros(4)
    with pytest.raises(IndexError):
        made(x, torch.tensor([0, 7]))
    assert torch.equal(x, torch.ones(4))  # eager's one write
    assert made.__framefuse__.dispatch.hits == 1


def test_a_call_that_was_given_an_input_may_have_kept_it() -> None:
    def step(x: torch.Tensor, g: torch.Tensor) -> torch.Tensor:
        order = torch.argsort(x.view(-1))
        x.add_(g)
        return order

    made, calls = compiled(step, *pair())
    assert "copy_" in calls
    same(step, made, pair)


def test_inference_tensors_have_no_versions() -> None:
    def step(x: torch.Tensor, g: torch.Tensor) -> None:
        x.mul_(0.5).add_(g)

    with torch.inference_mode():
        made, calls = compiled(step, *pair())
        assert calls == ["versions"]
        x, g = pair()
        expected = x * 0.5 + g
        made(x, g)
        torch.testing.assert_close(x, expected)
    assert made.__framefuse__.dispatch.hits == 1


def test_kernels_that_differ_in_length_are_one() -> None:
    def step(*tensors: torch.Tensor) -> None:
        for tensor in tensors:
            tensor.mul_(0.5).add_(1)

    sizes = [(3, 4), (7,), (1,), (0, 3), (40, 40), ()]
    made = framefuse.compile(step, dynamic=False)
    made(*[torch.ones(size) for size in sizes])
    schedule = made.__framefuse__.products[-1].stages["schedule"]
    kernels = [item.kernel for item in schedule.items if hasattr(item, "kernel")]
    assert len(kernels) == 6 and len({identity(kernel) for kernel in kernels}) <= 3
    tensors = [torch.randn(size) for size in sizes]
    expected = [tensor * 0.5 + 1 for tensor in tensors]
    made(*tensors)
    torch.testing.assert_close(tensors, expected)
    assert made.__framefuse__.dispatch.hits == 1


def test_a_row_kept_in_a_result_is_read_before_that_result_is_written() -> None:
    """What a row's second loop needs again waits in the memory of a result, which another result may overtake."""

    def function(x: Any, y: Any, z: Any, w: Any) -> Any:
        total = z + w
        first = x * z + total * y
        second = x * -w - total * y
        sums = [part.sum(-1, keepdim=True) for part in (first, second, z * y)]
        late = first - (sums[0] * y + x * sums[2])
        return late, z * y - y * sums[2], x * (w + sums[0]) + (total + sums[1]) * y

    fast = framefuse.compile(function)
    for seed in range(3):
        generator = torch.Generator().manual_seed(seed)
        given = [torch.randn(8, 16, dtype=torch.float64, generator=generator) for _ in range(4)]
        torch.testing.assert_close(fast(*given), function(*given))
