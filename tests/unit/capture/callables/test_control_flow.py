"""What torch has for control flow runs compiled on the way that is taken, also where a whole graph is asked for."""

from __future__ import annotations

import pytest
import torch
from torch._higher_order_ops.map import map as map_rows
from torch._higher_order_ops.scan import scan
from torch._higher_order_ops.while_loop import while_loop

import framefuse
from framefuse import UserError
from framefuse.api import compiled_function

LAYER = torch.nn.Linear(4, 4)


def either(x):
    y = x.sin()
    return torch.cond(x.sum() > 0, lambda a: (a * y, a.sum()), lambda a: (a - y, LAYER(a).mean()), (x,))


def by_size(x):
    return torch.cond(x.shape[0] > 3, lambda a: a * 2, LAYER, (x,))


def nested(x):
    def inner(a):
        return torch.cond(a.max() > 1, torch.exp, lambda b: b * 3, (a,))

    return torch.cond(x.sum() > 0, inner, lambda a: -a, (x,)) + 1


def counted(x):
    return while_loop(lambda i, a: i < 5, lambda i, a: (i + 1, a * 1.1), (torch.tensor(0), x))[1]


def halved(x):
    return while_loop(lambda a, n: a.abs().sum() > 1, lambda a, n: (a * 0.5, n + 1), (x, torch.zeros(())))


FLOWS = [either, by_size, nested, counted, halved]


@pytest.mark.parametrize("whole", [False, True])
@pytest.mark.parametrize("function", FLOWS, ids=lambda function: function.__name__)
def test_only_the_way_that_is_taken_runs_compiled(function, whole):
    compiled = framefuse.compile(function, fullgraph=whole)
    state = compiled_function(compiled)
    with torch.no_grad():
        for turn in range(12):
            made = torch.Generator().manual_seed(turn)
            x = torch.randn(3 + turn % 2, 4, generator=made)
            torch.testing.assert_close(compiled(x), function(x), check_stride=True)
    assert state.dispatch.hits >= 8
    assert not state.reasons


def rows(x):
    return map_rows(lambda row, shift: row * 2 + shift, x, x[0].clone())


def pairs_of_rows(x):
    return map_rows(lambda pair: (pair[0] @ pair[1], pair[0] + 1), (x, x.cos()))


def running(x):
    return scan(lambda carry, row: (carry + row, (carry * row).sum()), x[0] * 0, x)


def running_backwards(x):
    return scan(lambda carry, row: (carry * row.cos(), carry + row), x[:, 0] + 1, x, dim=1, reverse=True)


@pytest.mark.parametrize("whole", [False, True])
@pytest.mark.parametrize("function", [rows, pairs_of_rows, running, running_backwards], ids=lambda f: f.__name__)
def test_steps_along_a_dimension_are_one_graph(function, whole):
    compiled = framefuse.compile(function, fullgraph=whole)
    state = compiled_function(compiled)
    for turn in range(4):
        made = torch.Generator().manual_seed(turn)
        x = torch.randn(4, 4, generator=made).requires_grad_()
        found, expected = compiled(x), function(x)
        torch.testing.assert_close(found, expected)
        ours, theirs = (
            torch.autograd.grad(sum(part.square().sum() for part in (made if isinstance(made, tuple) else (made,))), x)
            for made in (found, expected)
        )
        torch.testing.assert_close(ours, theirs)
    assert (len(state.products), state.dispatch.hits) == (1, 3)
    assert not state.resume_dispatches


def test_gradients_of_the_way_not_taken_are_torchs_zeros():
    first, second = torch.nn.Linear(4, 4), torch.nn.Linear(4, 4)

    def routed(x):
        return torch.cond(x.sum() > 0, lambda a: first(a).relu(), lambda a: second(a).relu(), (x,)).sum()

    compiled = framefuse.compile(routed)
    for turn in range(4):
        x = torch.randn(3, 4, generator=torch.Generator().manual_seed(turn))
        gradients = []
        for call in (compiled, routed):
            first.zero_grad(), second.zero_grad()
            call(x).backward()
            gradients.append([p.grad for p in (*first.parameters(), *second.parameters())])
        torch.testing.assert_close(*gradients)


def test_a_hook_may_stand_in_what_is_to_be_whole():
    seen = []

    def hooked(x):
        y = LAYER(x).tanh()
        y.register_hook(lambda gradient: gradient.clamp(-0.1, 0.1))
        y.register_hook(seen.append)
        return (y * 3).sum()

    compiled = framefuse.compile(hooked, fullgraph=True)
    for turn in range(4):
        x = torch.randn(3, 4, generator=torch.Generator().manual_seed(turn)).requires_grad_()
        found, expected = (torch.autograd.grad(call(x), [x, LAYER.weight]) for call in (compiled, hooked))
        torch.testing.assert_close(found, expected)
        torch.testing.assert_close(*seen[-2:])
    assert compiled_function(compiled).dispatch.hits == 3


def test_another_break_behind_the_branch_is_an_error_still():
    def told(x):
        y = torch.cond(x.sum() > 0, lambda a: a * 2, lambda a: a - 1, (x,))
        return y if y.max() > 1 else y + 1

    compiled = framefuse.compile(told, fullgraph=True)
    with torch.no_grad(), pytest.raises(UserError, match="branch"):
        compiled(torch.ones(3))
    with torch.no_grad(), pytest.raises(UserError, match="branch"):
        compiled(-torch.ones(3))
