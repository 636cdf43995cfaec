"""Compiled code with breaks never stays slower than eager: calls are weighed, and recorded ever more rarely."""

import secrets

import pytest
import torch

import framefuse
from framefuse.api import compiled_function
from framefuse.runtime import weighing
from framefuse.runtime.weighing import FIRST, LATER, LONGER, REST, SETTLE, Times, Weighing

LONG = FIRST + 2 * 8  # calls by which the first weighing is over: it takes eight


def test_both_the_sum_and_the_least_have_to_be_slower():
    assert Times(1.0, 2.0, 0.2, 0.4).lost(forward=False)
    assert not Times(1.0, 2.0, 0.2, 0.2).lost(forward=False)  # one call met a busy machine
    assert not Times(1.0, 1.05, 0.2, 0.21).lost(forward=False)
    assert not Times(1.0, 1.3, 0.2, 0.26).lost(forward=True)  # its backward may be the faster for it
    assert Times(1.0, 1.3, 0.2, 0.26).lost(forward=False)


def test_a_lost_weighing_is_followed_by_ever_longer_rests_and_a_won_one_by_a_later_one():
    turn = Weighing()
    assert [turn.next(lost=True) for _ in range(3)] == [(SETTLE, REST * LONGER**n) for n in range(3)]
    assert turn.next(lost=False) == (FIRST * LATER, 0)
    assert turn.next(lost=True) == (SETTLE, REST)


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
def test_calls_rest_where_compiled_code_is_the_slower(monkeypatch):
    monkeypatch.setattr(weighing.Times, "lost", lambda times, forward: True)
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
def test_calls_go_on_where_compiled_code_is_the_faster(monkeypatch):
    monkeypatch.setattr(weighing.Times, "lost", lambda times, forward: False)
    compiled = framefuse.compile(lambda x: broken(x))
    called(compiled, 3 * LONG)
    state = compiled_function(compiled)
    assert not state.reasons
    assert state.dispatch.hits > 2 * LONG
    assert state.dispatch.rest == 0


@pytest.mark.first_call
def test_what_is_installed_rests_too(monkeypatch):
    """Its calls come by another door: the function's own."""

    def own(x):
        return broken(x)

    monkeypatch.setattr(weighing.Times, "lost", lambda times, forward: True)
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
