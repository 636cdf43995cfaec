"""`verify` says what is right and puts back what a program owns; `minify` gives files that run, also of crashes."""

from __future__ import annotations

import importlib
import logging
from pathlib import Path
from weakref import WeakValueDictionary

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

import framefuse
from framefuse.codegen.llvm import pointwise
from framefuse.codegen.llvm.builder import Builder
from framefuse.codegen.llvm.compile import PROCESS
from framefuse.errors import UserError
from framefuse.verification.case import cases
from framefuse.verification.nearness import unlike
from framefuse.verification.program_state import state_of
from framefuse.verification.runs import Program
from framefuse.verification.verify import program_of

PLANT = """
import os
from framefuse.codegen.llvm import pointwise
pointwise.FLOAT["sub"] = lambda *given: os.abort()
os.environ["FRAMEFUSE_CACHE"] = "0"
"""


def _step(x: Tensor, y: Tensor) -> Tensor:
    return ((x.exp() - y).tanh() * 2).sum(-1)


def _pair() -> tuple[Tensor, Tensor]:
    return torch.rand(4, 3), torch.rand(4, 3)


def test_what_is_right_is_said_to_be():
    net = torch.nn.Sequential(torch.nn.Linear(3, 5), torch.nn.GELU(), torch.nn.LayerNorm(5))
    found = framefuse.verify(net, torch.rand(4, 3))
    assert found and found.ok and found.exact
    assert "sizes of 4 are 5" in found.checked and "other values" in found.checked
    assert "as near to the exact results (float64) as eager is" in str(found)


def test_what_the_program_owns_is_put_back():
    first = torch.nn.Linear(3, 5, bias=False)  # whose gradient would be rounding alone, which Adam makes a step of 0.1
    net = torch.nn.Sequential(first, torch.nn.BatchNorm1d(5), torch.nn.Linear(5, 2))
    optimizer = torch.optim.Adam(net.parameters(), lr=0.1)

    def step(x: Tensor, y: Tensor) -> Tensor:
        optimizer.zero_grad()
        loss = F.cross_entropy(net(x), y)
        loss.backward()
        optimizer.step()
        return loss.detach()

    x, y = torch.rand(6, 3), torch.randint(0, 2, (6,))
    step(x, y)
    owned = [*net.parameters(), *net.buffers()]
    before = [(tensor, tensor.data_ptr(), tensor.detach().clone(), tensor.grad) for tensor in owned]
    grads = [grad.clone() if grad is not None else None for *_, grad in before]
    moments = {key: value.clone() for key, value in optimizer.state[net[0].weight].items()}
    seed = torch.get_rng_state()
    assert framefuse.verify(step, x, y).ok
    assert torch.equal(seed, torch.get_rng_state())
    for (tensor, address, value, _), grad in zip(before, grads, strict=True):
        assert tensor.data_ptr() == address and torch.equal(tensor, value)
        assert (tensor.grad is None) == (grad is None) and (grad is None or torch.equal(tensor.grad, grad))
    assert all(torch.equal(optimizer.state[net[0].weight][key], value) for key, value in moments.items())


def test_a_step_whose_loss_it_returns_is_compared_after_its_first():
    net = torch.nn.Linear(3, 2)
    optimizer = torch.optim.Adam(net.parameters(), lr=0.1)
    seen: list[float] = []

    def step(x: Tensor) -> Tensor:
        optimizer.zero_grad()
        loss = net(x).square().mean()
        loss.backward()
        optimizer.step()
        seen.append(loss.item())
        return loss

    found = framefuse.verify(step, torch.rand(6, 3))
    assert found.ok and found.exact and found.compiled, str(found)
    assert not seen and not optimizer.state and net.weight.grad is None


def test_it_says_where_nothing_runs_compiled():
    found = framefuse.verify(lambda x: eval("x + 1"), torch.rand(3))
    assert found.ok and not found.compiled and "nothing of it runs compiled" in str(found)


def test_numbers_and_lists_that_a_program_writes_are_put_back():
    class Counter:
        def __init__(self) -> None:
            self.calls, self.means = 0, [0.5]

        def __call__(self, x: Tensor) -> Tensor:
            self.calls += 1
            self.means.append(x.mean().item())
            return x.sin() * self.calls

    counter = Counter()
    assert framefuse.verify(counter, torch.rand(6, 3)).ok
    assert counter.calls == 0 and counter.means == [0.5]


def test_arguments_are_not_written():
    def write(x: Tensor) -> Tensor:
        x.mul_(2)
        return x.sum()

    x = torch.ones(4)
    assert framefuse.verify(write, x).ok
    assert torch.equal(x, torch.ones(4))


def test_what_eager_refuses_is_the_users():
    with pytest.raises(UserError, match="fails under eager"):
        framefuse.verify(_step, torch.rand(3), torch.rand(4))
    with pytest.raises(UserError, match="not callable"):
        framefuse.verify(3)


def test_the_file_is_a_test_that_fails_while_the_fault_is_there(monkeypatch, tmp_path: Path):
    file = tmp_path / "test_small.py"
    with monkeypatch.context() as patch:
        patch.setitem(pointwise.FLOAT, "sub", Builder.add)
        found = framefuse.minify(_step, *_pair(), path=file)
        assert found.call == "sub" and "_step" in found.line and found.path == file
        space: dict[str, object] = {}
        exec(compile(file.read_text(), str(file), "exec"), space)
        with pytest.raises(AssertionError, match="stage: codegen"):
            space["test_it_is_as_near_as_eager"]()
    monkeypatch.setattr(PROCESS, "_loaded", WeakValueDictionary())
    space["test_it_is_as_near_as_eager"]()


