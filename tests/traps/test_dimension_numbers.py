"""Dimension numbers that are arguments: another one is another result, of other sizes or of fewer dimensions."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from tests.traps.trap import Trap, hold
from torch import Tensor


def _squeezed_in_place(x: Tensor, dim: int) -> Tensor:
    y = x.clone()
    y.squeeze_(dim)
    return y


CALLS: dict[str, Callable[[Tensor, int], Tensor]] = {
    "squeeze": lambda x, dim: x.squeeze(dim),
    "squeeze_": _squeezed_in_place,
    "unsqueeze": lambda x, dim: x.unsqueeze(dim) * 2,
    "sum": lambda x, dim: x.sin().sum(dim),
    "softmax": lambda x, dim: x.softmax(dim),
    "norm of order 0": lambda x, dim: x.norm(0, dim) + 0 * x.sum(),
    "cat": lambda x, dim: torch.cat([x, x * 2], dim),
    "select": lambda x, dim: x.select(dim, 0) * 2,
    "movedim": lambda x, dim: x.movedim(dim, 0) * 2,
    "flatten": lambda x, dim: x.flatten(0, dim) * 2,
    "size": lambda x, dim: x * x.size(dim),
    "stride": lambda x, dim: x * x.stride(dim),
    "stride of a result": lambda x, dim: x * (x * 2).stride(dim=dim),
    "a transform": lambda x, dim: torch.fft.fftn(x, dim=(dim,)).abs(),
    "a transform, by place": lambda x, dim: torch.fft.rfft(x, None, dim).abs(),
}


@pytest.mark.parametrize("name", CALLS)
def test_dimension_numbers(name: str) -> None:
    def program(compiled: Any) -> Iterator[Any]:
        f = compiled(CALLS[name])
        for number, dim in enumerate([3, 2, 1, 0, -1, 3, 2, 1, 0, -1]):
            x = torch.randn(5, 1, 4, 1, generator=torch.Generator().manual_seed(number)).requires_grad_()
            y = f(x, dim)
            yield y, torch.autograd.grad(y.sum(), x)[0].contiguous()

    transform = name.startswith("a transform")  # whose second dimension waits for a third to be told apart from any
    hold(Trap(program, traces=6 if transform else 5, hits=4 if transform else 5))


ORDERS: dict[str, Callable[[Tensor, float], Tensor]] = {
    "norm": lambda x, p: torch.norm(x, p),
    "of vectors": lambda x, p: torch.linalg.vector_norm(x, ord=p, dim=-1),
    "by method": lambda x, p: x.norm(p=p, dim=0, keepdim=True),
    "of differences": lambda x, p: F.pairwise_distance(x, x.flip(0) * 2, p),
}


@pytest.mark.parametrize("name", ORDERS)
def test_orders_of_norms(name: str) -> None:
    """The order is a float that moves; a norm of order 0 gives eager no gradient at all, not one of zeros."""

    def program(compiled: Any) -> Iterator[Any]:
        f = compiled(ORDERS[name])
        for number, order in enumerate([2.0, 0.0, 0.0, 1.0, 3.0, 0.0, 2.0, math.inf, 0.5]):
            x = torch.randn(3, 4, generator=torch.Generator().manual_seed(number)).requires_grad_()
            y = f(x, order)
            y.sum().backward()
            yield y, x.grad

    hold(Trap(program, traces=6, hits=3))


NUMPYS: dict[str, Callable[[Tensor], Any]] = {
    "mean": lambda x: x.sin().mean(axis=1, keepdims=True) * 2,
    "of several": lambda x: (x - x.mean(axis=(0, 2), keepdims=True)).var(axis=-1),
    "functions": lambda x: torch.softmax(x * 2, axis=-1) + torch.amax(x, axis=1, keepdims=True),
    "pairs": lambda x: torch.max(x * 2, axis=1)[0] + x.min(axis=1, keepdims=False).values,
    "pieces": lambda x: torch.stack([x, x * 2], axis=1).unsqueeze(axis=0).select(axis=1, index=0) + 1,
    "norms": lambda x: x / torch.linalg.norm(x, axis=-1, keepdims=True),
    "scans": lambda x: torch.cumsum(x * 2, axis=1) + torch.logsumexp(x, axis=-1, keepdims=True),
    "both names": lambda x: x.sum(dim=0, keepdims=True) + x.std(axis=0, keepdim=True),
}


@pytest.mark.parametrize("name", NUMPYS)
def test_dimensions_by_numpys_names(name: str) -> None:
    def program(compiled: Any) -> Iterator[Any]:
        f = compiled(NUMPYS[name])
        for number, rows in enumerate([3, 5, 4, 6]):
            x = torch.randn(rows, 7, 4, generator=torch.Generator().manual_seed(number)).requires_grad_()
            y = f(x)
            yield y, torch.autograd.grad(y.sum(), x)[0].contiguous()

    hold(Trap(program, traces=1, hits=3))
