"""Backward passes over part of what a compiled function gave: they walk, free and check what eager's own would."""

from __future__ import annotations

import functools
import itertools
import random
import weakref
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
import torch.utils.checkpoint
from tests.traps.trap import Table, Trap, hold, outcome
from tests.unit.differential import compared
from torch import nn
from torch.nn import functional as F

import framefuse
from framefuse.api import compiled_function

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


def found(work: Callable[[], Any]) -> Any:
    """What the work gives, without its history, or the type of its error and how its text starts."""
    try:
        given = work()
    except RuntimeError as error:
        return type(error).__name__, str(error)[:48]
    parts = given if isinstance(given, tuple) else (given,)
    return [None if part is None else part.detach().clone() for part in parts]


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


# What is freed, and what is checked -----------------------------------------------------------------------------------


@trap(traces=5, hits=15)
def a_second_walk(compiled):
    scale = nn.Parameter(torch.ones(3) / 2)

    def kept(x):  # a write to a view
        y = x * scale
        y[0].add_(scale)
        return y

    functions = [lambda x: (x * 2).sum(), lambda x: (x + x).sum(0), lambda x: x.exp(), lambda x: x.t() - 1, kept]
    for function in functions:
        f = compiled(function)
        for call in range(5):
            x = rows(call, 3, 3).requires_grad_()
            y = f(x).sum()
            yield [walked(y), walked(y), x.grad]


@trap(traces=3, hits=6)
def what_nobody_walks_may_be_written(compiled):
    def transposed(x):
        y, v = x + x, x.tanh()
        with torch.no_grad():
            v.t_()
        return y

    def doubled(x):
        y, v = x * 3, x.exp()
        v.mul_(2)
        return y

    def read(x):
        y, v = x * 3, x.exp()
        with torch.no_grad():
            v.add_(1)
        return y, v.detach()

    for function in (transposed, doubled, read):
        f = compiled(function)
        for call in range(4):
            x = rows(call, 2, 2).requires_grad_()
            y = f(x * 1)
            yield y, walked(y[0].sum()), x.grad


@trap(traces=2, hits=0)
def what_is_walked_may_not_be_written(compiled):
    def itself(x):
        v = x[0]
        v.mul_(v)
        return v

    def beside(x):
        y = x * 1
        y[0].mul_(y[1])
        return y

    def whole(x):
        return x.mul_(x)

    for function in (itself, beside, whole):
        f = compiled(function)
        for call in range(4):
            x = rows(call, 2, 2).requires_grad_()
            yield walked(f(x * 1).sum()), x.grad


@trap(traces=2, hits=6)
def other_memory_for_what_was_saved(compiled):
    layer, scale = nn.Linear(3, 3), nn.Parameter(torch.ones(3))
    for function in (
        lambda x: layer(x).pow(2).sum(),
        lambda x: (x * scale).sum(),
    ):
        f = compiled(function)
        for call in range(5):
            x = rows(call, 3, 3).requires_grad_()
            y = f(x)
            layer.weight.data = layer.weight.data * 1.1
            scale.data = scale.data * 0.9
            yield walked(y), x.grad, gradients(layer), scale.grad
            scale.grad = None


@trap(traces=1, hits=3)
def walks_to_some_of_the_weights(compiled):
    model = Heads(True)
    f = compiled(model)
    for call in range(6):
        policy, value = f(rows(call, 6, 3))
        loss = policy.pow(2).sum() + value.sum()
        head, trunk = list(model.actor.parameters()), list(model.trunk.parameters())
        told = [walked(loss, inputs=head, retain_graph=call % 2 == 0)]
        if call % 3 == 0:
            with torch.no_grad():
                model.critic[0].weight.mul_(0.9)
        told.append(walked(value.sum(), inputs=list(model.critic.parameters()), retain_graph=True))
        told.append(walked(loss, inputs=trunk))
        reached = gradients(model)
        yield told, reached if told == [None] * 3 else None  # a walk that fails leaves what it reached before


