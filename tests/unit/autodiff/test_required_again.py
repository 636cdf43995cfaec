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


def answer(function, seed):
    """The gradients of the operands and whether they require grad, then the gradients of these, or the error."""
    torch.manual_seed(seed)
    leaves = [torch.randn(shape, requires_grad=True) for shape in ((3, 4), (4,), (4,))]
    result = function(*leaves)
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
