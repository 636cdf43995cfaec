"""Sizes that come in a tuple or list of the caller's: another sequence of the same length is other sizes."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from tests.traps.trap import Trap, hold
from torch import Tensor
from torch.nn import functional as F

CALLS: dict[str, Callable[[Tensor, Any], Any]] = {
    "view": lambda x, sizes: x.view(sizes).sum(0),
    "view by keyword": lambda x, sizes: x.view(size=sizes) * 2,
    "reshape": lambda x, sizes: torch.reshape(x, sizes) * 2,
    "unflatten": lambda x, sizes: x.unflatten(0, sizes).sum(1),
    "zeros": lambda x, sizes: torch.zeros(sizes) + x[0],
    "full in a tuple": lambda x, sizes: torch.full((sizes[1], *sizes), 2.0) * x[0],
    "new_ones": lambda x, sizes: x.new_ones(sizes) * x[0],
    "randn": lambda x, sizes: torch.randn(sizes).shape,
    "expand": lambda x, sizes: x[:1].expand(sizes) * 2,
    "broadcast_to": lambda x, sizes: torch.broadcast_to(x[:1], sizes) * 2,
    "repeat": lambda x, sizes: x.repeat(sizes),
    "tile": lambda x, sizes: x.tile(sizes),
    "as_strided": lambda x, sizes: x.as_strided(sizes, (sizes[1], 1)) * 2,
    "split": lambda x, sizes: x[:5].split(sizes)[0] * 2,
    "pad": lambda x, sizes: F.pad(x, sizes),
    "interpolate": lambda x, sizes: F.interpolate(x.view(1, 1, 2, 3), sizes),
    "sum": lambda x, sizes: x.view(1, 1, 2, 3).sum(sizes),
    "roll": lambda x, sizes: x.view(2, 3).roll(sizes, (0, 1)),
    "strides of a convolution": lambda x, sizes: F.conv2d(x.view(1, 1, 2, 3), x[:1].view(1, 1, 1, 1), stride=sizes),
    "item of a dict": lambda x, sizes: x.view({"sizes": sizes}["sizes"]) * 2,
    "nested": lambda x, sizes: torch.tensor([sizes, sizes]) * x[0],
}


@pytest.mark.parametrize("kind", [tuple, list])
@pytest.mark.parametrize("name", CALLS)
def test_sizes_given_in_sequences(name: str, kind: type) -> None:
    def program(compiled: Any) -> Iterator[Any]:
        f = compiled(CALLS[name])
        for number, sizes in enumerate([(2, 3), (3, 2)] * 3):
            yield f(torch.arange(6.0) + number, kind(sizes))

    hold(Trap(program, traces=4, hits=2))


def test_an_operand_that_a_call_gives_back_is_that_of_its_numbers() -> None:
    def program(compiled: Any) -> Iterator[Any]:
        f = compiled(lambda x, sizes: x.sum_to_size(sizes) * 2)
        for number, sizes in enumerate([(2, 3), (2, 3), (1, 3), (2, 1), (2, 3), (1, 1), (1, 3)]):
            yield f(torch.arange(6.0).view(2, 3) + number, sizes)

    hold(Trap(program, traces=5, hits=2))


def test_gradients_of_a_call_whose_sizes_are_elements_of_a_tensor() -> None:
    def program(compiled: Any) -> Iterator[Any]:
        def resized(x: Tensor, sizes: Tensor) -> Tensor:
            parts = [F.interpolate(x * 2, size=(high, wide), mode="bilinear") for high, wide in sizes]
            return torch.cat([part.flatten(2).sum(-1) for part in parts])

        f = compiled(resized)
        for number in range(4):
            x = (torch.arange(12.0).view(1, 3, 2, 2) + number).requires_grad_()
            found = f(x, torch.tensor([[3, 2 + number % 3], [2, 4]]))
            yield found
            found.sin().sum().backward()
            yield x.grad

    hold(Trap(program, traces=1, hits=3))
