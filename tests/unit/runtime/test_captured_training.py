"""Training under captured graphs: what a forward keeps for its backward is not overwritten while it may be asked for.

The device is a stand-in on the CPU; tests/gpu/test_graphs.py asks the same of a GPU.
"""

import copy
import gc

import pytest
import torch
import torch.nn.functional as F
from tests.unit.runtime.graph_machine import on_cpu

import framefuse
from framefuse.api import compiled_function
from framefuse.runtime import captures

MODE = "reduce-overhead"
made = []  # every tensor of a test lives to its end, so that no two of them lie at one address


def randn(*sizes, **options):
    made.append(torch.randn(*sizes, **options))
    return made[-1]


@pytest.fixture
def machine():
    with on_cpu() as machine:
        yield machine
    made.clear()


def same(found, expected):
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-5)


class Block(torch.nn.Module):
    """What saves inputs, outputs and values of its own, with dropout and running statistics."""

    def __init__(self):
        super().__init__()
        self.first, self.second = torch.nn.Linear(8, 16), torch.nn.Linear(16, 8)
        self.norm, self.batch, self.drop = torch.nn.LayerNorm(8), torch.nn.BatchNorm1d(16), torch.nn.Dropout(0.3)

    def forward(self, x):
        y = self.drop(torch.tanh(self.batch(F.gelu(self.first(self.norm(x))))))
        return torch.softmax(x + self.second(y), -1)


def pair():
    torch.manual_seed(0)
    eager = Block()
    model = copy.deepcopy(eager)
    return eager, model, framefuse.compile(model, mode=MODE)


def regions(fast):
    """The regions of forwards, and those of their backwards."""
    forwards = [product.stages.plan.region for product in compiled_function(fast).products]
    derivatives = [d for product in compiled_function(fast).products for d in product.stages.derivatives]
    return forwards, [case.stages.plan.region for d in derivatives for case in d.cases]


def count(found):
    return sum(0 if isinstance(region, str) else region.captures.count for region in found)


def same_state(model, eager):
    for ours, theirs in zip(model.parameters(), eager.parameters(), strict=True):
        same(ours.grad, theirs.grad)
    for ours, theirs in zip(model.buffers(), eager.buffers(), strict=True):
        same(ours, theirs)


def step(call, x, seed):
    torch.manual_seed(seed)
    loss = (call(x) * x).sum()
    loss.backward()
    return loss.detach()


def test_steps(machine):
    eager, model, fast = pair()
    optimizers = [torch.optim.SGD(module.parameters(), lr=0.1) for module in (model, eager)]
    kept = []
    for number in range(10):
        x = randn(5, 8)
        for optimizer in optimizers:
            optimizer.zero_grad()
        kept.append((step(fast, x, number), step(eager, x, number)))
        same_state(model, eager)
        for optimizer in optimizers:
            optimizer.step()
        for found, expected in kept:
            same(found, expected)
    forwards, backwards = regions(fast)
    assert count(forwards) == 1 and count(backwards) >= 1, (forwards, backwards)
    assert machine.replays >= 12
    said = str(framefuse.explain(fast))
    assert "backward replayed  " in said and "CUDA graph" in said


def test_gradients_accumulate(machine):
    eager, model, fast = pair()
    for number in range(8):
        x = randn(5, 8)
        same(step(fast, x, number), step(eager, x, number))
        same_state(model, eager)
    assert machine.replays >= 8


def test_two_forwards_before_a_backward(machine):
    eager, model, fast = pair()
    for number in range(4):
        x = randn(5, 8)
        step(fast, x, number), step(eager, x, number)
    replays = machine.replays
    for number in range(5):
        x, y = randn(5, 8), randn(5, 8)
        for call, module in ((fast, model), (eager, eager)):
            module.zero_grad()
            torch.manual_seed(number)
            first, second = call(x), call(y)
            (first * second * x).sum().backward()
        same_state(model, eager)
        for call, module in ((fast, model), (eager, eager)):  # the earlier one first, then the later one
            module.zero_grad()
            torch.manual_seed(number)
            losses = [(call(x) * y).sum(), (call(y) * x).sum(), (call(x + y) * x).sum()]
            for loss in losses:
                loss.backward()
        same_state(model, eager)
    assert machine.replays > replays


def test_a_graph_that_is_kept(machine):
    eager, model, fast = pair()
    for number in range(8):
        x = randn(5, 8)
        for call, module in ((fast, model), (eager, eager)):
            module.zero_grad()
            torch.manual_seed(number)
            loss = (call(x) * x).sum()
            loss.backward(retain_graph=True)
            call(x * 2)  # must not touch what the first one keeps
            loss.backward()
            del loss
        same_state(model, eager)
    assert machine.replays >= 4


