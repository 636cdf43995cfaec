"""`framefuse.profile` tables what ran: kernels, products and calls with count, time, bytes and shares of limits."""

import collections
import itertools

import pytest
import torch

import framefuse
from framefuse.explain import limits, step_times
from framefuse.explain.amounts import flops_of
from framefuse.ir.plan import CallStep, NumbersStep
from framefuse.ir.schedule import RunCall, RunMatmul
from framefuse.runtime.function import compiled_function


def block(x, w):
    return torch.relu(x @ w).softmax(-1)


def only(profile, kind):
    (row,) = [row for row in profile.rows if row.kind == kind]
    return row


def test_a_product_and_a_kernel_with_bytes_at_the_sizes_of_this_call():
    fast = framefuse.compile(block)
    w = torch.randn(6, 7)
    fast(torch.randn(5, 6), w)
    found = framefuse.profile(fast, torch.randn(9, 6), w)
    product = only(found, "product")
    assert product.shapes == "f32[9, 7]" and product.count == 1 and not product.recorded
    assert product.bytes == (9 * 6 + 6 * 7 + 9 * 7) * 4
    assert product.of_bandwidth > 0 and product.of_arithmetic > 0
    kernel = next(row for row in found.rows if row.kind == "kernel")
    assert kernel.lines[0].line == block.__code__.co_firstlineno + 1 and kernel.of_arithmetic is None
    assert sum(row.share for row in found.rows) == pytest.approx(1, abs=0.01) and found.calls == 5
    text = str(found)
    assert "GB/s, a copy of 64 MiB" in text and "GFLOP/s, a float32 product" in text and "test_profile.py" in text


def test_of_a_table_the_rows_count_that_are_read():
    table = torch.randn(1000, 8)
    fast = framefuse.compile(lambda words, scale: table[words].sin() * scale)
    fast(torch.tensor([1, 5, 7]), torch.randn(8))
    kernel = only(framefuse.profile(fast, torch.tensor([2, 9, 900, 3]), torch.randn(8)), "kernel")
    words, rows, scale = 4 * 8, 4 * 8 * 4, 8 * 4
    assert kernel.bytes == words + rows + scale + rows


def test_it_runs_the_function_so_often_and_changes_nothing_else():
    calls = []

    @framefuse.compile
    def step(x):
        calls.append(1)
        return x * torch.rand(4)

    torch.manual_seed(3)
    framefuse.profile(step, torch.ones(4), calls=2)
    after = torch.rand(4)
    torch.manual_seed(3)
    for _ in range(3 + 2):
        torch.rand(4)
    assert torch.equal(after, torch.rand(4))  # five draws, by the calls alone
    assert len(calls) == 5 and compiled_function(step).dispatch.calls == 5


def test_layers_alike_are_one_row_and_backward_is_told():
    layers = torch.nn.Sequential(*(torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.Tanh()) for _ in range(3)))
    fast = framefuse.compile(layers)
    x = torch.randn(4, 8)
    forward = framefuse.profile(fast, x, calls=1)
    found = framefuse.profile(lambda: fast(x).sum().backward(), calls=1)
    assert max(row.count for row in forward.rows) == 3
    assert sum(row.count for row in found.rows) > sum(row.count for row in forward.rows)


def test_what_cannot_be_profiled_says_so():
    with pytest.raises(framefuse.UserError, match="no compiled code ran"):
        framefuse.profile(torch.ones, 3)
    with pytest.raises(framefuse.UserError, match="cannot be called"):
        framefuse.profile(3)
    with pytest.raises(framefuse.UserError, match="calls is 0"):
        framefuse.profile(framefuse.compile(block), torch.ones(2, 2), torch.ones(2, 2), calls=0)


def test_an_exception_of_the_function_ends_the_profile_and_torchs_profiler_names_again():
    fast = framefuse.compile(block)
    w = torch.randn(6, 7)
    fast(torch.randn(5, 6), w)
    passed = itertools.count()

    def fails():
        fast(torch.randn(5, 6), w)
        if next(passed) == 4:
            raise ValueError("at the fifth call")

    with pytest.raises(ValueError, match="fifth"):
        framefuse.profile(fails)
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as told:
        fast(torch.randn(5, 6), w)
    assert any(event.name.startswith("framefuse: block") for event in told.events())


