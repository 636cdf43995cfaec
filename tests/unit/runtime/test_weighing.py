"""Compiled code never stays slower than eager: calls that may be are weighed, or recorded ever more rarely."""

import itertools
import secrets
import time

import pytest
import torch
import torch.nn.functional as F

import framefuse
from framefuse.api import compiled_function
from framefuse.runtime import weighing
from framefuse.runtime.weighing import (
    AGAIN,
    ALIKE,
    FIRST,
    IN_A_ROW,
    LATER,
    LONGER,
    NEARLY,
    REST,
    SETTLE,
    SLOWER,
    SLOWER_FORWARD,
    Times,
    Weighing,
)

pytestmark = pytest.mark.weighed
LONG = FIRST + 2 * 8  # calls by which the first weighing is over: it takes eight


def test_both_the_sum_and_the_least_have_to_be_slower():
    assert Times(1.0, 2.0, 0.2, 0.4).lost(SLOWER)
    assert not Times(1.0, 2.0, 0.2, 0.2).lost(SLOWER)  # one call met a busy machine
    assert not Times(1.0, 1.05, 0.2, 0.21).lost(SLOWER)
    assert not Times(1.0, 1.3, 0.2, 0.26).lost(SLOWER_FORWARD)  # its backward may be the faster for it
    assert Times(1.0, 1.3, 0.2, 0.26).lost(SLOWER)
    assert Times(1.0, 1.05, 0.2, 0.21).lost(ALIKE)


def test_a_lost_weighing_is_followed_by_ever_longer_rests_and_a_won_one_by_a_later_one():
    turn = Weighing()
    assert [turn.next(lost=True) for _ in range(3)] == [(SETTLE, REST * LONGER**n) for n in range(3)]
    assert turn.next(lost=False) == (FIRST * LATER, 0)
    assert turn.next(lost=True) == (SETTLE, REST)


def test_what_may_be_chance_is_lost_when_it_comes_in_a_row():
    turn, nearly, won = Weighing(), Times(1.0, NEARLY + 0.01, 0.2, 0.21), Times(1.0, 0.9, 0.2, 0.18)
    for _ in range(IN_A_ROW - 1):
        assert not turn.lost(nearly, SLOWER)
        assert turn.next(lost=False) == (AGAIN, 0)  # weighed again soon
    assert not turn.lost(won, SLOWER)
    assert turn.next(lost=False) == (FIRST * LATER, 0)
    assert [turn.lost(nearly, SLOWER) for _ in range(IN_A_ROW)] == [False] * (IN_A_ROW - 1) + [True]
    assert turn.next(lost=True) == (SETTLE, REST)
    assert not any(turn.lost(nearly, SLOWER_FORWARD) for _ in range(IN_A_ROW))  # a backward says the rest


def broken(x):
    y = torch.sin(x)
    framefuse.graph_break()
    return y + 1


def called(compiled, times):
    with torch.no_grad():
        for _ in range(times):
            x = torch.randn(4)
            torch.testing.assert_close(compiled(x), broken(x))


@pytest.mark.first_call
@pytest.mark.parametrize("period", [3, 5])
@pytest.mark.parametrize("phase", range(3))
def test_calls_that_differ_in_turn_do_not_rest_for_it(period, phase):
    @framefuse.compile
    def f(x, long):
        if long:
            time.sleep(2e-3)
        else:
            time.sleep(5e-4)
        return x * 2 + 1

    for number in range(150):
        f(torch.ones(8), (number + phase) % period != 0)
    assert compiled_function(f).dispatch.rest == 0
    assert all(reason.code != "slower" for reason in compiled_function(f).reasons)


def test_what_is_compiled_below_compiles_nothing_for_the_eager_calls_of_a_weighing():
    inner = framefuse.compile(lambda x: x.sin() + 1)

    @framefuse.compile
    def outer(x):
        y = inner(x)
        return y * int(y.sum().item() > 1e9)

    for _ in range(2 * LONG):
        outer(torch.randn(4))
    assert compiled_function(outer).resume_dispatches
    assert not compiled_function(inner).products


def test_calls_rest_where_compiled_code_is_the_slower(monkeypatch):
    monkeypatch.setattr(weighing.Times, "lost", lambda times, bound: True)
    compiled = framefuse.compile(lambda x: broken(x))
    state = compiled_function(compiled)
    called(compiled, LONG)
    assert [why.code for why in state.reasons] == ["slower"]
    assert "an eager one" in str(framefuse.explain(compiled))
    hits, rest = state.dispatch.hits, state.dispatch.rest
    assert FIRST < hits < LONG
    assert rest > REST - LONG
    called(compiled, rest)
    assert state.dispatch.hits == hits
    called(compiled, SETTLE + 8)  # weighed again: half of eight calls are eager
    assert state.dispatch.hits == hits + SETTLE + 4
    assert state.dispatch.rest == REST * LONGER
    framefuse.reset()
    assert state.dispatch.rest == 0


