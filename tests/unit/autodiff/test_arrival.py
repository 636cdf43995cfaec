"""Leaves get their gradients in the order that is asked for: torch's engine keeps what is ready in a heap."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from framefuse.autodiff.arrival import pushed


def arrivals(inputs: list[torch.Tensor], leaves: list[torch.Tensor]) -> list[int]:
    """The numbers of the leaves in the order in which one node with these inputs gives them gradients."""
    came: list[int] = []

    class Node(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, *tensors: torch.Tensor) -> torch.Tensor:
            ctx.count = len(tensors)
            return torch.zeros(())

        @staticmethod
        def backward(ctx: Any, gradient: torch.Tensor) -> Any:
            return (gradient,) * ctx.count

    for number, leaf in enumerate(leaves):
        leaf.register_post_accumulate_grad_hook(lambda _, number=number: came.append(number))
    Node.apply(*inputs).backward()
    return came


@pytest.mark.parametrize("others", [0, 1, 2, 5])
@pytest.mark.parametrize("count", [1, 2, 3, 4, 7, 8, 16, 33])
def test_leaves_get_theirs_in_order(count: int, others: int) -> None:
    leaves = [torch.zeros((), requires_grad=True) for _ in range(count)]
    inner = [torch.zeros((), requires_grad=True) * 1 for _ in range(others)]
    order = pushed(leaves, inner)
    assert {id(each) for each in order} == {id(each) for each in (*leaves, *inner)}
    assert arrivals(order, leaves) == list(range(count))
