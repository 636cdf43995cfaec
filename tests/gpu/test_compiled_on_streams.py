"""Compiled functions on side streams, in captured graphs, in threads and under the profiler."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from tests.gpu.kernels import NEEDS_GPU

import framefuse
from framefuse.api import compiled_function

pytestmark = NEEDS_GPU
LONG = 100_000_000  # cycles: some 50 ms


def program(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    """Kernels of ours around a library call, with temporaries."""
    y = torch.softmax(x.sin() * 2 + 1, -1)
    return F.gelu(y @ weight) + x.sum(-1, keepdim=True)


def inputs() -> tuple[torch.Tensor, torch.Tensor]:
    return torch.randn(64, 128, device="cuda"), torch.randn(128, 96, device="cuda")


@pytest.fixture
def compiled() -> Iterator[Any]:
    """The compiled program after a few calls; every later call must be a hit that does not decline."""
    fast = framefuse.compile(program)
    with torch.no_grad():
        for _ in range(3):
            fast(*inputs())
        torch.cuda.synchronize()
        state = compiled_function(fast)
        assert not state.reasons and not state.breaks, [str(r) for r in (*state.reasons, *state.breaks)]
        misses, declines = state.dispatch.misses, state.dispatch.declines
        yield fast
        torch.cuda.synchronize()
    assert (state.dispatch.misses, state.dispatch.declines) == (misses, declines)


def close(found: torch.Tensor, expected: torch.Tensor) -> None:
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-4)


def test_a_side_stream(compiled: Any) -> None:
    side = torch.cuda.Stream()
    x, weight = inputs()
    other = torch.randn_like(x)
    torch.cuda.synchronize()
    with torch.cuda.stream(side):
        torch.cuda._sleep(LONG)
        x.copy_(other)
        result = compiled(x, weight)
        done = side.record_event()
    assert not done.query(), "a call waited for the device"
    side.synchronize()
    close(result, program(other, weight))


def test_inside_a_captured_graph(compiled: Any) -> None:
    x, weight = inputs()
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        compiled(x, weight)
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        result = compiled(x, weight)
    for _ in range(3):
        x.normal_()
        graph.replay()
        close(result, program(x, weight))


def test_in_other_threads(compiled: Any) -> None:
    given = [inputs() for _ in range(4)]
    found: dict[int, torch.Tensor] = {}
    torch.cuda.synchronize()

    def work(number: int) -> None:
        with torch.no_grad(), torch.cuda.stream(torch.cuda.Stream()):
            for _ in range(20):
                found[number] = compiled(*given[number])
            torch.cuda.current_stream().synchronize()

    threads = [threading.Thread(target=work, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    for number, (x, weight) in enumerate(given):
        close(found[number], program(x, weight))


def test_memory_is_no_more_than_eagers(compiled: Any) -> None:
    x = torch.randn(4096, 128, device="cuda")
    weight = torch.randn(128, 96, device="cuda")
    fast = framefuse.compile(program)
    for _ in range(3):
        fast(x, weight)
    torch.cuda.synchronize()
    peaks = []
    for function in (program, fast):
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated()
        function(x, weight)
        torch.cuda.synchronize()
        peaks.append(torch.cuda.max_memory_allocated() - before)
        assert torch.cuda.memory_allocated() == before
    assert peaks[1] <= peaks[0], peaks


def test_the_profiler_names_our_kernels(compiled: Any) -> None:
    x, weight = inputs()
    activities = [torch.profiler.ProfilerActivity.CPU, torch.profiler.ProfilerActivity.CUDA]
    with torch.profiler.profile(activities=activities) as profile:
        torch.sin(x)
        compiled(x, weight)
        torch.cuda.synchronize()
    names = {event.key for event in profile.key_averages()}
    if not any("sin" in name and "kernel" in name for name in names):
        pytest.skip("the profiler sees no kernel of torch's either")
    assert any(name.startswith("framefuse_") for name in names), sorted(names)
