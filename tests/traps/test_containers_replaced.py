"""Programs whose long-lived objects get another tuple, list, dict or record at each call: states, caches, schedules."""

from __future__ import annotations

import collections
import dataclasses
import typing
from typing import Any

import torch
from tests.traps.trap import Table, Trap, hold
from torch import nn

TABLE = Table()
trap = TABLE.trap

Carried = collections.namedtuple("Carried", "h c")


class Stateful(nn.Module):
    """What it carries from call to call is replaced rather than changed."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 4)
        self.pair: Any = (torch.zeros(2, 4), torch.zeros(2, 4))
        self.named = Carried(torch.zeros(2, 4), 1.0)
        self.cache = [torch.zeros(2, 4)]
        self.last = {"out": torch.zeros(2, 4)}
        self.betas = (0.9, 0.99, 0.999)

    def forward(self, x):
        h, c = self.pair
        x = self.linear(x) + h * self.cache[-1] + self.last["out"] + self.named.h * self.named.c
        x = x * self.betas[0] + self.betas[-1]
        self.pair = (x * 0.5, c * 0.1 + x)
        self.named = Carried(x * 0.25, self.named.c * 0.9)
        self.cache = [*self.cache[-2:], x]
        self.last = {"out": x * 0.1}
        self.betas = (self.betas[0] * 0.99, *self.betas[1:])
        return x


@trap(traces=3, hits=5)
def a_module_carries_its_state(compiled):
    torch.manual_seed(0)
    model = Stateful().requires_grad_(False)
    run = compiled(model)
    for step in range(10):
        yield run(torch.full((2, 4), float(step)))
        yield model.betas, len(model.cache), model.named


@trap(traces=4, hits=5)
def both_moments_of_a_schedule(compiled):
    torch.manual_seed(0)
    model = nn.Linear(3, 1)
    optimizer = torch.optim.AdamW(model.parameters())
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, 1e-2, total_steps=30)

    @compiled
    def step(x):
        optimizer.zero_grad()
        loss = model(x).square().mean()
        loss.backward()
        optimizer.step()
        schedule.step()
        return loss

    for number in range(8):
        yield step(torch.full((2, 3), 1.0 + number)).detach()
        yield optimizer.param_groups[0]["betas"], optimizer.param_groups[0]["lr"]


@dataclasses.dataclass(frozen=True)
class State:
    """What a step gives to the next one."""

    hidden: torch.Tensor
    step: int = 0
    kind: str = "warm"
    inner: Any = None


class Weights(typing.NamedTuple):
    w: torch.Tensor
    step: int


class Holder:
    def __init__(self) -> None:
        self.state = State(torch.zeros(3), inner=State(torch.ones(3)))
        self.weights = Weights(torch.ones(3), 0)
        self.last: Any = None


@trap(traces=4, hits=8)
def records_are_replaced(compiled):
    holder = Holder()

    @compiled
    def step(x):
        old = holder.state
        inner = dataclasses.replace(old.inner, hidden=old.inner.hidden * 0.5)
        holder.state = dataclasses.replace(old, hidden=old.hidden + x * inner.hidden, step=old.step + 1, inner=inner)
        holder.weights = holder.weights._replace(w=holder.weights.w - x, step=holder.weights.step + 2)
        pairs = dict(zip("ab", holder.weights))
        return holder.state.hidden * old.step + pairs["b"], holder.weights._asdict(), [*holder.weights][1]

    for number in range(12):
        if number == 9:
            holder.state = dataclasses.replace(holder.state, kind="cold")
        yield step(torch.full((3,), float(number)))
        yield holder.state, holder.weights


@trap(traces=8, hits=4)
def replaced_records_that_are_written_and_become_one(compiled):
    holder, other = Holder(), Holder()

    @compiled
    def write(x):
        holder.last.seen = x + 1
        holder.last.count += 1
        return x * other.last.count, holder.last is other.last, other.last.seen

    for number in range(12):
        for each in (holder, other):
            each.last = Holder()
            each.last.count, each.last.seen = number, torch.zeros(1)
        if number in (5, 7, 9):
            other.last = holder.last
        if number == 10:
            holder.last.__class__ = Box
        yield write(torch.full((1,), float(number)))
        yield holder.last.count, holder.last.seen, other.last.count, other.last.seen


class Box:
    """Two lists that may be one."""


BOX = Box()


@trap(traces=6, hits=4)
def replaced_lists_that_become_one(compiled):
    @compiled
    def grow(x):
        BOX.left.append(x * 2)
        return x * len(BOX.right), BOX.left is BOX.right, len({id(BOX.left), id(BOX.right)})

    for number in range(10):
        BOX.left, BOX.right = [torch.ones(1)], [torch.ones(1)]
        if number in (5, 7, 9):
            BOX.right = BOX.left
        yield grow(torch.full((1,), float(number)))
        yield BOX.left, BOX.right


@trap(traces=4, hits=4)
def a_replaced_list_is_given_back_and_lives_over_a_break(compiled):
    @compiled
    def last(x):
        rows = BOX.left
        total = float(x.sum().item())
        rows.append(total)
        return rows

    for number in range(9):
        BOX.left = [1.0]
        yield last(torch.full((1,), float(number))) is BOX.left
        yield BOX.left


@TABLE.parametrize()
def test_containers_are_replaced(trap: Trap) -> None:
    hold(trap)
