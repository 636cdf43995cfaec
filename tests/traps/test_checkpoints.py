"""``torch.utils.checkpoint`` inside compiled code is part of the graph: gradients, random numbers and state are those
of eager, and what a checkpoint drops is dropped.
"""

from __future__ import annotations

import collections
import functools
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from tests.traps.trap import Table, Trap, hold
from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import checkpoint_wrapper
from torch.nn import functional as F
from torch.utils.checkpoint import (
    CheckpointPolicy,
    checkpoint,
    checkpoint_sequential,
    create_selective_checkpoint_contexts,
)

import framefuse

TABLE = Table()
ROUNDS = range(4)


def block(*further: torch.nn.Module) -> torch.nn.Sequential:
    torch.manual_seed(0)
    return torch.nn.Sequential(torch.nn.LayerNorm(8), torch.nn.Linear(8, 16), torch.nn.GELU(), *further)


def trained(compiled: Any, net: torch.nn.Module, function: Any) -> Iterator[Any]:
    f = compiled(function)
    for turn in ROUNDS:
        x = torch.randn(3, 8, requires_grad=True)
        torch.manual_seed(turn)
        y = f(x)
        y.sum().backward()
        yield y, x.grad, [parameter.grad for parameter in net.parameters()], list(net.buffers()), torch.rand(1)
        net.zero_grad()


@TABLE.trap(traces=2, hits=6)
def either_variant(compiled: Any) -> Iterator[Any]:
    net = block(torch.nn.Dropout(0.3), torch.nn.Linear(16, 8))
    for reentrant in (False, True):
        run = functools.partial(checkpoint, net, use_reentrant=reentrant, preserve_rng_state=True)
        yield from trained(compiled, net, lambda x, run=run: run(run(x * 2) + x).cos())


@TABLE.trap(traces=1, hits=3)
def arguments_by_name_and_results_in_tuples(compiled: Any) -> Iterator[Any]:
    net = block(torch.nn.Linear(16, 8))

    def part(x: torch.Tensor, scale: float, *, shift: torch.Tensor) -> tuple[torch.Tensor, Any, torch.Tensor]:
        y = net(x) * scale + shift
        return y, None, y.sigmoid()

    def f(x: torch.Tensor) -> torch.Tensor:
        y, nothing, z = checkpoint(part, x, 0.5, use_reentrant=False, shift=x.sin())
        assert nothing is None
        return y * z

    yield from trained(compiled, net, f)


@TABLE.trap(traces=1, hits=3)
def one_in_another(compiled: Any) -> Iterator[Any]:
    net = block(torch.nn.Linear(16, 8))
    inner = functools.partial(checkpoint, net, use_reentrant=False)
    yield from trained(compiled, net, lambda x: checkpoint(lambda v: inner(v.tanh()) * v, x, use_reentrant=False) + x)


@TABLE.trap(traces=1, hits=3)
def attention_with_views_of_a_product(compiled: Any) -> Iterator[Any]:
    torch.manual_seed(0)
    net = torch.nn.ModuleList([torch.nn.Linear(8, 24), torch.nn.Linear(8, 8)])

    def attend(x: torch.Tensor) -> torch.Tensor:
        q, k, v = (part.view(3, 2, 4).transpose(0, 1) for part in net[0](x).chunk(3, -1))
        out = F.scaled_dot_product_attention(q[None], k[None], v[None], is_causal=True)
        return x + net[1](out[0].transpose(0, 1).reshape(3, 8))

    def f(x: torch.Tensor) -> torch.Tensor:
        for _ in range(3):
            x = checkpoint(attend, x, use_reentrant=False)
        return x

    yield from trained(compiled, net, f)


@TABLE.trap(traces=2, hits=6)
def a_sequence_in_segments(compiled: Any) -> Iterator[Any]:
    for reentrant in (False, True):
        net = torch.nn.Sequential(*[block(torch.nn.Dropout(0.3), torch.nn.Linear(16, 8)) for _ in range(3)])
        run = functools.partial(checkpoint_sequential, net, 2, use_reentrant=reentrant)
        yield from trained(compiled, net, lambda x, run=run: run(x * 2).sin())


@TABLE.trap(traces=1, hits=2)
def where_no_gradient_is_wanted(compiled: Any) -> Iterator[Any]:
    net = block()
    f = compiled(lambda x: checkpoint(net, x, use_reentrant=False).sum())
    for _ in range(3):
        with torch.no_grad():
            yield f(torch.randn(3, 8))


