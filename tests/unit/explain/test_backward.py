"""Explaining tells what backward passes run, and why one has no compiled code."""

import pytest
import torch

import framefuse
from framefuse.driver import backward, faults, passes
from framefuse.errors import CompilerBug
from framefuse.runtime.derivative import LIMIT
from framefuse.runtime.function import compiled_function


def f(x, w):
    return (torch.tanh(x) * w).sum()


def inputs(seed):
    generator = torch.Generator().manual_seed(seed)
    return [torch.randn(4, 5, generator=generator, requires_grad=True) for _ in range(2)]


def gradients(function, seed):
    x, w = inputs(seed)
    return torch.autograd.grad(function(x, w), (x, w))


def test_the_kernels_of_backward_are_counted():
    compiled = framefuse.compile(f)
    for seed in range(3):
        gradients(compiled, seed)
    (graph,) = framefuse.explain(compiled).graphs
    assert [item.kind for work in graph.backward for item in work] == ["kernel"] and not graph.uncompiled
    assert graph.seconds["backward"] > 0
    text = str(framefuse.explain(compiled))
    (line,) = (line for line in text.splitlines() if line.startswith("  compile"))
    assert "backward -> 1 kernel\n" in text and ", backward " in line


@pytest.mark.parametrize("fault", ["raised", "guards"])
def test_a_backward_without_compiled_code_gives_eagers_gradients_and_says_so(monkeypatch, fault):
    tries = []
    recorded = backward._Cases.recorded

    def broken(cases, backward, values, again):
        tries.append(values)
        if fault == "raised":
            raise RuntimeError("no trace of it")
        return recorded(cases, backward, (values[0], values[1], values[2], values[3] + 4), again)

    monkeypatch.setattr(backward._Cases, "recorded", broken)
    compiled = framefuse.compile(f, options={"check": False})
    for seed in range(LIMIT + 3):
        for found, expected in zip(gradients(compiled, seed), gradients(f, seed), strict=True):
            torch.testing.assert_close(found, expected)
    assert len(tries) == 1  # a fault, once met, is not tried again
    (graph,) = framefuse.explain(compiled).graphs
    assert not graph.backward
    assert {reason.code: count for reason, count in graph.uncompiled} == {"fault": 1, "limit": LIMIT + 1}
    assert "backward call by call   [fault] x1: framefuse itself failed: " in str(framefuse.explain(compiled))
    assert compiled_function(compiled).dispatch.hits == LIMIT + 2


def test_a_fault_in_a_backward_is_reported_with_its_stages(monkeypatch, tmp_path):
    monkeypatch.setattr(faults, "_reported", {})
    compiled = framefuse.compile(f, options={"check": False, "report": str(tmp_path)})
    gradients(compiled, 0)
    monkeypatch.setattr(passes, "assemble", lambda *parts: {}["broken"])
    gradients(compiled, 1)
    (folder,) = (path for path in tmp_path.iterdir() if path.name.startswith("fault") and path.is_dir())
    assert "code\n" in (folder / "stages.txt").read_text()


def test_a_backward_that_does_not_hold_for_its_own_values_is_a_fault(monkeypatch):
    recorded = backward._Cases.recorded

    def broken(cases, backward, values, again):
        return recorded(cases, backward, (values[0], values[1], values[2], values[3] + 4), again)

    monkeypatch.setattr(backward._Cases, "recorded", broken)
    compiled = framefuse.compile(f, options={"check": True})
    gradients(compiled, 0)
    with pytest.raises(CompilerBug, match="does not hold for its own values"):
        gradients(compiled, 1)
