"""Tensors whose dimensions are turned, added or taken away in place (``t_``, ``unsqueeze_``, ``squeeze_``): they are no
views, and views made before and after are views of them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from tests.traps.trap import Trap, hold, outcome
from torch import Tensor


def _vector(x: Tensor) -> tuple[Tensor, ...]:
    v = x.sum(0)
    v.t_()
    return (v,)


def _alone(x: Tensor) -> tuple[Tensor, ...]:
    v = x * 2
    v.t_()
    return (v,)


def _view_behind(x: Tensor) -> tuple[Tensor, ...]:
    v = x * 2
    v.unsqueeze_(0)
    return v, v[:, ::2]


def _views_around(x: Tensor) -> tuple[Tensor, ...]:
    v = x * 2
    before = v.view(-1)
    v.t_()
    return v.t(), before, v


def _view_of_a_view_before(x: Tensor) -> tuple[Tensor, ...]:
    v = x * 2
    part = v[0]
    v.t_()
    return v, part.unsqueeze(0)


def _written_behind(x: Tensor) -> tuple[Tensor, ...]:
    v = x * 2
    before = v.view(-1)
    v.t_()
    before.mul_(2)
    v.unsqueeze_(0)
    v.squeeze_(0)
    return v, before


def _slope(total: Any, leaf: Tensor) -> Tensor:
    return torch.autograd.grad(total, leaf, retain_graph=True)[0].contiguous()


FUNCTIONS = (_vector, _alone, _view_behind, _views_around, _view_of_a_view_before, _written_behind)


@pytest.mark.parametrize("tracked", [True, False])
@pytest.mark.parametrize("function", FUNCTIONS)
def test_turned_in_place(function: Callable[[Tensor], tuple[Tensor, ...]], tracked: bool) -> None:
    def program(compiled: Any) -> Iterator[Any]:
        f = compiled(function)
        for number, rows in enumerate((4, 3, 5, 3)):
            x = torch.randn(rows, 3, generator=torch.Generator().manual_seed(number), dtype=torch.float64)
            leaf = x.requires_grad_(tracked)
            parts = f(leaf * 1)
            yield parts, [(part._is_view(), part._version, part._base is parts[0]) for part in parts]
            if tracked:
                yield _slope(sum((part * part).sum() for part in parts), leaf)
            for part in parts:
                yield outcome(part.mul_, 3), parts
                if tracked:
                    yield _slope(sum((each * each).sum() for each in parts), leaf)

    hold(Trap(program, traces=2, hits=3))


def test_turning_what_contiguous_gave_counts_for_its_operand() -> None:
    def turned(x: Tensor, y: Tensor) -> Tensor:
        x.t().contiguous().t_()
        return y * 2

    def program(compiled: Any) -> Iterator[Any]:
        f = compiled(turned)
        for rows in (4, 3, 1, 5, 1):
            x = torch.ones(rows, 3, dtype=torch.float64)
            yield f(x, torch.ones(rows)), x._version

    hold(Trap(program, traces=2, hits=3))
