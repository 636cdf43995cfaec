"""Loops over ``parameters()`` and other generators whose body, or whose generator, holds what cannot be recorded."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from typing import Any

import torch
from tests.traps.trap import Table, Trap, hold
from torch import Tensor, nn

TABLE = Table()
trap = TABLE.trap


def rows(number: int, *sizes: int) -> Tensor:
    return torch.randn(*sizes, generator=torch.Generator().manual_seed(number))


def net() -> nn.Sequential:
    return nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 1))


def state(*modules: nn.Module) -> list[Tensor]:
    return [parameter.detach().clone() for module in modules for parameter in module.parameters()]


@trap(traces=24, hits=2)
def target_follows_by_data(compiled: Any) -> Iterator[Any]:
    online = net()
    target = copy.deepcopy(online)
    optimizer = torch.optim.SGD(online.parameters(), 0.1)

    @compiled
    def step(x: Tensor, reward: Tensor) -> Tensor:
        with torch.no_grad():
            wanted = reward + 0.9 * target(x)
        loss = nn.functional.smooth_l1_loss(online(x), wanted)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        for follower, leader in zip(target.parameters(), online.parameters(), strict=True):
            follower.data.copy_(0.9 * follower.data + 0.1 * leader.data)
        return loss.detach()

    for number in range(9):
        yield step(rows(number, 5, 3), rows(number + 50, 5, 1))
        yield state(online, target)


@trap(traces=24, hits=2)
def norm_is_asked_in_the_loop(compiled: Any) -> Iterator[Any]:
    model = net()

    @compiled
    def step(x: Tensor) -> tuple[Tensor, int, list[float]]:
        loss = model(x).pow(2).mean()
        loss.backward()
        large, norms = 0, []
        for parameter in model.parameters():
            norms.append(round(float(parameter.grad.norm()), 4))
            if parameter.grad.norm() > 0.1:
                large += 1
            parameter.grad = None
        return loss.detach(), large, norms

    for number in range(9):
        yield step(rows(number, 5, 3))


@trap(traces=30, hits=2)
def names_and_branches(compiled: Any) -> Iterator[Any]:
    model = net()

    @compiled
    def frozen(x: Tensor) -> tuple[Tensor, list[str]]:
        names = []
        for name, parameter in model.named_parameters():
            if parameter.abs().max() > x.max():
                names.append(name)
        return model(x), names

    for number in range(9):
        yield frozen(rows(number, 5, 3) * (number % 3))


@trap(traces=20, hits=3)
def generator_of_ones_own(compiled: Any) -> Iterator[Any]:
    def parts(x: Tensor) -> Iterator[Tensor]:
        seen = set()
        for part in (x, x * 2, x):
            if part not in seen:
                seen.add(part)
                yield part.sum()

    @compiled
    def f(x: Tensor) -> float:
        total = 0.0
        for part in parts(x):
            total += float(part) if part > 0 else 1.0
        return round(total, 4)

    for number in range(9):
        yield f(rows(number, 4))


@TABLE.parametrize()
def test_loops_over_parameters(trap: Trap) -> None:
    hold(trap)