@trap(traces=1, hits=3)
def equal_values_computed_twice(compiled):
    @compiled
    def f(x):
        h = x.tanh()
        return h.relu(), (h * 2).sum(0), h.relu(), h.relu() * 3

    for call in range(5):
        x = rows(call, 3, 3).requires_grad_()
        outputs = f(x.exp() if call > 2 else x)
        yield torch.autograd.grad(outputs[3].sum(), outputs[0], retain_graph=True, allow_unused=True)
        for output in (outputs[2], outputs[3], outputs[0]):
            yield walked(output.sum()), x.grad


@trap(traces=1, hits=3)
def results_that_are_views_of_each_other(compiled):
    @compiled
    def f(x, w):
        y = (x @ w).tanh()
        return y, y[0], y.t(), (y * w).sum(1)

    w = nn.Parameter(torch.eye(3) / 2)
    for call in range(6):
        x = rows(call, 3, 3).requires_grad_()
        outputs = f(x, w)
        if call % 3 == 2:
            yield found(lambda: outputs[1].mul_(2))  # noqa: B023
        for number in random.Random(call).sample(range(4), 3):
            yield walked(outputs[number].pow(2).sum(), retain_graph=call % 2 == 0), x.grad, w.grad
        w.grad = None


@trap(traces=2, hits=4)
def losses_walked_inside(compiled):
    model = Heads(True)
    steps = [torch.optim.SGD(part.parameters(), 0.1) for part in (model.actor, model.critic)]

    @compiled
    def f(x):
        policy, value = model(x)
        losses = [policy.pow(2).mean(), (value - 1).abs().mean()]
        losses[0].backward(retain_graph=True)
        losses[1].backward(inputs=list(model.critic.parameters()))
        for step in steps:
            step.step()
        return losses

    for call in range(5):
        yield f(rows(call, 6, 3))
        yield gradients(model), [p.detach().clone() for p in model.parameters()]


@trap(traces=1, hits=0)
def a_checkpoint_around_it(compiled):
    model = Heads(True)
    f = compiled(model)
    for call in range(5):
        x = rows(call, 6, 3).requires_grad_()
        policy, value = torch.utils.checkpoint.checkpoint(f, x, use_reentrant=False)
        yield walked(policy.sum() + value.pow(2).sum()), x.grad
        yield gradients(model)


@trap(traces=1, hits=3)
def what_was_walked_is_let_go(compiled):
    model = Heads(True)
    f = compiled(model)
    for call in range(5):
        x = rows(call, 6, 3).requires_grad_()
        policy, value = f(x * 1)
        dead = weakref.ref(policy)
        walked(policy.sum(), retain_graph=True)
        walked(value.sum())
        del policy, value
        yield dead() is None


@trap(traces=1, hits=3)
def hooks_of_leaves_are_called_in_eagers_order(compiled):
    torch.manual_seed(0)
    module, told = net(3, 4, 4, 2), []
    for name, parameter in module.named_parameters():
        parameter.register_post_accumulate_grad_hook(lambda p, name=name: told.append((name, p.grad.clone())))
    model = compiled(module)
    for call in range(4):
        told.clear()
        model(rows(call, 3 + call % 2, 3)).pow(2).mean().backward()
        yield [name for name, _ in told], [gradient for _, gradient in told], gradients(module)


@trap(traces=1, hits=3)
def what_was_made_last_is_walked_first(compiled):
    torch.manual_seed(0)
    module, told = net(3, 4, 2), []
    for name, parameter in module.named_parameters():
        parameter.register_post_accumulate_grad_hook(lambda _, name=name: told.append(name))
    scale = torch.randn(3, requires_grad=True)
    scale.register_post_accumulate_grad_hook(lambda _: told.append("scale"))
    f = compiled(lambda x: (module(x), (x * scale).sin()) if x.shape[1] == 3 else x)
    for call in range(4):
        told.clear()
        first, second = f(rows(call, 3 + call % 2, 3))
        first.sum().backward(retain_graph=True)
        yield walked(second.sum() + first.sum()), list(told), gradients(module), scale.grad
        scale.grad = None


def _one_after_another(compiled: Any, function: Callable[..., Any], dtype: torch.dtype) -> Iterator[Any]:
    """Gradients of a first operand, which frees what was saved, and then of one that needs nothing of that."""
    f = compiled(function)
    for call in range(4):
        x, y, weight = (rows(3 * call + number, 3, 3).to(dtype).requires_grad_() for number in range(3))
        result = f(x, y, weight)
        for asked in ((y, weight), (x,), (x,), (y,)):
            yield found(functools.partial(torch.autograd.grad, result.sum().abs(), asked))


