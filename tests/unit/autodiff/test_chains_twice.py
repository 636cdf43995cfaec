"""Second gradients of compiled functions in which one library call rests on another are eager's."""

import pytest
import torch

import framefuse
from framefuse.api import compiled_function

solve = torch.linalg.solve
EYE = 3 * torch.eye(3, dtype=torch.float64)
PROGRAMS = {
    "complex product": (torch.complex128, lambda a, b: (a * b) * a),
    "complex sum": (torch.complex128, lambda a, b: (a + b) * b * a),
    "complex matrices": (torch.complex128, lambda a, b: a @ b.mT @ a),
    "complex solution": (torch.complex128, lambda a, b: solve(a * 2 + EYE, b) * b),
    "complex inverse": (torch.complex128, lambda a, b: torch.linalg.pinv(a * 2) * b),
    "real solutions": (torch.float64, lambda a, b: solve(solve(a + EYE, b) + EYE, b)),
    "real inverses": (torch.float64, lambda a, b: torch.linalg.inv(torch.linalg.inv(a + EYE) @ b + EYE)),
    "real and fused": (torch.float64, lambda a, b: solve((a * b).sin() + EYE, a.tanh() * b).cos()),
}


def answer(function, dtype, seed):
    torch.manual_seed(seed)
    a, b, tangent, *directions = (torch.randn(3, 3, dtype=dtype) for _ in range(5))
    a.requires_grad_()
    b.requires_grad_()
    result = function(a, b)
    first = torch.autograd.grad(result, (a, b), tangent, create_graph=True)
    second = torch.autograd.grad(first, (a, b), directions, create_graph=True)
    third = torch.autograd.grad([part.abs().square().sum() for part in second], (a, b))
    return [result, *first, *second, *third]


@pytest.mark.parametrize("name", PROGRAMS)
def test_a_chain_of_calls(name):
    dtype, program = PROGRAMS[name]
    compiled = framefuse.compile(program)
    for seed in range(4):
        found, expected = answer(compiled, dtype, seed), answer(program, dtype, seed)
        for mine, eager in zip(found, expected, strict=True):
            torch.testing.assert_close(mine, eager, rtol=1e-7, atol=1e-9 * max(1.0, eager.detach().abs().max().item()))
    dispatch = compiled_function(compiled).dispatch
    assert (dispatch.hits, dispatch.declines) == (3, 0)
