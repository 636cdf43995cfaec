"""A floored quotient has no derivative under eager: compiled code gives it, and says so to who asks."""

import pytest
import torch

import framefuse
from framefuse.api import compiled_function

PROGRAMS = {
    "by tensor": lambda a, b: a // b,
    "by number": lambda a, b: (a // 2) * b,
    "of number": lambda a, b: 2 // a + b,
    "in place": lambda a, b: (a * 1).floor_divide_(b) * a,
    "not asked": lambda a, b: a * b + (a // b).detach(),
    "of a constant": lambda a, b: a * (b.detach() // 2),
    "rounded": lambda a, b: torch.div(a, b, rounding_mode="floor") + a * b,
}


def answer(function, seed):
    torch.manual_seed(seed)
    a, b = (torch.randn(5, requires_grad=True) for _ in range(2))
    result = function(a, b)
    try:
        result.sum().backward()
        error = None
    except RuntimeError as raised:
        error = str(raised)
    return result.detach().tolist(), result.requires_grad, error, a.grad, b.grad


@pytest.mark.parametrize("name", PROGRAMS)
def test_floor_divide(name):
    program = PROGRAMS[name]
    compiled = framefuse.compile(program, fullgraph=True)
    asked = name not in ("not asked", "of a constant", "rounded")
    for seed in range(4):
        *found, a, b = answer(compiled, seed)
        *expected, c, d = answer(program, seed)
        assert found == expected
        torch.testing.assert_close([g for g in (a, b) if g is not None], [g for g in (c, d) if g is not None])
        assert ("derivative for aten::floor_divide" in expected[2]) if asked else expected[2] is None
    dispatch = compiled_function(compiled).dispatch
    assert (dispatch.hits, dispatch.declines) == (3, 0)