@TABLE.trap(traces=1, hits=2)
def derivatives_of_derivatives(compiled: Any) -> Iterator[Any]:
    net = block(torch.nn.Linear(16, 8))
    f = compiled(lambda x: checkpoint(net, x, use_reentrant=False).tanh().sum())
    for _ in range(3):
        x = torch.randn(3, 8, requires_grad=True)
        (slope,) = torch.autograd.grad(f(x), x, create_graph=True)
        slope.pow(2).sum().backward()
        yield slope, x.grad


@TABLE.trap(traces=1, hits=2)
def what_others_write_is_read_again(compiled: Any) -> Iterator[Any]:
    """Eager checks no versions of what the function does not take as an argument."""
    net = block()
    f = compiled(lambda x: checkpoint(net, x, use_reentrant=False).sum())
    for _ in range(3):
        x = torch.randn(3, 8, requires_grad=True)
        y = f(x)
        with torch.no_grad():
            net[1].bias.mul_(0.5)
        y.backward()
        yield x.grad, [parameter.grad for parameter in net.parameters()]
        net.zero_grad()


@TABLE.trap(traces=6, hits=0, waits="transform")
def running_statistics_that_eager_counts_twice(compiled: Any) -> Iterator[Any]:
    net = block(torch.nn.BatchNorm1d(16))
    yield from trained(compiled, net, lambda x: checkpoint(net, x, use_reentrant=False).sin())


@TABLE.trap(traces=6, hits=0, waits="transform")
def a_counter_that_eager_raises_twice(compiled: Any) -> Iterator[Any]:
    net, counted = block(), [0]

    def part(x: torch.Tensor) -> torch.Tensor:
        counted[0] += 1
        return net(x)

    for each in trained(compiled, net, lambda x: checkpoint(part, x, use_reentrant=False).sin()):
        yield each, counted[0]


@TABLE.trap(traces=6, hits=0, waits="transform")
def other_random_numbers_the_second_time(compiled: Any) -> Iterator[Any]:
    net = block(torch.nn.Dropout(0.5))
    run = functools.partial(checkpoint, net, use_reentrant=False, preserve_rng_state=False)
    yield from trained(compiled, net, lambda x: run(x).sin())


