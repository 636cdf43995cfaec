"""A column is compiled as one until its last size is another one; from then on any size has that code."""

import pytest
import torch

import framefuse
from framefuse.api import compiled_function

PROGRAMS = {
    "mean": lambda x: x.mean(0),
    "scan": lambda x: (x * 2).cummin(0).values,
    "pad": lambda x: torch.nn.functional.pad(x, (0, 0, 1, 1)),
}
SHAPES = {"column": (300, 1), "longer": (400, 1), "matrix": (200, 3), "wider": (100, 5), "few": (7, 1)}


@pytest.mark.parametrize("name", PROGRAMS)
def test_a_column_that_becomes_a_matrix_is_compiled_once_more(name):
    compiled = framefuse.compile(PROGRAMS[name])
    state = compiled_function(compiled)
    traces = []
    for shape in SHAPES.values():
        for grad in (False, True, True):
            x, y = (torch.randn(shape, generator=torch.Generator().manual_seed(1)).requires_grad_(grad) for _ in "xy")
            ours, theirs = compiled(x), PROGRAMS[name](y)
            torch.testing.assert_close(ours, theirs)
            if grad:
                ours.square().sum().backward()
                theirs.square().sum().backward()
                torch.testing.assert_close(x.grad, y.grad)
        traces.append(len(state.products))
    assert traces == [2, 2, 4, 4, 4]  # one with gradients, one without


@pytest.mark.parametrize(("shape", "dynamic", "held"), [
    ((300, 1), None, (1,)), ((300, 1, 1), None, (1, 1)), ((1, 300, 1), None, (1,)), ((300, 1), True, ()),
    ((30, 1), None, ()), ((1, 300), None, ()),
])  # fmt: skip
def test_what_is_held(shape, dynamic, held):
    compiled = framefuse.compile(lambda x: x.sin() + 1, dynamic=dynamic)
    for _ in range(3):
        x = torch.randn(shape)
        torch.testing.assert_close(compiled(x), x.sin() + 1)
    (product,) = compiled_function(compiled).products
    (entry,) = product.stages.trace.assumptions.inputs
    assert tuple(size for size in entry.spec.sizes if isinstance(size, int)) == held