@trap(traces=1, hits=3)
def what_needs_nothing_of_what_was_freed(compiled):
    yield from _one_after_another(compiled, lambda x, y, w: x + (y * w).exp() * y, torch.float32)


@trap(traces=1, hits=3)
def what_needs_nothing_of_a_freed_product(compiled):
    yield from _one_after_another(compiled, lambda x, y, w: x * 2 - y.sin() @ w.t(), torch.float64)


@trap(traces=1, hits=3)
def what_needs_nothing_of_freed_complex_numbers(compiled):
    yield from _one_after_another(compiled, lambda x, y, w: x + y @ w, torch.complex64)


@TABLE.parametrize()
def test_parts(trap: Trap) -> None:
    hold(trap)


# Drawn walks ---------------------------------------------------------------------------------------------------------


class Drawn(nn.Module):
    """A net of small random steps; some of what they give are its outputs."""

    def __init__(self, draw: random.Random) -> None:
        super().__init__()
        self.weights = nn.ParameterList(nn.Parameter(torch.randn(4, 4) / 2) for _ in range(draw.randint(1, 5)))
        self.steps = []
        for number in range(draw.randint(2, 9)):
            operands = [draw.randint(0, number) for _ in range(2)]
            self.steps.append((draw.choice(sorted(STEPS)), *operands, draw.randrange(len(self.weights))))
        self.shown = sorted(draw.sample(range(1, len(self.steps) + 1), min(len(self.steps), draw.randint(2, 6))))

    def forward(self, x):
        values = [x]
        for name, first, second, weight in self.steps:
            values.append(STEPS[name](values[first], values[second], self.weights[weight]))
        return [values[place] for place in self.shown]


STEPS: dict[str, Callable[..., torch.Tensor]] = {
    "linear": lambda a, b, w: F.linear(a, w),
    "matmul": lambda a, b, w: a @ w,
    "scaled": lambda a, b, w: a * w[0],
    "twice": lambda a, b, w: a * 2,
    "sum": lambda a, b, w: a + b,
    "product": lambda a, b, w: a * b,
    "tanh": lambda a, b, w: a.tanh(),
    "exp": lambda a, b, w: (a * 0.1).exp(),
    "relu": lambda a, b, w: a.relu(),
    "norm": lambda a, b, w: F.layer_norm(a, (4,), w[1]),
    "softmax": lambda a, b, w: a.softmax(-1) + b,
    "cut": lambda a, b, w: a.detach() * w[2] + b,
    "turned": lambda a, b, w: torch.cat([a[:, 2:], b[:, :2]], 1),
    "mean": lambda a, b, w: a - b.mean(0, keepdim=True),
    "view": lambda a, b, w: a.view(2, 2, 4).transpose(0, 1).reshape(4, 4),
    "bias": lambda a, b, w: a + w[3],
}


def drawn_walks(seed: int, compile: Any) -> tuple[list[Any], Any]:
    """What random walks over a random net give, call by call, with the compiled function."""
    draw = random.Random(seed)
    torch.manual_seed(seed)
    model = Drawn(draw)
    f = compile(model)
    seen: list[Any] = []
    for call in range(4):
        x = rows(call, 4, 4).requires_grad_(seed % 3 > 0)
        outputs = f(x)
        seen.append([output.detach().clone() for output in outputs])
        walks = [number for number, output in enumerate(outputs) if output.requires_grad]
        for number in draw.sample(walks, min(len(walks), draw.randint(1, 4))):
            kind, keep, which = draw.choice(WALKS), draw.random() < 0.4, draw.randrange(8)
            seen.append(walk(kind, outputs, number, model, x, keep, which))
            seen.append([None if leaf.grad is None else leaf.grad.clone() for leaf in (x, *model.parameters())])
    return seen, f


WALKS = ("all",) * 6 + ("pair", "some", "along", "again", "step", "step", "data", "write", "hook")


