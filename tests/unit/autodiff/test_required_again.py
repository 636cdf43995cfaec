"""What a gradient says of itself is eager's: whether it requires grad, to which operands it leads, what it refuses."""

import pytest
import torch
from torch.nn import functional as F

import framefuse
from framefuse.api import compiled_function

TARGET = torch.tensor([1, 0, 3])
PROGRAMS = {
    "reflect": lambda x, w, b: F.pad(x, (1, 2), mode="reflect"),
    "replicate": lambda x, w, b: F.pad(x, (1, 2), mode="replicate"),
    "replicate between": lambda x, w, b: F.pad(x * w, (1, 2), mode="replicate") * 2,
    "circular": lambda x, w, b: F.pad(x, (1, 2), mode="circular"),
    "constant": lambda x, w, b: F.pad(x, (1, 2)),
    "classes": lambda x, w, b: F.nll_loss(x, TARGET),
    "classes between": lambda x, w, b: F.nll_loss(x * w, TARGET, reduction="sum") * 2,
    "cross entropy": lambda x, w, b: F.cross_entropy(x * w, TARGET),
    "hard sigmoid": lambda x, w, b: F.hardsigmoid(x),
    "hard sigmoid between": lambda x, w, b: F.hardsigmoid(x * w) * b,
    "rows": lambda x, w, b: torch.native_layer_norm(x, (4,), w, b, 1e-5)[0],
    "groups": lambda x, w, b: torch.native_group_norm(x, w, b, 3, 4, 1, 2, 1e-5)[0],
    "running statistics": lambda x, w, b: F.batch_norm(x, torch.zeros(4), torch.ones(4), w, b),
    "batch statistics": lambda x, w, b: F.batch_norm(x, None, None, w, b, training=True),
    "sign": lambda x, w, b: torch.copysign(x * w, w.detach()),
}
NORMS = {
    "layer norm": lambda x, w, b: F.layer_norm(x, (4,), w, b),
    "group norm": lambda x, w, b: F.group_norm(x[:, :, None].expand(3, 4, 2), 2, w, b),
    "instance norm": lambda x, w, b: F.instance_norm(x[:, :, None] * torch.arange(1.0, 4), weight=w, bias=b),
    "RMS norm": lambda x, w, b: F.rms_norm(x, (4,), w) + b,
}


def answer(function, seed, wanted=(True, True, True)):
    """The gradients of the operands and whether they require grad, then the gradients of these, or the error."""
    torch.manual_seed(seed)
    values = [torch.randn(shape) for shape in ((3, 4), (4,), (4,))]
    leaves = [value.requires_grad_() for value, asked in zip(values, wanted, strict=True) if asked]
    result = function(*values)
    first = torch.autograd.grad(result, leaves, torch.ones_like(result), create_graph=True, allow_unused=True)
    found = [None if part is None else (part.detach(), part.requires_grad) for part in first]
    asked, error = [part for part in first if part is not None and part.requires_grad], ""
    try:
        found += torch.autograd.grad(asked, leaves, [part.detach() for part in asked], allow_unused=True)
    except RuntimeError as raised:
        error = str(raised)
    return found, error


@pytest.mark.parametrize("name", PROGRAMS)
def test_gradients_say_what_eagers_say(name):
    program = PROGRAMS[name]
    compiled = framefuse.compile(program)
    for seed in range(4):
        (found, mine), (expected, eager) = answer(compiled, seed), answer(program, seed)
        assert mine == eager
        torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-4)
    dispatch = compiled_function(compiled).dispatch
    assert (dispatch.hits, dispatch.declines) == (3, 0)


@pytest.mark.parametrize("wanted", [(0, 1, 1), (0, 1, 0), (0, 0, 1), (1, 0, 1), (1, 1, 0)], ids=str)
@pytest.mark.parametrize("name", NORMS)
def test_gradients_of_norms_with_frozen_operands_say_what_eagers_say(name, wanted):
    compiled = framefuse.compile(NORMS[name])
    for seed in range(3):
        (found, mine), (expected, eager) = answer(compiled, seed, wanted), answer(NORMS[name], seed, wanted)
        assert mine == eager
        torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-4)
    assert compiled_function(compiled).dispatch.hits == 2


@pytest.mark.parametrize("value", [1.0, float("nan"), float("inf"), -2.0])
def test_log_softmax_of_a_number_has_the_gradient_of_eagers(value):
    def program(x):
        return x.log_softmax(0) * 2

    compiled = framefuse.compile(program)
    for shift in (0.0, 0.5, 1.0):
        gradients = []
        for function in (program, compiled):
            x = torch.tensor(value + shift, requires_grad=True)
            (first,) = torch.autograd.grad(function(x), x, create_graph=True)
            gradients.append((first.detach(), first.requires_grad, *torch.autograd.grad(first, x)))
        torch.testing.assert_close(*gradients, equal_nan=True)