def test_a_fault_of_the_compiler_is_found(monkeypatch):
    def fails(*given: object) -> None:
        raise KeyError("planted")

    monkeypatch.setitem(pointwise.FLOAT, "sub", fails)
    found = framefuse.verify(_step, *_pair())
    assert (found.where, found.stage, found.call) == ("error", "codegen", "sub")
    assert "planted" in found.how


def test_programs_that_end_their_process_or_hang(monkeypatch):
    room = importlib.import_module("framefuse.verification.minify")
    _, program, options = program_of(lambda x, y: x - y, _pair(), {}, None)
    (case,) = cases(program, options)
    script = room.SCRIPT
    monkeypatch.setattr(room, "SCRIPT", PLANT + script)
    assert room._apart(case, 120.0) == "crash"
    monkeypatch.setattr(room, "SCRIPT", "import time\nprint(flush=True)\ntime.sleep(60)")
    assert room._apart(case, 1.0) == "hang"


def test_a_hang_is_given_what_compiling_mostly_takes_and_tried_again(monkeypatch):
    room = importlib.import_module("framefuse.verification.minify")
    waited = []

    def apart(case, seconds, quick):
        waited.append(room._patience([b"0.001", b"0.02"], case, seconds, quick))
        return "hang" if ".sub(" in case.body[0] else ""

    monkeypatch.setattr(room, "_apart", apart)
    monkeypatch.setattr(room, "cases", None)  # which compiles: that would hang in this process
    found = framefuse.minify(_step, *_pair(), kind="hang")
    assert found.call == "sub" and len(found.case.graph.nodes) == 4
    assert set(waited[:-1]) == {3.0} and waited[-1] == 9.0
    assert room._patience([b"2", b"0.02"], found.case, 30.0, 1) == 40.0  # eager's time counts
    assert room._patience([], found.case, 30.0, 0) == 30.0


def test_what_is_given_too_little_time_is_tried_in_full(monkeypatch):
    room = importlib.import_module("framefuse.verification.minify")
    monkeypatch.setattr(room, "cases", None)
    tried = []

    def apart(case, seconds, quick):
        tried.append(quick)
        return "hang" if quick == 1 or (not quick and ".sub(" in case.body[0]) else ""

    monkeypatch.setattr(room, "_apart", apart)
    assert framefuse.minify(_step, *_pair(), kind="hang").call == "sub"
    assert tried[0] == 1 and 3 in tried and tried[-1] == 0


def test_a_crash_is_made_smaller(monkeypatch):
    room = importlib.import_module("framefuse.verification.minify")
    monkeypatch.setattr(room, "_apart", lambda case, seconds, quick: "crash" if ".sub(" in case.body[0] else "")
    monkeypatch.setattr(room, "cases", None)  # which compiles: that would end this process
    found = framefuse.minify(_step, *_pair(), kind="crash")
    assert found.call == "sub" and len(found.case.graph.nodes) == 4 and "crash" in str(found)


mean, depth = 3.0, 2.0  # the first has the name of a method alone


def test_variables_are_those_that_code_reads_and_not_the_names_of_attributes():
    found = framefuse.verify(lambda x: x.mean(0) * (lambda: depth)(), torch.rand(3, 4))
    assert "depth was 2.0, is 3.0" in found.checked and not any("mean" in text for text in found.checked)


def test_nothing_to_make_smaller():
    with pytest.raises(UserError, match="no stretch of _step shows this by itself"):
        framefuse.minify(_step, *_pair())
    with pytest.raises(UserError, match="Choose one of: wrong, crash, hang, slow"):
        framefuse.minify(_step, *_pair(), kind="blue")


def test_each_new_trace_is_compared(monkeypatch, caplog):
    right = framefuse.compile(_step, options={"verify": True})
    with caplog.at_level(logging.WARNING, "framefuse"):
        right(*_pair())
    assert not caplog.records
    monkeypatch.setitem(pointwise.FLOAT, "sub", Builder.add)
    wrong = framefuse.compile(lambda x, y: (x.exp() - y).cos(), options={"verify": True})
    with caplog.at_level(logging.WARNING, "framefuse"):
        wrong(*_pair())
    assert "stage: codegen" in caplog.text and "first call that differs: sub" in caplog.text


def test_a_result_that_cancels_is_held_to_the_size_of_its_terms():
    eager, mine = torch.tensor([3e-9]), torch.tensor([2e-8])
    assert unlike(mine, eager, torch.tensor([1e-10], dtype=torch.float64))
    assert not unlike(mine, eager, torch.tensor([1e-10], dtype=torch.float64), nudged=torch.tensor([9e-9]))
    assert unlike(torch.tensor([3.0]), torch.tensor([2.0]), None, nudged=torch.tensor([3.0])), "a step tells nothing"


def test_runs_beside_eagers_are_those_that_the_comparison_needs(monkeypatch):
    asked = []
    monkeypatch.setattr(Program, "_otherwise", lambda program, change: asked.append(change.__name__))
    net = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.ReLU())
    assert framefuse.verify(net, torch.randn(3, 4)).ok
    assert "nudged" not in asked, "nothing differs"


def test_what_no_run_writes_is_kept_once():
    net = torch.nn.BatchNorm1d(4)
    state = state_of(net, ())
    program = Program(net, (torch.randn(3, 4),), {}, state, True)
    first, second = program.run(net), program.run(net)
    places = [[run.state[name][0].data_ptr() for run in (first, second)] for name in ("weight", "running_mean")]
    assert places[0][0] == places[0][1] and places[1][0] != places[1][1]
    assert net.running_mean.eq(0).all() and first.state["running_mean"][0].ne(0).any()