@pytest.mark.first_call
@pytest.mark.parametrize(("backward", "bound"), [("within", SLOWER), ("behind", SLOWER_FORWARD), ("none", SLOWER)])
def test_a_call_with_breaks_is_weighed_by_its_forward_where_a_backward_may_follow(backward, bound, monkeypatch):
    def step(x):
        loss = broken(x).square().sum()
        if backward == "within":
            loss.backward()
        return loss

    bounds = []
    monkeypatch.setattr(weighing.Times, "lost", lambda times, bound: bounds.append(bound) or True)
    compiled = framefuse.compile(step)
    for _ in range(LONG):
        x = torch.randn(4, requires_grad=backward != "none")
        loss = compiled(x)
        torch.testing.assert_close(loss, broken(x).square().sum())
        if backward == "behind":
            loss.backward()
        if backward != "none":
            torch.testing.assert_close(x.grad, 2 * (torch.sin(x) + 1) * torch.cos(x))
    assert bounds == [bound]


@pytest.mark.first_call
def test_the_longest_call_of_a_side_does_not_count(monkeypatch):
    weighed, calls = [], itertools.count()

    @framefuse.disable
    def slow_now_and_then():
        if next(calls) % 8 == 0:  # one of the eight calls that are weighed
            time.sleep(0.2)

    def program(x):
        y = torch.sin(x)
        slow_now_and_then()
        return y + 1

    monkeypatch.setattr(weighing.Times, "lost", lambda times, bound: weighed.append(times) or True)
    compiled = framefuse.compile(program)
    for _ in range(LONG):
        x = torch.randn(4)
        torch.testing.assert_close(compiled(x), torch.sin(x) + 1)
    assert weighed and all(max(times.eager, times.compiled) < 0.2 for times in weighed)


@pytest.mark.first_call
def test_calls_go_on_where_compiled_code_is_the_faster(monkeypatch):
    monkeypatch.setattr(weighing.Times, "lost", lambda times, bound: False)
    compiled = framefuse.compile(lambda x: broken(x))
    called(compiled, 3 * LONG)
    state = compiled_function(compiled)
    assert not state.reasons
    assert state.dispatch.hits > 2 * LONG
    assert state.dispatch.rest == 0


PROGRAMS = {
    "a call of torch": (lambda x: x.sort(-1), True),
    "a view": (lambda x: x[..., -1], True),
    "and a kernel": (lambda x: (x * 2 + 1).topk(2, -1), True),
    "kernels": (lambda x: (x * 2 + 1).softmax(-1), False),
    "large": (lambda x: x.expand(99999, 9).sort(-1), False),
}


@pytest.mark.first_call
@pytest.mark.parametrize("name", PROGRAMS)
def test_small_calls_of_torch_are_weighed_without_a_break_too(name, monkeypatch):
    program, weighed = PROGRAMS[name]
    bounds = []
    monkeypatch.setattr(weighing.Times, "lost", lambda times, bound: bounds.append(bound) or bound < 2)
    compiled = framefuse.compile(program)
    state = compiled_function(compiled)
    for _ in range(LONG if name != "large" else 3):
        x = torch.randn(1 if name == "large" else 4, 9)
        torch.testing.assert_close(compiled(x), program(x))
    assert state.dispatch.weighs is weighed and (state.dispatch.rest > 0) is weighed
    assert bounds == ([SLOWER if name == "and a kernel" else ALIKE] if weighed else [])
    assert [why.code for why in state.reasons] == ["slower"] * weighed


@pytest.mark.first_call
def test_what_a_backward_follows_is_not_weighed():
    compiled = framefuse.compile(lambda x: (x * 2 + 1).sort(-1).values)
    for _ in range(3):
        x = torch.randn(4, 9, requires_grad=True)
        compiled(x).sum().backward()
        assert torch.equal(x.grad, torch.full((4, 9), 2.0))
    assert not compiled_function(compiled).dispatch.weighs


