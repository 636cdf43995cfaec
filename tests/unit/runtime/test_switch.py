"""Compiled code is turned off and on: by the user, by the environment, by torch's stance, under tracers."""

import logging
import os
import subprocess
import sys
import threading

import pytest
import torch

import framefuse
from framefuse.errors import UserError
from framefuse.runtime.function import compiled_function


def hits(fast) -> int:
    return compiled_function(fast).dispatch.hits


@pytest.fixture
def fast():
    made = framefuse.compile(lambda x: torch.sin(x) * 2)
    for size in (3, 4):
        made(torch.randn(size))
    assert hits(made) == 1
    return made


def test_disable_and_enable_are_functions(fast):
    framefuse.disable()
    try:
        x = torch.randn(5)
        torch.testing.assert_close(fast(x), torch.sin(x) * 2)
        assert hits(fast) == 1
        other = []
        thread = threading.Thread(target=lambda: other.append(fast(x)))
        thread.start()
        thread.join()
        assert hits(fast) == 1 and len(other) == 1
    finally:
        framefuse.enable()
    fast(torch.randn(5))
    assert hits(fast) == 2  # nothing was lost


def test_blocks_nest_and_end_with_an_exception(fast):
    with framefuse.disable():
        fast(torch.randn(5))
        with framefuse.enable():
            fast(torch.randn(5))
        fast(torch.randn(5))
    assert hits(fast) == 2
    with pytest.raises(ZeroDivisionError), framefuse.disable():
        raise ZeroDivisionError
    fast(torch.randn(5))
    assert hits(fast) == 3


def test_the_decorator_turns_nothing_off(fast):
    @framefuse.disable()
    def helper(x):
        return x + 1

    fast(torch.randn(5))
    assert hits(fast) == 2
    assert helper(torch.ones(1)) == 2


@pytest.mark.parametrize("decorator", [framefuse.enable, lambda function: framefuse.enable()(function)])
def test_a_function_may_have_it_on_while_all_else_is_off(fast, decorator):
    @decorator
    def helper(x):
        return fast(x)

    with framefuse.disable():
        helper(torch.randn(5))
        fast(torch.randn(5))
    assert hits(fast) == 2
    fast(torch.randn(5))
    assert hits(fast) == 3


def test_nothing_is_compiled_while_it_is_off():
    fast = framefuse.compile(lambda x: x * 3)
    with framefuse.disable():
        for _ in range(3):
            fast(torch.randn(3))
    assert not compiled_function(fast).products


def test_an_installed_function_is_turned_off_too():
    def double(x):
        return torch.exp(x) * 2

    with framefuse.install(double):
        for _ in range(3):
            double(torch.randn(3))
        state = compiled_function(double)
        before = state.dispatch.hits
        with framefuse.disable():
            double(torch.randn(3))
        assert before == state.dispatch.hits > 0


PROGRAM = """
import torch, framefuse
fast = framefuse.compile(lambda x: torch.sin(x) * 2)
for _ in range(3): fast(torch.randn(3))
print(fast.hits)
framefuse.enable()
for _ in range(3): fast(torch.randn(3))
print(fast.hits)
"""


@pytest.mark.parametrize(("value", "printed"), [("1", ["0", "2"]), ("0", ["2", "5"])])
def test_the_environment_turns_it_off_from_the_start(value, printed):
    ran = subprocess.run(
        [sys.executable, "-c", PROGRAM], capture_output=True, text=True, env={**os.environ, "FRAMEFUSE_DISABLE": value}
    )
    assert ran.stdout.split() == printed, ran.stderr


def test_a_wrong_value_in_the_environment_is_told():
    ran = subprocess.run(
        [sys.executable, "-c", "import framefuse"], capture_output=True, text=True,
        env={**os.environ, "FRAMEFUSE_DISABLE": "perhaps"},
    )  # fmt: skip
    assert "FRAMEFUSE_DISABLE (1: everything runs eagerly) is 'perhaps'. Give True or False" in ran.stderr


# ---- torch's stance --------------------------------------------------------------------------------------------------


def test_force_eager_holds_for_compiled_code_that_is_there(fast):
    with torch.compiler.set_stance("force_eager"):
        fast(torch.randn(5))
        assert hits(fast) == 1
    fast(torch.randn(5))
    assert hits(fast) == 2


def test_force_eager_is_seen_where_torchs_compiler_is_imported_by_it():
    program = """
import sys, torch, framefuse
fast = framefuse.compile(lambda x: torch.sin(x) * 2)
for _ in range(3): fast(torch.randn(3))
assert "torch._dynamo" not in sys.modules
with torch.compiler.set_stance("force_eager"):
    fast(torch.randn(3))
print(fast.hits)
fast(torch.randn(3))
print(fast.hits)
"""
    ran = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert ran.stdout.split() == ["2", "3"], ran.stderr


def test_eager_on_recompile_uses_what_is_there(fast):
    with torch.compiler.set_stance("eager_on_recompile"):
        fast(torch.randn(5))
        fast(torch.randn(5).double())
    assert hits(fast) == 2 and len(compiled_function(fast).products) == 1


def test_fail_on_recompile_raises_for_what_is_not_there(fast):
    with torch.compiler.set_stance("fail_on_recompile"):
        fast(torch.randn(5))
        text = r"test_switch\.py:.* would compile under the stance 'fail_on_recompile'"
        with pytest.raises(RuntimeError, match=text) as raised:
            fast(torch.randn(5).double())
        assert isinstance(raised.value, UserError)
    fast(torch.randn(5).double())
    assert len(compiled_function(fast).products) == 2


def test_eager_then_compile_compiles_the_second_call():
    fast = framefuse.compile(lambda x: torch.cos(x) + 1)
    with torch.compiler.set_stance("eager_then_compile"):
        fast(torch.randn(3))
        assert not compiled_function(fast).products
        fast(torch.randn(3))
        fast(torch.randn(3))
    assert hits(fast) == 1


# ---- tracers ---------------------------------------------------------------------------------------------------------


def test_calls_are_eager_while_the_thread_is_traced_and_that_is_told_once(fast, caplog, monkeypatch):
    lines = []

    def trace(frame, event, argument):
        if frame.f_code.co_filename == __file__ and event == "line":
            lines.append(frame.f_lineno)
        return trace

    def program(x):
        y = torch.sin(x)
        return y * 2

    compiled = framefuse.compile(program)
    for _ in range(2):
        compiled(torch.randn(3))
    before = sys.gettrace()
    with caplog.at_level(logging.WARNING, logger="framefuse"):
        sys.settrace(trace)
        try:
            for _ in range(2):
                compiled(torch.randn(3))
        finally:
            sys.settrace(before)
    first = program.__code__.co_firstlineno
    assert lines.count(first + 1) == lines.count(first + 2) == 2
    assert len([record for record in caplog.records if "debugger or coverage" in record.message]) <= 1
    state = compiled_function(compiled)
    assert state.dispatch.hits == 1
    compiled(torch.randn(3))
    assert state.dispatch.hits == 2


@pytest.mark.skipif(sys.version_info < (3, 12), reason="sys.monitoring is new in CPython 3.12")
def test_nothing_is_compiled_while_a_tool_listens():
    sys.monitoring.use_tool_id(sys.monitoring.COVERAGE_ID, "test")
    try:
        fast = framefuse.compile(lambda x: x * 3)
        for _ in range(3):
            fast(torch.randn(3))
        assert not compiled_function(fast).products
    finally:
        sys.monitoring.free_tool_id(sys.monitoring.COVERAGE_ID)
