"""Beyond its limits a function compiles ever more rarely, in place of what was hit longest ago, and says so once."""

import logging

import pytest
import torch

import framefuse
from framefuse.api import compiled_function
from framefuse.runtime.trace_limits import FIRST_PENALTY, Bound


def test_new_cases_wait_ever_longer():
    bound = Bound(2, 100.0)
    allowed = []
    for number in range(600):
        if bound.allows():
            allowed.append(number)
            bound.add(0.01)
    assert allowed == [0, 1, 1 + 64, 1 + 64 + 128, 1 + 64 + 128 + 256]


def test_time_is_a_limit_too():
    bound = Bound(100, 1.0)
    assert bound.allows()
    bound.add(2.0)
    assert not bound.allows()


def test_a_program_that_moves_on_is_compiled_again(caplog):
    compiled = framefuse.compile(lambda x: torch.sin(x), dynamic=False, options={"trace_limit": 3})
    with torch.no_grad(), caplog.at_level(logging.WARNING, "framefuse"):
        for size in range(1, 6):
            compiled(torch.randn(size))
        state = compiled_function(compiled)
        assert len(state.dispatch.entries) == 3
        x = torch.randn(50)
        for _ in range(FIRST_PENALTY + 5):
            torch.testing.assert_close(compiled(x), torch.sin(x))
        hits = state.dispatch.hits
        compiled(x)
        assert state.dispatch.hits == hits + 1
        assert len(state.dispatch.entries) == 3
    (line,) = [record.getMessage() for record in caplog.records]
    assert "test_bounds.py" in line
    assert "trace_limit" in line


@pytest.mark.first_call
def test_seconds_bound_a_function():
    compiled = framefuse.compile(lambda x: torch.sin(x), dynamic=False, options={"compile_seconds": 1e-9})
    with torch.no_grad():
        for size in range(1, 6):
            x = torch.randn(size)
            torch.testing.assert_close(compiled(x), torch.sin(x))
    assert len(compiled_function(compiled).products) == 1
    assert "compile_seconds" in str(framefuse.explain(compiled))