class Event:
    """A stand-in for a mark on a device, whose clock ticks 2 ms at each mark."""

    clock = 0.0

    def record(self):
        Event.clock += 2.0
        self.at = Event.clock

    def elapsed_time(self, end):
        return end.at - self.at


def test_steps_of_another_device_are_timed_by_its_marks(monkeypatch):
    fast = framefuse.compile(block)
    inputs = torch.randn(5, 6), torch.randn(6, 7)
    for _ in range(2):
        fast(*inputs)
    monkeypatch.setattr(step_times, "device_of", lambda item: "cpu" if isinstance(item, RunMatmul) else "cuda:0")
    found = step_times.measured(lambda: fast(*inputs), 3, Event).steps.values()
    assert found
    for step in found:
        assert (step.seconds == 2e-3) is not isinstance(step.item, RunMatmul)


def test_what_a_library_call_computes_is_named_at_its_own_step():
    fast = framefuse.compile(lambda x: (x[x > 0].sin() * 2).sort()[0] + 1)
    for _ in range(2):
        fast(torch.randn(9))
    plans = [product.stages.plan for product in compiled_function(fast).products]
    assert any(isinstance(step, NumbersStep) for plan in plans for step in plan.steps)
    calls = [(plan.steps[at], item) for plan in plans for at, item in plan.labels.items.items()]
    calls = [(step, item) for step, item in calls if isinstance(item, RunCall)]
    assert calls and all(isinstance(step, CallStep) and step.name == item.node.attr("name") for step, item in calls)


def test_the_arithmetic_of_library_products():
    fast = framefuse.compile(lambda x, w: torch.nn.functional.linear(x, w).relu())
    x, w = torch.randn(4, 6).bfloat16(), torch.randn(5, 6).bfloat16()
    for _ in range(2):
        fast(x, w)
    (product,) = compiled_function(fast).products
    schedule = product.stages.code.schedule
    told = [flops_of(item, schedule, product.stages.graph.hints) for item in schedule.items]
    assert [each for each in told if each is not None] == [2 * 4 * 5 * 6]


def test_limits_are_measured_once():
    assert limits.bandwidth("cpu") is limits.bandwidth("cpu")
    assert limits.arithmetic("cpu", torch.float32).speed > limits.bandwidth("cpu").speed / 100


def test_no_product_is_above_a_limit_that_was_measured_on_a_busy_machine(monkeypatch):
    measured = []

    def slow(device, dtype, threads):
        measured.append(dtype)
        return limits.Limit(1.0, "1 FLOP/s")

    monkeypatch.setattr(limits, "_products", {})
    monkeypatch.setattr(limits, "_times", collections.Counter())
    monkeypatch.setattr(limits, "_arithmetic", slow)
    fast = framefuse.compile(lambda x, w, v: torch.relu(x @ w) @ v)
    table = framefuse.profile(fast, torch.randn(64, 32), torch.randn(32, 48), torch.randn(48, 3))
    shares = [row.of_arithmetic for row in table.rows if row.kind == "product"]
    assert len(shares) == 2 and max(shares) == pytest.approx(1) and min(shares) < 1
    assert measured and any("as on a busy machine" in limit for limit in table.limits)
    count = len(measured)
    limits.arithmetic("cpu", torch.float32)
    assert len(measured) == count  # kept


def test_calls_that_rest_from_compiled_code_are_measured_too():
    fast = framefuse.compile(block)
    x, w = torch.randn(5, 6), torch.randn(6, 7)
    for _ in range(3):
        fast(x, w)
    dispatch = compiled_function(fast).dispatch
    dispatch.weigh(2, 1000)  # as after a weighing that was lost
    hits = dispatch.hits
    fast(x, w)
    assert dispatch.hits == hits
    assert only(framefuse.profile(fast, x, w), "product").count == 1
    for _ in range(3):
        torch.testing.assert_close(fast(x + 1, w), block(x + 1, w))
    assert dispatch.hits > hits
