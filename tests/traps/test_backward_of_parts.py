"""Backward passes over part of what a compiled function gave: they walk, free and check what eager's own would."""

from __future__ import annotations

import itertools
import random
from typing import Any

import torch
from tests.traps.trap import Table, Trap, hold
from torch import nn
from torch.nn import functional as F

TABLE = Table()
trap = TABLE.trap


def rows(call: int, *sizes: int) -> torch.Tensor:
    """Another input at each call."""
    return torch.randn(*sizes, generator=torch.Generator().manual_seed(100 + call))


def walked(loss: torch.Tensor, **how: Any) -> Any:
    """Walks back from the loss; the type of the error and how its text starts."""
    try:
        loss.backward(**how)
    except RuntimeError as error:
        return type(error).__name__, str(error)[:48]
    return None


def gradients(module: nn.Module) -> list[Any]:
    """Copies of the gradients of all parameters; they are dropped."""
    found = [None if p.grad is None else p.grad.clone() for p in module.parameters()]
    module.zero_grad()
    return found


def net(*sizes: int) -> nn.Sequential:
    layers: list[nn.Module] = []
    for before, after in itertools.pairwise(sizes):
        layers += [nn.Linear(before, after), nn.Tanh()]
    return nn.Sequential(*layers[:-1])


class Heads(nn.Module):
    """Two heads, on a common trunk or each on the input."""

    def __init__(self, trunk: bool) -> None:
        super().__init__()
        self.trunk = net(3, 4, 4) if trunk else nn.Identity()
        self.actor, self.critic = net(4 if trunk else 3, 5, 2), net(4 if trunk else 3, 5, 1)

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        h = self.trunk(x)
        return self.actor(h), self.critic(h)


# Walks one after the other -------------------------------------------------------------------------------------------


@trap(traces=1, hits=3)
def two_heads_walked_one_after_the_other(compiled):
    model = Heads(False)
    f = compiled(model)
    for call in range(5):
        policy, value = f(rows(call, 6, 3))
        yield walked(policy.mean())
        yield gradients(model)
        yield walked(value.pow(2).mean())
        yield gradients(model)


@trap(traces=1, hits=3)
def two_heads_on_one_trunk(compiled):
    model = Heads(True)
    f = compiled(model)
    for call in range(6):
        policy, value = f(rows(call, 6, 3))
        yield walked(policy.mean(), retain_graph=call % 2 == 0)
        yield walked(value.pow(2).mean())
        yield gradients(model)


@trap(traces=1, hits=3)
def both_heads_at_once(compiled):
    model = Heads(True)
    f = compiled(model)
    for call in range(6):
        policy, value = f(rows(call, 6, 3))
        if call % 2:
            torch.autograd.backward([policy.sum(), value.sum()])
        else:
            torch.stack([policy.sum(), value.sum() * 2]).sum().backward()
        yield gradients(model)


@trap(traces=2, hits=4)
def a_step_of_one_head_before_the_other_walks(compiled):
    for trunk in (False, True):
        model = Heads(trunk)
        f = compiled(model)
        first = torch.optim.SGD(model.actor.parameters(), 0.1)
        for call in range(4):
            policy, value = f(rows(call, 6, 3))
            yield walked(policy.mean(), retain_graph=True)
            first.step()
            yield walked(value.pow(2).mean(), retain_graph=True)
            yield gradients(model)
            yield walked(policy.sum())  # the actor's weights are others now


@trap(traces=3, hits=9)
def an_adversary(compiled):
    maker, judge = net(3, 6, 4), net(4, 6, 1)
    make, score = compiled(maker), compiled(judge)
    steps = [torch.optim.Adam(module.parameters(), 0.01) for module in (maker, judge)]
    for call in range(5):
        fake = make(rows(call, 5, 3))
        steps[1].zero_grad()
        loss = F.softplus(score(fake.detach())).mean() + F.softplus(-score(rows(call + 50, 5, 4))).mean()
        loss.backward()
        steps[1].step()
        steps[0].zero_grad()
        F.softplus(-score(fake)).mean().backward()
        steps[0].step()
        yield loss, [p.detach().clone() for p in (*maker.parameters(), *judge.parameters())]


