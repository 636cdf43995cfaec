"""Code that stops in a debugger or sets a tracer runs as it is; below a branch the debugger sees the variables."""

# ruff: noqa: T100  Stopping is what is tested.

from __future__ import annotations

import io
import pdb
import sys
from typing import Any

import pytest
import torch

import framefuse
from framefuse.api import compiled_function


def stops(x: Any) -> Any:
    y = x * 2
    breakpoint()
    z = y.sin()
    return z


def calls(x: Any) -> Any:
    return stops(x + 1) * 2


def may_stop(x: Any, stop: bool = True) -> Any:
    y = x * 2
    if stop:
        breakpoint()
    return y.sin()


def tiny() -> int:
    return 1


def traces(x: Any) -> Any:
    found: list[str] = []
    sys.setprofile(lambda frame, event, _: found.append(event) if frame.f_code is tiny.__code__ else None)
    try:
        tiny()
    finally:
        sys.setprofile(None)
    return x * 2, found


def told(function: Any, commands: str, monkeypatch: pytest.MonkeyPatch) -> tuple[Any, str]:
    """What the call gave, and what the debugger wrote."""
    out = io.StringIO()
    debugger = pdb.Pdb(stdin=io.StringIO(commands.replace(" ; ", "\n") + "\n"), stdout=out, nosigint=True, readrc=False)
    monkeypatch.setattr(sys, "breakpointhook", lambda: debugger.set_trace(sys._getframe().f_back))
    tracer = sys.gettrace()
    try:
        return function(torch.ones(2)).tolist(), out.getvalue()
    finally:
        sys.settrace(tracer)
        monkeypatch.undo()


@pytest.mark.parametrize("function", [stops, calls])
@pytest.mark.parametrize("commands", ["p y ; c", "n ; n ; p z ; c", "!y = y * 3 ; c", "p locals().keys() ; c", "l ; c"])
def test_a_debugger_meets_the_function_itself(function: Any, commands: str, monkeypatch: pytest.MonkeyPatch) -> None:
    f = framefuse.compile(function)
    for _ in range(3):
        assert told(f, commands, monkeypatch) == told(function, commands, monkeypatch)


def test_below_a_branch_it_shows_the_variables(monkeypatch: pytest.MonkeyPatch) -> None:
    f = framefuse.compile(may_stop)
    for _ in range(3):
        value, text = told(f, "p y.tolist(), stop ; c", monkeypatch)
        assert value == may_stop(torch.ones(2), False).tolist()
        assert "may_stop()" in text and "([2.0, 2.0], True)" in text and "framefuse/" not in text
    for _ in range(3):
        assert torch.equal(f(torch.ones(2), False), may_stop(torch.ones(2), False))
    assert compiled_function(f).dispatch.hits > 0


def test_a_profiler_that_the_program_sets_sees_its_calls() -> None:
    f = framefuse.compile(traces)
    for _ in range(3):
        value, found = f(torch.ones(1))
        assert (value.tolist(), found) == ([2.0], ["call", "return"])
    assert compiled_function(f).reasons and next(iter(compiled_function(f).reasons)).code == "debugger"