@pytest.mark.first_call
def test_one_small_call_in_training_is_weighed_by_its_forward(monkeypatch):
    bounds = []
    monkeypatch.setattr(weighing.Times, "lost", lambda times, bound: bounds.append(bound) or True)
    compiled = framefuse.compile(lambda x: x.exp())
    for _ in range(LONG):
        x = torch.randn(4, 9, requires_grad=True)
        compiled(x).sum().backward()
        torch.testing.assert_close(x.grad, x.exp().detach())
    assert bounds == [SLOWER]
    assert compiled_function(compiled).dispatch.rest > 0


@pytest.mark.first_call
def test_what_another_backend_made_is_not_weighed():
    calls = []
    compiled = framefuse.compile(lambda x: x.sort(-1).values, backend=lambda graph, given: calls.append(1) or graph)
    for _ in range(3):
        x = torch.randn(4, 9)
        torch.testing.assert_close(compiled(x), x.sort(-1).values)
    assert calls and compiled_function(compiled).dispatch.hits >= 2
    assert not compiled_function(compiled).dispatch.weighs


@pytest.mark.first_call
def test_a_case_that_is_compiled_later_and_gains_ends_the_rests(monkeypatch):
    monkeypatch.setattr(weighing.Times, "lost", lambda times, bound: bound < 2)
    compiled = framefuse.compile(lambda x, much: x.softmax(-1) * 2 + 1 if much else x.sort(-1).values)
    state, x = compiled_function(compiled), torch.randn(4, 9)
    for _ in range(LONG):
        torch.testing.assert_close(compiled(x, False), x.sort(-1).values)
    for _ in range(state.dispatch.rest + 3 * LONG):
        torch.testing.assert_close(compiled(x, True), x.softmax(-1) * 2 + 1)
    assert state.dispatch.rest == 0 and state.dispatch.hits > 2 * LONG


@pytest.mark.first_call
def test_what_is_installed_rests_too(monkeypatch):
    """Its calls come by another door: the function's own."""

    def own(x):
        return broken(x)

    monkeypatch.setattr(weighing.Times, "lost", lambda times, bound: True)
    with framefuse.install(own):
        called(own, LONG)
        state = compiled_function(own)
        assert FIRST < state.dispatch.hits < LONG
        assert state.dispatch.rest > REST - LONG


@pytest.mark.first_call
def test_what_every_call_makes_anew_is_recorded_ever_more_rarely():
    def f(x):
        text = secrets.token_hex(4)
        return torch.sin(x) + (1 if text.startswith("a") else 2) * len(text)

    compiled = framefuse.compile(f, options={"trace_limit": 4})
    state = compiled_function(compiled)
    for _ in range(150):
        x = torch.ones(2)
        assert bool((compiled(x) - torch.sin(x) >= 8).all())
    assert state.recordings.made <= 2 * 4 + 2


@pytest.mark.first_call
@pytest.mark.parametrize(("works", "most"), [(False, 4), (True, 16)])
def test_a_program_that_stops_before_its_work_is_recorded_few_times(works, most):
    def f(x):
        y = x.sin() if works else x
        text = secrets.token_hex(4)
        return y, (1 if text.startswith("a") else 2) * len(text)

    compiled = framefuse.compile(f, options={"trace_limit": 16})
    state = compiled_function(compiled)
    for _ in range(40):
        x = torch.randn(3)
        found, number = compiled(x)
        torch.testing.assert_close(found, x.sin() if works else x)
        assert number in (8, 16)
    assert 1 < state.recordings.made <= most
    assert state.computes() is works


CELLS = torch.nn.RNN(9, 5, batch_first=True), torch.nn.Linear(5, 2)

PLACES = torch.tensor([2, 0, 2, 1])
TRAINED = {
    "a recurrent layer, which makes its first state": (lambda x: CELLS[1](CELLS[0](x[None])[0]), True),
    "one call whose gradient is on a tape": (lambda x: torch.logcumsumexp(x, -1), True),
    "several": (lambda x: torch.logcumsumexp(x, -1).renorm(2, 0, 1.0), True),
    "one whose gradient is another call's": (lambda x: x.topk(3, -1).values, True),
    "few others, in a kernel": (lambda x: torch.logcumsumexp(x * 2 + 1, -1), True),
    "more in kernels": (lambda x: torch.logcumsumexp((x * 2 + 1).sin().exp() - x, -1).cos(), False),
    "a tiny kernel whose gradient is a call": (lambda x: x[PLACES], True),
}


COMPLEX = {
    "layers of complex numbers": (lambda x, w: F.linear(torch.tanh(F.linear(x, w)), w), True),
    "a kernel of their parts": (lambda x, w: (x * w * x + w) * x * w, False),
}


