"""Beyond its limits a function compiles ever more rarely, in place of what was hit longest ago, and says so once."""

import logging

import pytest
import torch

import framefuse
from framefuse.api import compiled_function
from framefuse.runtime.trace_limits import (
    AT_ONCE,
    AT_ONCE_LARGE,
    EAGER,
    ELAPSED,
    FIRST_CALLS,
    REDEEMED,
    SERVED,
    SHARE,
    SLOW_SMALL,
    SLOW_SMALL_SHARE,
    STREAK,
    TIMES,
    USED,
    VAIN,
    Bound,
    Payments,
    Streak,
)

MANY = 800


def test_new_cases_wait_ever_longer():
    bound = Bound(2, 100.0)
    allowed = []
    for number in range(400):
        if bound.allows(float(number), 0):
            allowed.append(number)
            bound.add(1.0, float(number))
    first = int(1 + TIMES)
    assert allowed == [0, 1, first, int(first + 2 * TIMES), int(first + 6 * TIMES), int(first + 14 * TIMES)]


def test_time_is_a_limit_too():
    bound = Bound(100, 1.0)
    assert bound.allows(0.0, 0)
    bound.add(2.0, 0.0)
    assert not bound.allows(0.0, 0)


def test_cases_that_never_come_again_wait_too():
    bound = Bound(100, 100.0)
    bound.add(1.0, 0.0)
    assert bound.allows(0.0, VAIN - 1) and not bound.allows(0.0, VAIN)
    assert bound.allows(TIMES, VAIN)


@pytest.mark.first_call
def test_a_program_whose_every_call_is_another_case_is_compiled_few_times():
    compiled = framefuse.compile(lambda x, key: {key: torch.sin(x)})
    state = compiled_function(compiled)
    for number in range(MANY):
        x = torch.randn(3)
        (found,) = compiled(x, f"k{number}").items()
        assert found[0] == f"k{number}" and torch.equal(found[1], x.sin())
    assert VAIN <= len(state.products) <= VAIN + 2
    assert state.dispatch.misses < MANY // 3  # most calls are made without a look
    x = torch.randn(3)
    for _ in range(2 * state.dispatch.rest + 2):
        compiled(x, "k0")
    assert state.dispatch.hits and not state.dispatch.rest


@pytest.mark.first_call
def test_cases_that_come_in_turn_are_all_compiled():
    compiled = framefuse.compile(lambda x, key: {key: torch.sin(x)})
    state = compiled_function(compiled)
    for number in range(5 * 12):
        compiled(torch.randn(3), f"k{number % 12}")
    assert len(state.products) == 12 and state.dispatch.hits >= 24


@pytest.mark.first_call
def test_what_made_calls_rest_is_told_with_its_values_and_a_higher_limit_ends_it():
    for options, many in ({}, VAIN), ({"trace_limit": 32}, 2 * VAIN):
        compiled = framefuse.compile(lambda x, request: {request["id"]: torch.sin(x)}, options=options)
        for number in range(3 * VAIN):
            compiled(torch.randn(3), {"id": f"r{number}"})
        told = str(framefuse.explain(compiled))
        assert f"was 'r{many - 2}', is 'r{many - 1}' (asked at test_bounds.py" in told
        assert "keep meeting new cases" in told and "trace_limit" in told and "any value from now on)" not in told
        assert len(compiled_function(compiled).products) == many


def signs(x):
    return [float(row.sum()) > 0 for row in x]


def patterns(number, size):
    """A number in binary, as the signs of the sums of rows."""
    bits = torch.tensor([number >> place & 1 for place in range(10)])
    return (bits * 2.0 - 1.0)[:, None].expand(10, size).contiguous()


class Ran:
    """An entry that so many calls ran."""

    hits = 0


def test_what_ran_again_and_many_calls_of_compiled_code_alone_make_up_for_recordings():
    streak, first, second = Streak(), Ran(), Ran()
    streak.recorded, streak.last = 4.0, [first, second]
    assert streak.missed(0, False) == 4
    assert streak.missed(SHARE, False) == 3  # so many calls between
    assert streak.missed(SHARE + 1, True) == 3  # the call at hand is no such call
    first.hits = 1
    assert streak.missed(SHARE + 1, False) == 3 - REDEEMED and streak.last == [second]
    first.hits = 2
    assert streak.missed(SHARE + 1, False) == 3 - REDEEMED  # once for each
    second.hits = 1
    assert streak.missed(3 * SHARE + 1, False) == 0


@pytest.mark.weighed
def test_runs_of_the_interpreter_from_points_are_followed_by_ever_more_eager_calls():
    streak = Streak()
    assert [streak.ran_slowly(0) for _ in range(SLOW_SMALL + 3)] == [0] * SLOW_SMALL + [16, 64, 256]
    assert streak.ran_slowly(5 * SLOW_SMALL_SHARE) == 0  # compiled code is worth it
    large = Streak(small=False)
    assert not any(large.ran_slowly(0) for _ in range(50))


