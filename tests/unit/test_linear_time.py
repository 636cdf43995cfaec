"""A program that is twice as long compiles with twice the work, counted in calls of our own functions."""

import sys
from collections import Counter
from unittest import mock

import pytest
import torch

import framefuse
from framefuse.ir import costs
from framefuse.runtime import function

MEETINGS = 60  # few enough that places are chosen row by row in both lengths
FEW = 2000  # calls of a function that say nothing about how it grows
STEEP = 3.2  # kernels come in whole numbers, so that 2 may be 3; what looks at pairs is called 4 times as often


def recurrent(steps):
    weight = torch.nn.Parameter(torch.randn(4, 4) / 4)

    def program(x):
        h = x
        for _ in range(steps):
            h = torch.tanh(h @ weight + x)
        return h.sum()

    return program, (3, 4)


def sequence(steps):
    def program(x):
        h, kept = x[:, 0], []
        for step in range(steps):
            h = torch.tanh(h * 0.5 + x[:, step])
            kept.append(h)
        return torch.stack(kept).sum()

    return program, (3, steps, 4)


def chain(steps):
    def program(x):
        for _ in range(steps):
            x = torch.sin(x) * 0.9 + 0.1
        return x.sum()

    return program, (3, 4)


def work(make, steps):
    """How often each function is called until forward and backward are compiled."""
    program, sizes = make(steps)
    compiled, found = framefuse.compile(program), Counter()

    def count(frame, event, _):
        code = frame.f_code
        if event == "call" and "framefuse" in code.co_filename:
            found[f"{code.co_filename.rpartition('framefuse/')[2]} {code.co_qualname}"] += 1

    for _ in range(2):  # the second backward is the compiled one
        x = torch.randn(sizes, requires_grad=True)
        sys.setprofile(count)
        try:
            compiled(x).backward()
        finally:
            sys.setprofile(None)
    y = torch.randn(sizes, requires_grad=True)
    z = y.detach().clone().requires_grad_()
    with framefuse.assert_compiles(0):
        compiled(y).backward()
    program(z).backward()
    torch.testing.assert_close(y.grad, z.grad)
    return found


# Both lengths of the chain are more than one kernel.
@pytest.mark.parametrize(
    ("make", "steps"), [(recurrent, 60), (sequence, 60), (chain, 160)], ids=["recurrent", "sequence", "chain"]
)
def test_work_grows_with_the_length(make, steps):
    with mock.patch.object(costs, "MEETINGS", MEETINGS):
        work(make, 3)  # what happens once
        short, long = work(make, steps), work(make, 2 * steps)
    steep = {name: (short[name], count) for name, count in long.items() if count > max(FEW, STEEP * short[name])}
    assert not steep
    assert sum(long.values()) < 2.3 * sum(short.values())


def steps_of_training(layers):
    """How many lines of each function run until a step of training with ``layers`` equal layers is compiled."""
    model = torch.nn.Sequential(*(torch.nn.Linear(4, 4) for _ in range(layers)))
    optimizer = torch.optim.Adam(model.parameters())

    @framefuse.compile
    def step(x):
        optimizer.zero_grad()
        loss = model(x).square().mean()
        loss.backward()
        optimizer.step()
        return loss

    found = Counter()

    def line(frame, event, _):
        found[frame.f_code] += 1
        return line

    def call(frame, event, _):
        return line if "framefuse" in frame.f_code.co_filename else None

    def from_here(calls, place):
        sys.settrace(call)  # a call that is traced when it begins runs eagerly
        return False

    for _ in range(3):  # the optimizer makes its state, its step is recorded, backward is compiled
        try:
            with mock.patch.object(function, "holds_back", from_here):
                step(torch.randn(3, 4))
        finally:
            sys.settrace(None)
    with framefuse.assert_compiles(0):
        step(torch.randn(3, 4))
    names = {code: f"{code.co_filename.rpartition('framefuse/')[2]} {code.co_qualname}" for code in found}
    return Counter({names[code]: lines for code, lines in found.items()})


def test_a_step_of_training_is_compiled_in_lines_linear_in_its_parameters():
    steps_of_training(2)  # what happens once
    short, long = steps_of_training(12), steps_of_training(24)
    for found in (short, long):  # a kernel is compiled once a process, in whichever of these steps needs it first
        for name in [name for name in found if name.startswith("codegen/")]:
            del found[name]
    steep = {name: (short[name], count) for name, count in long.items() if count > max(FEW, 2.6 * short[name])}
    assert not steep
    assert sum(long.values()) < 2.2 * sum(short.values())