@trap(traces=1, hits=3)
def twin_critics_updated_in_turn(compiled):
    class Twins(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.one, self.two = net(3, 5, 1), net(3, 5, 1)

        def forward(self, x):
            return self.one(x), self.two(x)

    model = Twins()
    f = compiled(model)
    steps = [torch.optim.Adam(part.parameters(), 0.01) for part in (model.one, model.two)]
    for call in range(5):
        for value, step in zip(f(rows(call, 6, 3)), steps, strict=True):
            step.zero_grad()
            yield walked((value - 1).pow(2).mean())
            step.step()
        yield [p.detach().clone() for p in model.parameters()]


@trap(traces=1, hits=2)
def one_head_under_no_grad(compiled):
    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.heads = Heads(True)

        def forward(self, x):
            h = self.heads.trunk(x)
            with torch.no_grad():
                value = self.heads.critic(h)
            return self.heads.actor(h), value

    model = Model()
    f = compiled(model)
    for call in range(4):
        policy, value = f(rows(call, 6, 3))
        yield policy.requires_grad, value.requires_grad
        (policy.mean() * value.mean()).backward()
        yield gradients(model)


@trap(traces=1, hits=2)
def parts_that_are_frozen(compiled):
    model = Heads(True)
    model.trunk.requires_grad_(False)
    f = compiled(model)
    for call in range(4):
        policy, value = f(rows(call, 6, 3))
        yield walked(policy.mean())
        yield walked(value.mean())
        yield gradients(model)


# What else the walk reaches ------------------------------------------------------------------------------------------


@trap(traces=1, hits=3)
def hooks_of_the_other_head_are_not_called(compiled):
    model = Heads(True)
    f = compiled(model)
    seen: list[tuple[str, bool]] = []
    for name, parameter in model.named_parameters():
        parameter.register_hook(lambda g, name=name: seen.append((name, g is None)))
    for call in range(4):
        policy, value = f(rows(call, 6, 3))
        value.mean().backward()
        yield sorted(seen)
        seen.clear()
        if call % 2:
            yield walked(policy.mean())
            yield sorted(seen)
            seen.clear()
        yield gradients(model)


@trap(traces=2, hits=3)
def what_stands_before_the_call_is_walked_once(compiled):
    model = Heads(False)
    f = compiled(lambda x, y: (model.actor(x), model.critic(y)))
    for call in range(4):
        leaves = [rows(call + number, 5, 3).requires_grad_() for number in (0, 9)]
        policy, value = f(*(leaf.exp() for leaf in leaves))
        yield walked(policy.sum())
        yield [leaf.grad for leaf in leaves]
        yield walked(value.sum())
        yield [leaf.grad for leaf in leaves]


# Outputs along the way -----------------------------------------------------------------------------------------------


class Layers(nn.Module):
    """Layers that keep what attention's cache would, and what each gives."""

    def __init__(self, count: int = 3, size: int = 4) -> None:
        super().__init__()
        self.keys = nn.ModuleList(nn.Linear(size, size) for _ in range(count))
        self.values = nn.ModuleList(nn.Linear(size, size) for _ in range(count))
        self.both = nn.ModuleList(nn.Linear(size, 3 * size) for _ in range(count))

    def forward(self, x):
        kept = []
        for key, value, both in zip(self.keys, self.values, self.both, strict=True):
            h = F.layer_norm(x, x.shape[-1:])
            k, v = key(h), value(h)
            a, b, c = both(k * v).chunk(3, -1)
            x = x + (a.softmax(-1) * b).tanh()
            kept.append((k, v, c, x))
        return x.mean(-1), kept


@trap(traces=1, hits=3)
def caches_beside_the_result(compiled):
    model = Layers()
    f = compiled(model)
    for call in range(5):
        result, kept = f(rows(call, 5, 4))
        extra = [kept[0][0].sum(), kept[1][1].pow(2).sum(), kept[1][2].sum(), kept[2][3].sum()]
        walked(result.sum() + sum(extra[: call % 4]))
        yield gradients(model)


@trap(traces=1, hits=3)
def gradients_of_outputs_along_the_way(compiled):
    model = Layers()
    f = compiled(model)
    for call in range(5):
        result, kept = f(rows(call, 5, 4))
        layer, seen = call % 3, []
        for part in kept[layer]:
            yield torch.autograd.grad(result.sum(), part, retain_graph=True, allow_unused=True)
        kept[layer][0].retain_grad()
        kept[layer][3].register_hook(lambda g: g * 2)
        kept[layer][1].register_hook(lambda g, seen=seen: seen.append(g.clone()))
        (result.sum() + kept[0][3].sum()).backward()
        yield kept[layer][0].grad, seen, gradients(model)


@trap(traces=1, hits=3)
def walks_of_outputs_along_the_way(compiled):
    model = Layers(2)
    f = compiled(model)
    for call in range(6):
        result, kept = f(rows(call, 5, 4))
        parts = [kept[1][1], kept[0][2], kept[1][3], kept[0][0], result]
        order = random.Random(call).sample(parts, 3)
        for part in order:
            yield walked(part.sum(), retain_graph=call % 2 == 0)
            yield gradients(model)


@trap(traces=1, hits=2)
def differentiated_twice_over_parts(compiled):
    model = Layers(2)
    f = compiled(model)
    for call in range(4):
        x = rows(call, 3, 4).requires_grad_()
        result, kept = f(x)
        first, second = torch.autograd.grad(result.sum() + kept[0][2].pow(2).sum(), (x, kept[0][0]), create_graph=True)
        (first.pow(2).sum() + second.pow(3).sum()).backward()
        yield x.grad, gradients(model)


@TABLE.parametrize()
def test_parts(trap: Trap) -> None:
    hold(trap)