def walk(kind: str, outputs: list[Any], number: int, model: Any, x: torch.Tensor, keep: bool, which: int) -> Any:
    """Changes something, or not, and walks back from an output."""
    output, weight = outputs[number], model.weights[which % len(model.weights)]
    loss = (output * output.detach().cos()).sum()
    if kind == "pair":
        return walked(loss + outputs[which % len(outputs)].sum(), retain_graph=keep)
    if kind == "some":
        return walked(loss, retain_graph=keep, inputs=[weight])
    if kind == "along":
        other = outputs[which % len(outputs)]
        return found(lambda: torch.autograd.grad(loss, [other, weight], retain_graph=keep, allow_unused=True))
    if kind == "again":
        return found(lambda: torch.autograd.grad(loss, [weight], create_graph=True, allow_unused=True))
    if kind == "step":
        with torch.no_grad():
            weight.mul_(0.9)
    elif kind == "data":
        weight.data = weight.data * 0.8
    elif kind == "write":
        return found(lambda: outputs[which % len(outputs)].mul_(0.5)), walked(loss, retain_graph=keep)
    elif kind == "hook" and output.requires_grad:
        output.register_hook(lambda gradient: gradient * 1.5)
    return walked(loss, retain_graph=keep)


@pytest.mark.parametrize("seed", range(60))
def test_drawn_walks(seed: int) -> None:
    expected, _ = drawn_walks(seed, lambda model: model)
    got, compiled = drawn_walks(seed, framefuse.compile)
    assert len(got) == len(expected)
    for number, (mine, eager) in enumerate(zip(got, expected, strict=True)):
        assert not compared(mine, eager, False), f"{number}: {compared(mine, eager, False)}"
    state = compiled_function(compiled)
    assert state is not None and state.dispatch.hits >= 3, framefuse.explain(compiled)


def _emptied(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    return (a // 2 + b).zero_() + a


def _emptied_alone(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    return (a // 2).fill_(1.0) * b


@pytest.mark.parametrize("function", [_emptied, _emptied_alone])
def test_a_derivative_that_eager_refuses_is_refused_in_backward_also_where_only_zeros_reach_it(function: Any) -> None:
    def program(compiled: Any) -> Iterator[Any]:
        f = compiled(function)
        for number in range(4):
            a, b = (torch.arange(3.0).add(number).requires_grad_() for _ in range(2))
            result = f(a, b)
            yield result.detach(), outcome(result.sum().backward), a.grad

    hold(Trap(program, traces=1, hits=3))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16, torch.complex64])
@pytest.mark.parametrize("turned", [False, True])
def test_a_result_that_is_read_further_is_freed_with_what_led_to_it(dtype: torch.dtype, turned: bool) -> None:
    def function(layer: Callable[..., torch.Tensor], x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        found = layer(layer(x))
        found = found.t().clone().t() if turned else found
        return found, found + x

    def program(compiled: Any) -> Iterator[Any]:
        weight = torch.eye(3).add(0.5).to(dtype).requires_grad_()
        f = compiled(lambda x: function(lambda each: F.linear(each, weight), x))
        for number in range(4):
            for both in (False, True):
                x = rows(number, 2, 3).to(dtype).requires_grad_()
                first, second = f(x)
                roots = (first, second) if both else (second,)
                yield [walked(sum(root.sum() for root in roots).abs()) for _ in range(3)]

    hold(Trap(program, traces=3, hits=4))


@pytest.mark.parametrize("part", [lambda x: x[1:], lambda x: x.t(), lambda x: x[1:] * 1])
def test_what_reads_a_shown_view_of_an_input_is_freed_by_a_walk_to_that(part: Callable[..., torch.Tensor]) -> None:
    def program(compiled: Any) -> Iterator[Any]:
        f = compiled(lambda x, y: (part(x) * y.exp(), part(x), part(x).sum()))
        for number in range(4):
            for again in ((0, 0), (1, 0), (0, 1), (2, 0)):
                x = rows(number, 3, 3).requires_grad_()
                given = f(x, rows(number, 1, 3).requires_grad_())
                for place in (*again, 0):
                    got = outcome(torch.autograd.grad, given[place].sum(), x, allow_unused=True)
                    yield got[0].contiguous() if isinstance(got[0], torch.Tensor) else str(got)[:40]

    hold(Trap(program, traces=3, hits=4))