@pytest.mark.first_call
@pytest.mark.parametrize("name", COMPLEX)
def test_training_of_complex_numbers_rests_where_all_is_torchs_own(name):
    program, rests = COMPLEX[name]
    compiled = framefuse.compile(program)
    state = compiled_function(compiled)
    for _ in range(LONG + 2):
        x, w = (torch.randn(4, 4, dtype=torch.complex64, requires_grad=True) for _ in range(2))
        gradients = [torch.autograd.grad(each(x, w).abs().square().sum(), (x, w)) for each in (program, compiled)]
        torch.testing.assert_close(*gradients, rtol=1e-4, atol=1e-4)
    assert state.dispatch.hits >= SETTLE and (state.dispatch.rest > 0) is rests


@pytest.mark.first_call
@pytest.mark.parametrize("name", TRAINED)
def test_training_rests_where_all_is_torchs_own_forward_and_backward(name):
    program, rests = TRAINED[name]
    compiled = framefuse.compile(program)
    state = compiled_function(compiled)
    for call in range(LONG + 2):
        x = torch.randn(4, 9, requires_grad=True)
        (theirs,) = torch.autograd.grad(program(x).square().sum(), x)
        if call % 2:
            (ours,) = torch.autograd.grad(compiled(x).square().sum(), x)
        else:
            compiled(x).square().sum().backward()
            ours = x.grad
        torch.testing.assert_close(ours, theirs)
    assert state.dispatch.hits >= SETTLE + 4
    assert (state.dispatch.rest > 0) is rests
    assert [why.code for why in state.reasons] == ["slower"] * rests


ON_GPUS = {
    "one call": (lambda x: torch.sort(x, 1), True),
    "two calls": (lambda x: torch.sort(x, 1).values.sort(0), True),
    "a kernel behind it": (lambda x: torch.sort(x, 1).values.relu(), False),
    "another call for it": (lambda x: torch.einsum("ij,jk->ik", x.view(-1, 8), x[:8]), False),
    "a view before it": (lambda x: torch.sort(x.T, 1), False),
    "a chain of calls": (lambda x: torch.sort(x, 1).values.sort(0).values.sort(1).values.sort(0), False),
}


@pytest.mark.first_call
@pytest.mark.parametrize("name", ON_GPUS)
@pytest.mark.parametrize("slower", [True, False])
def test_a_gpus_own_calls_rest_where_the_host_takes_longer_for_them(name, slower, monkeypatch):
    program, same = ON_GPUS[name]
    monkeypatch.setattr(weighing, "_on_gpu", lambda stages: True)
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: True)
    monkeypatch.setattr(weighing.Times, "lost", lambda times, bound: slower)
    compiled = framefuse.compile(program)
    state = compiled_function(compiled)
    for _ in range(FIRST + 20):
        x = torch.randn(90, 800)
        torch.testing.assert_close(compiled(x), program(x))
    rests = same and slower
    assert (state.dispatch.rest > 0) is rests and [why.code for why in state.reasons] == ["slower"] * rests


TRAINED_ON_GPUS = {
    "one convolution": (lambda x, w: F.conv2d(x, w), True),
    "a kernel behind it": (lambda x, w: F.conv2d(x, w).relu(), False),
    "half of it a kernel": (lambda x, w: x.median(-1).values, False),
    "one small kernel": (lambda x, w: x.relu(), True),
    "what is two kernels to torch": (lambda x, w: x.relu() * 2, False),
}


@pytest.mark.first_call
@pytest.mark.parametrize("name", TRAINED_ON_GPUS)
def test_training_on_a_gpu_rests_where_its_forward_is_one_call_of_any_size(name, monkeypatch):
    program, rests = TRAINED_ON_GPUS[name]
    monkeypatch.setattr(weighing, "_on_gpu", lambda stages: True)
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: True)  # the clock says nothing
    compiled = framefuse.compile(program)
    state = compiled_function(compiled)
    for _ in range(LONG):
        x, w = torch.randn(2, 3, 120, 120, requires_grad=True), torch.randn(4, 3, 2, 2, requires_grad=True)
        theirs = torch.autograd.grad(program(x, w).square().sum(), (x, w), allow_unused=True)
        ours = torch.autograd.grad(compiled(x, w).square().sum(), (x, w), allow_unused=True)
        torch.testing.assert_close(ours[0], theirs[0], rtol=1e-4, atol=1e-4)
    assert state.dispatch.hits >= SETTLE + 4 and (state.dispatch.rest > 0) is rests
