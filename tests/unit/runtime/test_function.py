"""A compiled function counts its attempts, waits longer after each vain one, and stops at its limit of traces."""

import pytest
import torch
from torch.overrides import BaseTorchFunctionMode

import framefuse
from framefuse.api import compiled_function


def attempts_of(compiled, argument, calls):
    """After how many calls each recording took place."""
    state = compiled_function(compiled)
    found, seen = [], 0
    for number in range(calls):
        compiled(argument)
        recorded = sum(state.reasons.values()) + len(state.products)
        if recorded > seen:
            found.append(number)
            seen = recorded
    return found


def test_a_function_that_never_compiles_is_tried_ever_more_rarely():
    @framefuse.compile
    def stopped(x):
        return x.sum()

    with torch.no_grad(), BaseTorchFunctionMode():
        assert attempts_of(stopped, torch.ones(3), 100) == [0, 5, 22, 87]


def test_a_function_compiles_once_its_arguments_allow_it():
    @framefuse.compile
    def f(x):
        return torch.sin(x)

    x = torch.ones(3)
    with torch.no_grad():
        with BaseTorchFunctionMode():
            f(x), f(x)
        for _ in range(8):
            torch.testing.assert_close(f(x), torch.sin(x))
    state = compiled_function(f)
    assert len(state.products) == 1
    assert state.dispatch.hits >= 3


def test_the_limit_of_traces_is_said_once():
    @framefuse.compile(dynamic=False, options={"trace_limit": 2})
    def f(x):
        return torch.sin(x)

    with torch.no_grad():
        for size in (1, 2, 3, 4, 1, 2):
            x = torch.randn(size)
            torch.testing.assert_close(f(x), torch.sin(x))
    state = compiled_function(f)
    assert len(state.products) == 2
    assert state.dispatch.hits == 2
    assert [reason.code for reason in state.reasons] == ["limit"]
    assert "trace_limit" in str(framefuse.explain(f))


@pytest.mark.first_call
def test_a_function_whose_every_call_is_a_new_case_is_looked_at_ever_more_rarely():
    compiled = framefuse.compile(lambda x, text: x * 2 if text.startswith("a") else x + len(text))
    record, x = compiled_function(compiled), torch.ones(2)
    for number in range(2000):
        text = "ab"[number % 2] + str(number)
        assert torch.equal(compiled(x, text), x * 2 if text[0] == "a" else x + len(text))
    assert record.dispatch.misses < 1000
