"""Sizes that do not fit together are eager's errors in calls behind the compiled one, too: of numbers that are read
from tensors, of statistics and weights for another count of channels, and of operands that would repeat.
"""

from __future__ import annotations

from typing import Any

import pytest
import torch
from tests.traps.trap import Trap, hold, outcome
from torch import nn

F = nn.functional


def ones(*sizes: int) -> torch.Tensor:
    return torch.ones(sizes)


# What is called, what fits and what does not.
MISFITS: dict[str, tuple[Any, tuple[Any, ...], tuple[Any, ...]]] = {
    "item": (lambda x: x.item(), (ones(1),), (ones(2),)),
    "item of two dimensions": (lambda x: x.item() * 2, (ones(1, 1),), (ones(1, 3),)),
    "item times the tensor": (lambda x: x * x.item(), (ones(1),), (ones(2),)),
    "float": (lambda x: float(x), (ones(1),), (ones(2),)),
    "int": (lambda x: int(x) + 1, (ones(1).long(),), (ones(2).long(),)),
    "item in a text": (lambda x: f"{x.item():.1f}", (ones(1),), (ones(2),)),
    "item of nothing": (lambda x: x.item(), (ones(1),), (ones(0),)),
    "truth": (lambda x: bool(x), (ones(1),), (ones(2),)),
    "branch": (lambda x: 1 if x > 0 else 2, (ones(1),), (ones(2),)),
    "batch norm in training": (nn.BatchNorm1d(3), (ones(4, 3),), (ones(4, 5),)),
    "batch norm in training, one channel": (nn.BatchNorm2d(3), (ones(4, 3, 2, 2),), (ones(4, 1, 2, 2),)),
    "batch norm without statistics": (nn.BatchNorm1d(3, track_running_stats=False), (ones(4, 3),), (ones(4, 1),)),
    "batch norm": (nn.BatchNorm1d(3).eval(), (ones(4, 3),), (ones(4, 1),)),
    "instance norm": (nn.InstanceNorm1d(3, affine=True), (ones(2, 3, 4),), (ones(2, 1, 4),)),
    "layer norm": (nn.LayerNorm(3), (ones(2, 3),), (ones(2, 1),)),
    "group norm": (nn.GroupNorm(1, 4), (ones(2, 4, 2),), (ones(2, 1, 2),)),
    "prelu": (nn.PReLU(3), (ones(2, 3),), (ones(2, 1),)),
    "linear": (nn.Linear(3, 2), (ones(2, 3),), (ones(2, 1),)),
    "convolution by channels": (nn.Conv1d(3, 3, 1, groups=3), (ones(2, 3, 4),), (ones(2, 6, 4),)),
    "bilinear": (nn.Bilinear(3, 2, 4), (ones(2, 3), ones(2, 2)), (ones(2, 3), ones(1, 2))),
    "dot": (torch.dot, (ones(3), ones(3)), (ones(3), ones(1))),
    "product": (lambda x, y: x @ y, (ones(2, 3), ones(3, 4)), (ones(2, 1), ones(3, 4))),
    "einsum": (lambda x, y: torch.einsum("ij,jk->ik", x, y), (ones(2, 3), ones(3, 4)), (ones(2, 5), ones(3, 4))),
    "cross entropy": (F.cross_entropy, (ones(4, 3), torch.tensor([0, 1, 2, 0])), (ones(4, 3), torch.tensor([0]))),
    "index_add": (
        lambda x, at, y: x.index_add(0, at, y),
        (ones(2, 3), torch.tensor([0, 1]), ones(2, 3)),
        (ones(2, 3), torch.tensor([0, 1]), ones(1, 3)),
    ),
    "attention": (
        lambda q, k: F.scaled_dot_product_attention(q, k, k),
        (ones(1, 2, 3, 4), ones(1, 2, 3, 4)),
        (ones(1, 2, 3, 4), ones(1, 2, 3, 1)),
    ),
    "where": (torch.where, (ones(3) > 0, ones(3), ones(3)), (ones(2) > 0, ones(3), ones(3))),
    "copy_": (lambda x, y: x.copy_(y), (ones(2, 3), ones(2, 3)), (ones(2, 3), ones(2, 2))),
    "view_as": (lambda x, y: x.view_as(y), (ones(2, 3), ones(3, 2)), (ones(2, 3), ones(3, 3))),
}


@pytest.mark.parametrize("name", MISFITS)
def test_sizes_that_do_not_fit(name: str) -> None:
    function, fitting, misfit = MISFITS[name]

    def program(compiled: Any) -> Any:
        if isinstance(function, nn.Module):
            function.load_state_dict(state)
        fast = compiled(lambda *args: function(*args))
        for args in (fitting, fitting, misfit, fitting, misfit, fitting):
            yield outcome(fast, *args)

    held = function.state_dict() if isinstance(function, nn.Module) else {}
    state = {key: part.clone() for key, part in held.items()}
    hold(Trap(program, 6, 1))
