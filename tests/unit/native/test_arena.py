"""Temporaries of plans share one memory, unless one plan runs inside another; a run can let go of inputs."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.unit.native.plans import Writer

from framefuse import _native
from framefuse.ir.plan import ReleaseStep

KILO = 1 << 10
ROOT = Path(__file__).resolve().parents[3]


def doubling(words: int, between: Any = None) -> Any:
    """A plan that gives 4 * x through ``words`` floats of an arena, and calls ``between`` while they are in use."""
    w = Writer()
    n = w.const(words)
    w.arena = w.const(4 * words)
    x = w.input(0, (n,))
    inner = w.slot("arena", (n,), base=w.const(0))
    out = w.fresh((n,))
    w.axpy(x, x, inner, n, 1.0)
    if between is not None:
        w.call(between, ())
    w.axpy(inner, inner, out, n, 1.0)
    return _native.PlanProgram(w.plan(("tensor", out)))


def right(plan: Any, words: int) -> None:
    x = torch.randn(words)
    assert torch.equal(plan.run((x,), ()), 4 * x)


def test_plans_that_follow_each_other_share() -> None:
    large, small = doubling(1 << 20), doubling(1 << 19)
    right(large, 1 << 20)
    held = _native.spare_bytes()
    assert held >= 4 << 20
    for _ in range(3):
        right(small, 1 << 19)
        right(large, 1 << 20)
    assert _native.spare_bytes() == held
    assert (large.arena_bytes, small.arena_bytes) == (4 << 20, 2 << 20)


def test_a_larger_plan_takes_the_place_of_a_smaller_one() -> None:
    small, large = doubling(1 << 21), doubling(1 << 22)
    right(small, 1 << 21)
    held = _native.spare_bytes()
    right(large, 1 << 22)
    assert _native.spare_bytes() <= held + (16 << 20) - (8 << 20)


def test_a_plan_inside_another_has_its_own() -> None:
    inside = doubling(KILO)

    def between() -> None:
        right(inside, KILO)

    outside = doubling(KILO, between)
    for _ in range(3):
        right(outside, KILO)


def test_a_plan_inside_itself_has_its_own() -> None:
    depth = 0

    def between() -> None:
        nonlocal depth
        if depth < 6:  # deeper than there are spares
            depth += 1
            right(plan, KILO)

    plan = doubling(KILO, between)
    right(plan, KILO)
    assert depth == 6
    right(plan, KILO)


def test_what_one_large_run_took_is_given_up_in_time() -> None:
    large, small = doubling(1 << 22), doubling(KILO)
    right(large, 1 << 22)
    held = _native.spare_bytes()
    assert held >= 16 << 20
    for _ in range(2 * 256):
        right(small, KILO)
    assert _native.spare_bytes() <= held - (16 << 20) + 4 * KILO  # the small one's own is spare now
    right(large, 1 << 22)


def test_nothing_is_held_when_no_plan_is_left() -> None:
    text = (
        "import gc, torch\n"
        "from framefuse import _native\n"
        "from tests.unit.native.test_arena import doubling, right\n"
        "plan = doubling(1 << 20)\n"
        "right(plan, 1 << 20)\n"
        "assert _native.spare_bytes() == 4 << 20\n"
        "del plan\n"
        "gc.collect()\n"
        "assert _native.spare_bytes() == 0\n"
    )
    env = {**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT / "src"), str(ROOT)])}
    done = subprocess.run([sys.executable, "-c", text], capture_output=True, text=True, cwd=ROOT, env=env)
    assert done.returncode == 0, done.stderr


def test_a_run_lets_go_of_inputs_that_nobody_reads_any_more() -> None:
    counts: list[int] = []
    x = torch.randn(4)
    saved: list[Any] = [x, torch.randn(4)]
    w = Writer()
    n = w.const(4)
    first, second = w.input(0, (n,)), w.input(1, (n,))
    out = w.fresh((n,))
    w.axpy(first, second, out, n, 2.0)
    w.call(lambda: counts.append(sys.getrefcount(x)), ())
    w.steps.append(ReleaseStep((first,)))
    w.call(lambda: counts.append(sys.getrefcount(x)), ())
    w.call(_native.saved_drop, (("register", 2), ("const", 0)), commits=True)
    w.call(lambda: counts.append(sys.getrefcount(x)), ())
    w.axpy(out, second, out, n, 1.0)
    plan = _native.PlanProgram(w.plan(("tensor", out)))
    expected = 2 * x + 2 * saved[1]
    for _ in range(2):
        assert torch.allclose(plan.run((x, saved[1], saved), ()), expected)
        assert saved[0] is None and saved[1] is not None
        assert [count - counts[0] for count in counts] == [0, -1, -2]
        counts.clear()
        saved[0] = x


def test_a_failure_after_an_input_is_gone_is_an_error() -> None:
    w = Writer()
    saved: list[Any] = [torch.randn(4)]
    n = w.const(4)
    first = w.input(0, (n,))
    w.steps.append(ReleaseStep((first,)))
    w.call(_native.saved_drop, (("register", 1), ("const", 0)), commits=True)
    w.call(lambda: 1 // 0, ())
    with pytest.raises(ZeroDivisionError):
        _native.PlanProgram(w.plan(("const", 1))).run((saved[0], saved), ())
