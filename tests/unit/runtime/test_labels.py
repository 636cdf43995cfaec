"""torch's profiler names what compiled code does: the call, its kernels, products and library calls."""

import functools
import json
import logging
import re

import pytest
import torch
from torch.profiler import ProfilerActivity, profile

import framefuse
from framefuse.runtime.function import compiled_function


def block(x, w):
    return torch.relu(x @ w).softmax(-1)


def names(run) -> list[str]:
    with profile(activities=[ProfilerActivity.CPU]) as found:
        run()
    return [event.name for event in found.events() if event.name.startswith("framefuse")]


def compiled(function, inputs):
    fast = framefuse.compile(function)
    for _ in range(2):
        fast(*inputs())
    assert compiled_function(fast).dispatch.hits
    return fast


def inputs():
    return torch.randn(5, 6), torch.randn(6, 7)


def test_the_call_its_kernel_and_its_product_have_names_and_lines():
    fast = compiled(block, inputs)
    found = names(lambda: fast(*inputs()))
    line = block.__code__.co_firstlineno
    assert found[0] == f"framefuse: block test_labels.py:{line}"
    assert any(re.match(r"framefuse product f32\[.*\] test_labels\.py:\d+$", name) for name in found)
    assert any(name.startswith("framefuse kernel ") and name.endswith(f"test_labels.py:{line + 1}") for name in found)


def decorated(function):
    @functools.wraps(function)
    def wrapper(*args, **kwargs):
        return function(*args, **kwargs)

    return wrapper


class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = torch.nn.Linear(6, 7)

    @decorated
    def forward(self, x, by=None):
        y = self.linear(x).relu()
        return y if by is None else y * by


def test_a_module_is_its_forward_and_a_decorated_function_what_it_decorates(caplog):
    net = Net()
    fast = framefuse.compile(net)
    for _ in range(2):
        fast(torch.randn(5, 6))
    place = f"test_labels.py:{Net.forward.__wrapped__.__code__.co_firstlineno}"
    assert names(lambda: fast(torch.randn(5, 6)))[0] == f"framefuse: Net.forward {place}"
    again = names(lambda: fast(torch.randn(5, 6)).sum().backward())
    assert [name for name in again if name.startswith("framefuse: ")][1] == f"framefuse: Net.forward_backward {place}"
    with caplog.at_level(logging.INFO, "framefuse"):
        fast(torch.randn(5, 6), 2.0)
    message = "Net.forward is compiled again because len(args) was 1, is 2"
    assert [record.getMessage() for record in caplog.records] == [f"{place}: {message}"]
    assert str(framefuse.explain(fast)).startswith(f"Net ({place})")


def test_nothing_is_told_when_nobody_listens_and_results_are_equal_when_somebody_does():
    fast = compiled(block, inputs)
    x, w = inputs()
    with profile(activities=[ProfilerActivity.CPU]):
        while_told = fast(x, w)
    torch.testing.assert_close(while_told, fast(x, w), rtol=0, atol=0)
    torch.testing.assert_close(while_told, block(x, w))


def test_backward_has_names_of_its_own():
    fast = compiled(block, lambda: [each.requires_grad_() for each in inputs()])
    x, w = (each.requires_grad_() for each in inputs())
    fast(x, w).sum().backward()
    loss = fast(x, w).sum()
    found = names(loss.backward)
    assert sum(name.startswith("framefuse: ") for name in found) == 1
    assert any(name.startswith(("framefuse kernel", "framefuse product")) for name in found)


def test_an_exported_trace_shows_the_ranges(tmp_path):
    fast = compiled(block, inputs)
    with profile(activities=[ProfilerActivity.CPU]) as found:
        fast(*inputs())
    found.export_chrome_trace(str(tmp_path / "trace.json"))
    events = json.loads((tmp_path / "trace.json").read_text())["traceEvents"]
    assert any(event.get("name", "").startswith("framefuse: block") for event in events)


def test_a_call_that_declines_under_a_profiler_closes_its_ranges():
    def pick(x, index):
        return torch.relu(x)[index] * 2

    fast = framefuse.compile(pick)
    x = torch.randn(6)
    for _ in range(2):
        fast(x, torch.tensor([1, 2]))
    with profile(activities=[ProfilerActivity.CPU]) as found:
        with pytest.raises(IndexError):
            fast(x, torch.tensor([1, 9]))
        fast(x, torch.tensor([0, 3]))
    wholes = [event for event in found.events() if event.name.startswith("framefuse: ") and ".pick " in event.name]
    assert len(wholes) == 2
    assert all(event.time_range.end >= event.time_range.start for event in wholes)
    assert wholes[0].time_range.end <= wholes[1].time_range.start


def test_a_memory_profile_says_for_which_step_memory_was_taken():
    fast = compiled(block, inputs)
    x, w = inputs()
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as found:
        fast(x, w)
    ours = [event for event in found.events() if event.name.startswith("framefuse")]
    taken = {event.name: event.self_cpu_memory_usage for event in ours if event.self_cpu_memory_usage > 0}
    assert list(taken.values()) == [5 * 7 * 4]
    assert re.match(r"framefuse memory f32\[.*\] for kernel .* test_labels\.py:\d+$", next(iter(taken)))


def test_a_profiler_with_a_schedule_is_no_reason_to_compile_a_step_anew():
    torch.manual_seed(0)
    model = torch.nn.Linear(6, 3)
    optimizer = torch.optim.Adam(model.parameters())

    def step(x):
        optimizer.zero_grad()
        loss = model(x).square().mean()
        loss.backward()
        optimizer.step()
        return loss

    fast = framefuse.compile(step)
    for _ in range(4):
        fast(torch.randn(5, 6))
    known = len(compiled_function(fast).products)
    with profile(
        activities=[ProfilerActivity.CPU], schedule=torch.profiler.schedule(wait=1, warmup=1, active=2)
    ) as found:
        for _ in range(4):
            fast(torch.randn(5, 6))
            found.step()
    assert len(compiled_function(fast).products) == known, framefuse.explain(fast)
    told = [event.name for event in found.events()]
    assert told.count("Optimizer.step#Adam.step") == told.count("Optimizer.zero_grad#Adam.zero_grad") == 2
