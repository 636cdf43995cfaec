"""What a program asks of accelerators, and sets for them, is part of what its trace holds for."""

import pytest
import torch
import torch.nn.functional as F

import framefuse
from framefuse.capture.facts.questions import QUESTIONS
from framefuse.capture.program import leaves


def breaks(fast):
    return [reason.code for reason in fast.__framefuse__.breaks]


def run(fast, f, times=3):
    for _ in range(times):
        x = torch.randn(4, 4)
        torch.testing.assert_close(fast(x), f(x))
    assert fast.__framefuse__.dispatch.hits >= times - 1 and not fast.__framefuse__.reasons


def test_facts_of_a_process_are_constants():
    def f(x):
        return x + torch.cuda.device_count() if torch.cuda.is_available() or x.is_cuda else x * 2

    fast = framefuse.compile(f)
    run(fast, f)
    assert breaks(fast) == [] and len(fast.__framefuse__.products) == 1


def test_what_changes_a_device_is_done_at_each_call(monkeypatch):
    done = []
    monkeypatch.setattr(torch._C, "_cuda_emptyCache", lambda: done.append(1), raising=False)
    monkeypatch.setattr(torch.cuda.memory, "is_initialized", lambda: True)

    def f(x):
        y = x * 2
        torch.cuda.empty_cache()
        return y + 1

    fast = framefuse.compile(f)
    for number in range(4):
        x = torch.randn(4)
        assert torch.equal(fast(x), x * 2 + 1) and len(done) == number + 1
    assert breaks(fast) == ["native-call"] and fast.__framefuse__.dispatch.hits == 3


@pytest.mark.parametrize("name", ["synchronize", "memory_allocated", "set_device", "stream", "current_stream"])
def test_functions_of_a_device_are_steps(name):
    assert leaves.torch_function_stop(getattr(torch.cuda, name)) == "native-call"
    assert torch.cuda.current_device in QUESTIONS and torch.cuda.is_current_stream_capturing in QUESTIONS
    assert leaves.torch_function_stop(torch.cuda.get_device_capability) is None
    assert leaves.torch_function_stop(torch.profiler.record_function.__enter__) == "native-call"  # while one looks on


def test_settings_of_a_library_hold_for_the_calls_between():
    def f(x):
        torch.backends.cuda.matmul.allow_tf32 = True
        y = x @ x
        torch.backends.cuda.matmul.allow_tf32 = False
        with torch.nn.attention.sdpa_kernel(torch.nn.attention.SDPBackend.MATH):
            q = y[None, None]
            y = F.scaled_dot_product_attention(q, q, q)[0, 0]
        return y + 1

    before = torch.backends.cuda.flash_sdp_enabled()
    fast = framefuse.compile(f)
    run(fast, f)
    assert breaks(fast) == ["native-call"] * 2  # the choice of a kernel for attention is part of the graph
    assert torch.backends.cuda.flash_sdp_enabled() == before and not torch.backends.cuda.matmul.allow_tf32