@pytest.mark.first_call
def test_small_calls_that_break_and_never_repeat_are_recorded_few_times():
    compiled = framefuse.compile(signs)
    state = compiled_function(compiled)
    for number in range(60):
        x = patterns(number * 17 % 1024, 2)
        assert compiled(x) == signs(x)
    assert state.recordings.made <= STREAK + 2
    misses = state.dispatch.misses
    for number in range(60, 120):
        x = patterns(number * 17 % 1024, 2)
        assert compiled(x) == signs(x)
    assert state.recordings.made <= STREAK + 2 and state.dispatch.misses <= misses + 60


@pytest.mark.first_call
def test_cases_behind_a_break_that_come_in_turn_are_all_compiled_by_the_second_round():
    compiled = framefuse.compile(signs)
    state = compiled_function(compiled)
    made = []
    for number in range(3 * 12):
        x = patterns(number % 12 * 7 % 16, 2)[:4]
        assert compiled(x) == signs(x)
        made.append(state.recordings.made)
    assert made[STREAK - 1] == made[11] == STREAK
    assert made[23] == made[-1] == 12 and not state.attempts.prunes and not state.dispatch.rest


class Hit:
    hits = 0


@pytest.mark.weighed
def test_a_recording_behind_the_first_calls_pays_for_itself():
    payments, calls, hits = Payments(), FIRST_CALLS + 1, 2 * USED

    def allows(eager, now, calls=calls):
        return payments.allows(calls, hits, eager, now, True)

    for call in range(2):
        assert allows(0.0, 0.0, call)
        payments.made([Hit()], 1.0, 0.0, 0.0)
    for _ in range(AT_ONCE):
        assert allows(0.0, 0.0)
        payments.made([Hit()], 1.0, 0.0, 0.0)
    assert not allows(EAGER - 0.1, ELAPSED - 0.1) and payments.until() == EAGER and payments.waits
    assert allows(EAGER, 0.0) and allows(0.0, ELAPSED) and not payments.waits
    payments.made([last := Hit()], 1.0, EAGER, 0.0)  # as long again, and twice as that served none
    assert not allows(3 * EAGER - 0.1, 0.0) and payments.until() == 3 * EAGER
    last.hits = SERVED
    assert allows(EAGER, 0.0)
    payments.made([Hit()], 1.0, EAGER, 0.0)
    assert not allows(EAGER, 0.0) and allows(2 * EAGER, 0.0)


@pytest.mark.weighed
@pytest.mark.parametrize(("small", "missed"), [(True, 0), (True, 1), (False, 1)])
def test_recordings_that_did_not_serve_are_followed_by_fewer(small, missed):
    payments = Payments(count=3, missed=missed, seconds=1.0)
    assert payments.allows(FIRST_CALLS + 1, 3 * USED, 0.0, 0.0, small) is not (small and missed)
    assert payments.left == (AT_ONCE_LARGE if missed else AT_ONCE) * (not small or not missed)


@pytest.mark.weighed
def test_new_cases_in_later_calls_run_eagerly():
    compiled = framefuse.compile(lambda x, key: {key: torch.sin(x)})
    state = compiled_function(compiled)
    for number in range(60):
        x, key = torch.randn(3), "same" if number < 20 else f"k{number}"
        torch.testing.assert_close(compiled(x, key)[key], x.sin())
    assert len(state.products) <= 1 + AT_ONCE + 1


def lbfgs():
    weight = torch.nn.Parameter(torch.linspace(-1, 1, 6))
    optimizer = torch.optim.LBFGS([weight], lr=0.1, max_iter=4)

    def step(x):
        def loss():
            optimizer.zero_grad()
            error = (torch.tanh(x * weight) - 0.3).pow(2).sum() + weight.pow(4).sum()
            error.backward()
            return error

        return optimizer.step(loss)

    return step


@pytest.mark.first_call
def test_a_call_that_meets_a_new_case_in_each_turn_of_a_loop_is_recorded_no_longer_than_others():
    step, compiled = lbfgs(), framefuse.compile(lbfgs())
    state = compiled_function(compiled)
    for _ in range(14):  # the optimizer keeps four more directions at each call
        x = torch.linspace(0.5, 2, 6)
        torch.testing.assert_close(compiled(x), step(x), rtol=1e-3, atol=1e-4)
    assert state.streak.recorded <= STREAK + 1.5 and state.recordings.made < STREAK


def test_a_program_that_moves_on_is_compiled_again(caplog):
    compiled = framefuse.compile(lambda x: torch.sin(x), dynamic=False, options={"trace_limit": 3})
    with torch.no_grad(), caplog.at_level(logging.WARNING, "framefuse"):
        for size in range(1, 6):
            compiled(torch.randn(size))
        state = compiled_function(compiled)
        assert len(state.dispatch.entries) == 3
        x = torch.randn(50)
        state.bound.until = state.dispatch.until = state.dispatch.eager + 1e-4
        for _ in range(MANY):
            assert torch.allclose(compiled(x), torch.sin(x))
        hits = state.dispatch.hits
        assert hits
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
