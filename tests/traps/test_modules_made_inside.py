"""Modules, buffers and tables that a call makes, moves and keeps, as losses of detectors do."""

from __future__ import annotations

import functools
from typing import Any

import torch
from tests.traps.trap import Table, Trap, hold
from torch import nn

TABLE = Table()
trap = TABLE.trap


def called(compiled: Any, function: Any, lengths: tuple[int, ...] = (3, 3, 4, 5)) -> Any:
    f = compiled(function)
    for length in lengths:
        yield f(torch.randn(length))


class Weighted(nn.Module):
    def __init__(self, count: int, last: float, persistent: bool) -> None:
        super().__init__()
        weight = torch.ones(count)
        weight[-1] = last
        self.weight = nn.Buffer(weight, persistent=persistent)
        self.shift = torch.nn.Buffer()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x * self.weight


@trap(traces=2, hits=3)
def a_loss_with_a_buffer(compiled):
    def f(x):
        loss = Weighted(x.shape[0], 0.25, False)
        loss.to(x.device)
        names = [name for name, _ in loss.named_buffers()], list(loss.state_dict())
        return loss(x), names, isinstance(loss.weight, nn.Buffer), loss.weight.persistent

    yield from called(compiled, f)


@trap(traces=3, hits=2)
def a_buffer_of_what_requires_grad(compiled):
    def f(x):
        return nn.Buffer(x).requires_grad, nn.Buffer(x) * 2

    f = compiled(f)
    for requires_grad in (False, False, False, True, False):
        yield f(torch.randn(3, requires_grad=requires_grad))


@trap(traces=4, hits=3)
def modules_that_are_where_they_go(compiled):
    model = nn.Sequential(nn.Linear(3, 3), nn.BatchNorm1d(3))

    def f(x):
        y = model.to("cpu")(x) + model.to(x.device, torch.float32)[0].bias
        return y + model.to(dtype=x.dtype, device=torch.device("cpu"))[0].bias, model[0].weight.dtype

    f = compiled(f)
    for dtype in (torch.float32, torch.float32, torch.float32, torch.float64, torch.float32):
        try:
            yield f(torch.ones(2, 3, dtype=dtype))
        except RuntimeError as error:
            yield str(error)


@trap(traces=4, hits=3)
def a_table_for_each_device_and_dtype(compiled):
    class Positions(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.calls = 0

        @functools.lru_cache(maxsize=4)  # noqa: B019 - as libraries do
        def table(self, length: int, device: torch.device, dtype: torch.dtype) -> torch.Tensor:
            self.calls += 1
            return torch.arange(length, device=device, dtype=dtype)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x + self.table(x.shape[0], x.device, x.dtype)

    model = Positions()
    f = compiled(model)
    for length in (3, 3, 3, 4, 3):
        yield f(torch.randn(length)), model.calls
    Positions.table.cache_clear()
    yield f(torch.randn(3)), model.calls


@TABLE.parametrize()
def test_modules_made_inside(trap: Trap) -> None:
    hold(trap)