@TABLE.trap(traces=6, hits=0, waits="transform")
def a_result_without_a_gradient(compiled: Any) -> Iterator[Any]:
    """The reentrant variant says of all its results that they require grad."""
    net = block()

    def part(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return net(x), x.detach() * 2

    def f(x: torch.Tensor) -> torch.Tensor:
        y, z = checkpoint(part, x, use_reentrant=True)
        return y * (2.0 if z.requires_grad else 3.0)

    yield from trained(compiled, net, f)


@TABLE.trap(traces=6, hits=0, waits="transform")
def a_branch_on_a_value_inside(compiled: Any) -> Iterator[Any]:
    net = block()
    part = lambda x: net(x) if x.sum() > 0 else net(-x)
    yield from trained(compiled, net, lambda x: checkpoint(part, x, use_reentrant=False).sin())


PRODUCTS = [torch.ops.aten.addmm.default, torch.ops.aten.mm.default]


def every_second(counts: dict[bool, int]) -> Any:
    def policy(ctx: Any, operator: Any, *args: Any, **kwargs: Any) -> CheckpointPolicy:
        if operator in PRODUCTS:
            counts[ctx.is_recompute] += 1
        saved = operator in PRODUCTS and counts[ctx.is_recompute] % 2
        return CheckpointPolicy.MUST_SAVE if saved else CheckpointPolicy.PREFER_RECOMPUTE

    return policy


def contexts_of_every_second() -> Any:
    counts: dict[bool, int] = collections.defaultdict(int)
    return create_selective_checkpoint_contexts(every_second(counts))


@TABLE.trap(traces=2, hits=6)
def one_that_saves_what_a_policy_names(compiled: Any) -> Iterator[Any]:
    net = block(torch.nn.Dropout(0.3), torch.nn.Linear(16, 8))
    for contexts in (functools.partial(create_selective_checkpoint_contexts, PRODUCTS), contexts_of_every_second):
        run = functools.partial(checkpoint, net, use_reentrant=False, context_fn=contexts)
        yield from trained(compiled, net, lambda x, run=run: run(run(x * 2) + x).cos())


@TABLE.trap(traces=1, hits=3)
def a_module_that_is_wrapped(compiled: Any) -> Iterator[Any]:
    net = block(torch.nn.Linear(16, 8))
    yield from trained(compiled, net, checkpoint_wrapper(net, context_fn=contexts_of_every_second))


@TABLE.trap(traces=6, hits=0, waits="transform")
def a_policy_that_tells_what_it_was_asked(compiled: Any) -> Iterator[Any]:
    net, asked = block(torch.nn.Linear(16, 8)), []

    def policy(ctx: Any, operator: Any, *args: Any, **kwargs: Any) -> bool:
        asked.append(ctx.is_recompute)
        return operator in PRODUCTS

    contexts = functools.partial(create_selective_checkpoint_contexts, policy)
    yield from trained(compiled, net, lambda x: checkpoint(net, x, use_reentrant=False, context_fn=contexts))
    yield sum(asked), len(asked)


@TABLE.trap(traces=6, hits=0, waits="transform")
def contexts_of_the_program_s_own(compiled: Any) -> Iterator[Any]:
    net, entered = block(torch.nn.Linear(16, 8)), []

    class Counting:
        def __enter__(self) -> None:
            entered.append(1)

        def __exit__(self, *error: Any) -> None:
            pass

    def contexts() -> Any:
        return Counting(), Counting()

    yield from trained(compiled, net, lambda x: checkpoint(net, x, use_reentrant=False, context_fn=contexts))
    yield len(entered)


@TABLE.parametrize()
def test_compiled_programs_do_what_eager_does(trap: Trap) -> None:
    hold(trap)


@pytest.mark.parametrize("reentrant", [False, True])
def test_no_more_is_kept_than_eager_keeps(reentrant: bool) -> None:
    nets = [block(torch.nn.Linear(16, 8)) for _ in range(4)]

    def stack(x: torch.Tensor, run: Any) -> torch.Tensor:
        for net in nets:
            x = x + run(net, x)
        return x

    kept = []
    for run in (functools.partial(checkpoint, use_reentrant=reentrant), lambda net, x: net(x)):
        f = framefuse.compile(functools.partial(stack, run=run))
        for _ in range(2):
            f(torch.randn(32, 8, requires_grad=True)).sum().backward()
        report = framefuse.explain(f)
        assert not report.breaks
        kept.append(report.graphs[0].saved)
    assert kept[0] is not None and kept[1] is not None
    assert kept[0][0] <= 1.1 * kept[0][1] < 0.3 * kept[1][0]


def test_what_a_policy_saves_is_kept_and_no_more() -> None:
    nets = [block(torch.nn.Linear(16, 8)) for _ in range(4)]
    kept = []
    for saved in ([], PRODUCTS):
        contexts = functools.partial(create_selective_checkpoint_contexts, saved)

        def stack(x: torch.Tensor, contexts: Any = contexts) -> torch.Tensor:
            for net in nets:
                x = x + checkpoint(net, x, use_reentrant=False, context_fn=contexts)
            return x

        f = framefuse.compile(stack)
        for _ in range(2):
            f(torch.randn(32, 8, requires_grad=True)).sum().backward()
        kept.append(framefuse.explain(f).graphs[0].saved)
    assert kept[0] is not None and kept[1] is not None
    assert kept[0][0] <= 1.1 * kept[0][1] and kept[1][0] <= 1.1 * kept[1][1]
    assert kept[1][0] > kept[0][0] + 4 * 32 * 16 * 3


@pytest.mark.parametrize("on", [lambda y: torch.is_grad_enabled(), lambda y: y.requires_grad])
@pytest.mark.parametrize("reentrant", [False, True])
def test_a_function_that_asks_whether_gradients_are_on_hears_what_eager_tells_it(on: Any, reentrant: bool) -> None:
    def asks(x: torch.Tensor) -> torch.Tensor:
        with torch.no_grad():
            shift = x.mean()
        y = F.dropout(x + shift, 0.5)
        return y * (3.0 if on(y) and x.requires_grad else 2.0)

    def program(compiled: Any) -> Iterator[Any]:
        f = compiled(lambda x: checkpoint(asks, x.sin(), use_reentrant=reentrant).cos())
        for turn in ROUNDS:
            x = torch.randn(3, 8, requires_grad=True)
            torch.manual_seed(turn)
            y = f(x)
            y.sum().backward()
            yield y, x.grad, torch.rand(1)

    hold(Trap(program, traces=2, hits=3 - reentrant))
