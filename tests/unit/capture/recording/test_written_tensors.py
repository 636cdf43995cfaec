"""Tensors that a call writes, through views, ``data``, ``grad`` or ``out``, are left as eager leaves them: contents,
versions, flags.
"""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from tests.unit.capture.effects import same_as_eager

import framefuse
from framefuse.api import compiled_function

PROGRAMS: dict[str, tuple[Callable[..., Any], int]] = {}
STEPS: dict[str, Callable[..., Any]] = {}


def program(function: Any) -> Any:
    """One trace serves all calls."""
    PROGRAMS[function.__name__] = (function, 1)
    return function


def step(function: Any) -> Any:
    """One operation is a step of its own: a trace before it and one after it."""
    STEPS[function.__name__] = function
    return function


@program
def input_in_place():
    def f(x):
        x.add_(1)
        x.mul_(2)
        return x * 2

    return f, lambda: None


@program
def view_of_an_input():
    def f(x):
        x[1:].add_(1)
        x[:1] -= 1
        return x * 2

    return f, lambda: None


@program
def view_of_an_input_returned():
    def f(x):
        y = x[1:]
        y.mul_(2)
        return y, x.sum()

    return f, lambda: None


@program
def cache_at_a_position():
    k, position = torch.zeros(2, 8, 4), [0]

    def f(x):
        at = position[0]
        k[:, at : at + 1] = x.sum()
        k.narrow(1, 0, 1).copy_(x[0])
        k[1, 2:] += 1
        position[0] = at + 1
        return k.sum() + x

    return f, lambda: (k, position)


@program
def cache_by_index():
    k = torch.zeros(1, 2, 8, 4)

    def f(x):
        k.index_copy_(2, torch.tensor([3]), torch.ones(1, 2, 1, 4) * x.sum())
        return k * 1

    return f, lambda: k


@program
def copied_onto_itself():
    def f(x):
        before = x.clone()
        x.copy_(x.flip(0))
        return before + x

    return f, lambda: None


@program
def detached():
    def f(x):
        y = x.detach()
        y.add_(1)
        return x * 2

    return f, lambda: None


@program
def out_argument():
    out = torch.empty(3)

    def f(x):
        torch.add(x[:3], 1, out=out)
        return out * 2

    return f, lambda: out


@program
def gradient_read():
    weight = torch.ones(3)
    weight.grad = torch.ones(3)

    def f(x):
        weight.grad.add_(x.sum())
        return weight.grad * 2 if weight.grad is not None else x

    return f, lambda: (weight, weight.grad)


@program
def gradient_written():
    weight = torch.ones(3, requires_grad=True)

    def f(x):
        weight.grad = torch.ones(3) * x.sum()
        return weight.grad + 1

    return f, lambda: weight


@program
def gradient_dropped():
    weight = torch.ones(3, requires_grad=True)
    weight.grad = torch.ones(3)

    def f(x):
        weight.grad = None
        return x + 1 if weight.grad is None else x

    return f, lambda: weight


@program
def descent():
    weight = torch.nn.Parameter(torch.ones(3))
    weight.grad = torch.ones(3)

    def f(x):
        weight.add_(weight.grad, alpha=-0.1)
        return x + 1

    return f, lambda: weight


@program
def statistics():
    norm = torch.nn.BatchNorm1d(3)

    def f(x):
        return norm(x[:3].reshape(1, 3) * torch.arange(6.0).reshape(2, 3))

    return f, lambda: (norm.running_mean, norm.running_var, norm.num_batches_tracked)


@program
def buffers():
    class Net(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.register_buffer("count", torch.zeros(()))
            self.register_buffer("mean", torch.zeros(3))

        def forward(self, x):
            self.count += 1
            self.mean = self.mean * 0.9 + x[:3]
            return x * self.count

    net = Net()
    return net.forward, lambda: (net.count, net.mean)


@step
def data_assigned():
    weight = torch.zeros(3)

    def f(x):
        y = x.sum() * weight
        weight.data = torch.ones(3) * 2
        return y + weight

    return f, lambda: weight


@step
def version_read():
    def f(x):
        x.add_(1)
        return x * 2, x._version

    return f, lambda: None


@step
def flag_set_on_a_result():
    def f(x):
        y = x * 2
        y.requires_grad_()
        return y

    return f, lambda: None


@pytest.mark.parametrize("name", list(PROGRAMS))
def test_program(name: str) -> None:
    make, traces = PROGRAMS[name]
    with torch.no_grad():
        same_as_eager(make, traces=traces)


@pytest.mark.parametrize("name", list(STEPS))
def test_step(name: str) -> None:
    with torch.no_grad():
        same_as_eager(STEPS[name], traces=2, recorded=1)


@pytest.mark.parametrize("leak", [torch.set_grad_enabled, torch._C._set_grad_enabled])
def test_gradient_mode_leaks_out(leak: Any) -> None:
    def f(x):
        leak(False)
        return x * 2

    fast = framefuse.compile(f)
    for call in range(4):
        with torch.enable_grad():
            assert torch.equal(fast(torch.full((3,), float(call))), torch.full((3,), 2.0 * call))
            assert not torch.is_grad_enabled()
    state = compiled_function(fast)
    assert state is not None and state.eager_calls == 0 and state.dispatch.hits == 3