def test_forwards_without_a_backward(machine):
    eager, model, fast = pair()
    kept = []
    for number in range(8):
        x = randn(5, 8)
        results = []
        for call in (fast, eager):
            torch.manual_seed(number)
            results.append(call(x))
        kept.append((*results, x))
        if number % 2:
            kept.pop()
    for found, expected, x in kept:
        same(found, expected)
        for result, module in ((found, model), (expected, eager)):
            module.zero_grad()
            (result * x).sum().backward()
        for ours, theirs in zip(model.parameters(), eager.parameters(), strict=True):
            same(ours.grad, theirs.grad)
    assert machine.replays >= 1


def test_gradients_of_gradients(machine):
    def f(x, w):
        return torch.tanh(torch.softmax(x @ w, -1) @ w.t()).sum()

    fast = framefuse.compile(f, mode=MODE)
    w = randn(8, 8, requires_grad=True)
    for _ in range(8):
        x = randn(5, 8, requires_grad=True)
        found = []
        for call in (fast, f):
            (first,) = torch.autograd.grad(call(x, w), x, create_graph=True)
            second = torch.autograd.grad((first * x).sum(), (x, w))
            found.append((first.detach(), second))
        same(*found)
    assert machine.replays >= 4


def test_gradients_are_safe_to_keep(machine):
    def f(x, w):
        return torch.tanh(torch.softmax(x @ w, -1) @ w.t())

    fast = framefuse.compile(f, mode=MODE)
    w, kept = randn(8, 8, requires_grad=True), []
    for _ in range(8):
        x = randn(5, 8, requires_grad=True)
        results = [call(x, w) for call in (fast, f)]
        kept.append([(y.detach(), torch.autograd.grad(y.square().sum(), (x, w))) for y in results])
        for found, expected in kept:
            same(found, expected)
    assert machine.replays >= 8


def test_sizes_that_change(machine):
    eager, model, fast = pair()
    for number in range(4):
        for rows in (4, 7, 5):
            x = randn(rows, 8)
            for module in (model, eager):
                module.zero_grad()
            same(step(fast, x, number), step(eager, x, number))
            same_state(model, eager)
    assert machine.replays >= 6


def test_hooks_of_saved_tensors_see_eagers(machine):
    eager, model, fast = pair()
    for number in range(7):
        x = randn(5, 8)
        counts = []
        for call, module in ((fast, model), (eager, eager)):
            module.zero_grad()
            packed = []
            with torch.autograd.graph.saved_tensors_hooks(lambda t: packed.append(t) or t, lambda t: t):  # noqa: B023
                step(call, x, number) if number % 3 == 2 else None
            if number % 3 != 2:
                step(call, x, number)
            counts.append(len(packed))
        assert counts[0] == counts[1]
        same_state(model, eager)
    assert machine.replays >= 2


def test_what_the_device_is_busy_with_is_not_captured(machine, monkeypatch):
    monkeypatch.setattr(captures, "HEAVY", 0)
    machine.clock = (1e-3, 2e-3)
    eager, model, fast = pair()
    for number in range(6):
        x = randn(5, 8)
        for module in (model, eager):
            module.zero_grad()
        same(step(fast, x, number), step(eager, x, number))
        same_state(model, eager)
    assert machine.captures == 0 and machine.clocks == 2
    assert "the device works for 2.00 ms on what is launched in 1.00 ms" in str(framefuse.explain(fast))


def test_calls_that_torch_differentiates_are_not_captured(machine):
    """Each run of them makes its own objects of autograd."""
    torch.manual_seed(0)
    eager = torch.nn.LSTM(8, 8, batch_first=True)
    model = copy.deepcopy(eager)
    fast = framefuse.compile(model, mode=MODE)
    for _ in range(6):
        x = randn(3, 4, 8)
        for call, module in ((fast, model), (eager, eager)):
            module.zero_grad()
            (call(x)[0] * x).sum().backward()
        same_state(model, eager)
    forwards, _ = regions(fast)
    assert any(isinstance(region, str) and "differentiated by torch" in region for region in forwards), forwards


def test_without_room_no_run_keeps_what_it_could_let_go_of(machine):
    machine.free = 100
    eager, model, fast = pair()
    for number in range(6):
        x = randn(2048, 8)
        for module in (model, eager):
            module.zero_grad()
        same(step(fast, x, number), step(eager, x, number))
        same_state(model, eager)
    assert any(region.captures.work.frees for region in regions(fast)[1])


def test_graphs_end_with_their_function(machine):
    _, _, fast = pair()
    for number in range(6):
        step(fast, randn(5, 8), number)
    assert len(machine.graphs) >= 2
    framefuse.reset()
    gc.collect()
    assert not len(machine.graphs)
