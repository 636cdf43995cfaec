"""Cached functions and weak references: compiled code calls them again and sees what eager would see."""

import functools
import gc
import weakref

import pytest
import torch
from torch import nn

import framefuse
from framefuse.ir.repeated_calls import NOTHING, Repeated


def compiled(function):
    fast = framefuse.compile(function)
    return fast, fast.__framefuse__


def test_a_cached_function_is_called_again_and_runs_once():
    ran = []

    @functools.lru_cache
    def factor(name, power=1):
        ran.append(name)
        return len(ran) * 10**power

    def f(x):
        return x * factor("a") + factor("b", power=2)

    fast, state = compiled(f)
    x = torch.randn(3)
    torch.testing.assert_close(fast(x), x * 10 + 200)
    torch.testing.assert_close(fast(x), x * 10 + 200)
    assert ran == ["a", "b"] and state.dispatch.hits == 1 and len(state.products) == 1
    factor.cache_clear()  # eager would run the body again
    torch.testing.assert_close(fast(x), x * 30 + 400)
    assert ran == ["a", "b", "a", "b"]
    torch.testing.assert_close(fast(x), x * 30 + 400)
    assert ran == ["a", "b", "a", "b"]


@pytest.mark.parametrize("typed", (False, True))
@pytest.mark.parametrize("size", (None, 4))
@pytest.mark.parametrize(
    "args, kwargs", (((), {}), ((1,), {}), (("a",), {}), ((2.5,), {}), (((1, 2),), {}), ((1, "a"), {"b": 2, "c": 3}))
)
def test_what_a_cache_keeps_is_known_without_a_call(size, typed, args, kwargs):
    cached = functools.lru_cache(size, typed)(lambda *args, **kwargs: (args, kwargs))
    call = Repeated(cached, args, kwargs)
    assert call.value is NOTHING and cached.cache_info().misses == 0
    made = cached(*args, **kwargs)
    assert call.value is made
    cached.cache_clear()
    assert call.value is NOTHING and cached.cache_info().misses == 0


def test_what_a_cached_body_wrote_is_read_afresh():
    state = {"n": 1}

    @functools.lru_cache
    def bump(by):
        state["n"] += by
        return by

    def f(x):
        return x * state["n"] + bump(5) * state["n"]

    fast, _ = compiled(f)
    x = torch.randn(3)
    torch.testing.assert_close(fast(x), x + 30)
    for _ in range(3):
        torch.testing.assert_close(fast(x), x * 6 + 30)


def test_an_argument_of_a_cached_function_is_a_fact():
    @functools.lru_cache
    def double(n):
        return 2 * n

    fast, state = compiled(lambda x, n: x + double(n))
    x = torch.randn(3)
    for n in (1, 2, 1, 2):
        torch.testing.assert_close(fast(x, n), x + 2 * n)
    assert len(state.products) == 2 and state.dispatch.hits == 2


def test_a_weak_reference_to_a_tensor_that_dies():
    held = [torch.full((3,), 3.0)]
    reference = weakref.ref(held[0])

    def f(x):
        found = reference()
        return x if found is None else x * found

    fast, state = compiled(f)
    x = torch.randn(3)
    for _ in range(2):
        torch.testing.assert_close(fast(x), x * 3)
    assert state.dispatch.hits == 1, state.reasons
    held[0].mul_(2)
    torch.testing.assert_close(fast(x), x * 6)
    held.clear()
    for _ in range(2):
        torch.testing.assert_close(fast(x), x)


def test_a_weak_reference_to_an_object_keeps_nothing_alive():
    class Thing:
        scale = 3.0

    thing = Thing()
    reference = weakref.ref(thing)

    def f(x):
        found = reference()
        return x if found is None else x * found.scale

    fast, _ = compiled(f)
    x = torch.randn(3)
    for _ in range(2):
        torch.testing.assert_close(fast(x), x * 3)
    del thing
    gc.collect()
    assert reference() is None
    torch.testing.assert_close(fast(x), x)


def test_recurrent_layers_are_captured_and_follow_their_weights():
    torch.manual_seed(0)
    module = nn.LSTM(4, 5, batch_first=True, bidirectional=True).eval()
    fast = framefuse.compile(module)
    state = fast.__framefuse__
    with torch.no_grad():
        for batch, length in ((1, 3), (2, 6), (1, 1)):
            x = torch.randn(batch, length, 4)
            torch.testing.assert_close(fast(x), module(x))
        assert state.dispatch.hits == 2, state.reasons
        module.weight_hh_l0 = nn.Parameter(torch.randn_like(module.weight_hh_l0))
        torch.testing.assert_close(fast(x), module(x))
