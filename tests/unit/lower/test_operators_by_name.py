"""Operators called by their names in torch.ops.aten take the rules of the functions that they implement."""

import pytest
import torch

import framefuse
from framefuse.api import compiled_function
from framefuse.ir.schedule import RunCall

aten = torch.ops.aten
PLACES = torch.tensor([4, 0, 2, 2, 5])
PROGRAMS = {
    "rows": lambda x: aten.view(aten.index(x, [PLACES]), [1, 5, -1]),
    "slice": lambda x: aten.slice(aten.slice.Tensor(x, 0, 0, 2**63 - 1), -1, 1, -1, 2) * 2,
    "columns": lambda x: aten.index.Tensor(x, [None, PLACES]) * 2,
    "pointwise": lambda x: aten.relu(aten.add(x, x, alpha=2)) - aten.rsub.Scalar(x, 1.5),
    "rounded quotient": lambda x: aten.div.Scalar_mode(x, 2, rounding_mode="floor"),
    "sums": lambda x: aten.sum.dim_IntList(x, [1], True) / aten.amax(x, [0]),
    "in place": lambda x: aten.add_.Tensor(aten.mul.Tensor(x, 2), x),
    "activation": lambda x: aten.gelu(x, approximate="tanh"),
    "activation of three numbers": lambda x: aten.elu(x, 1.7, 1.05) + aten.elu.default(x, 2, 3, 4),
}


@pytest.mark.parametrize("name", PROGRAMS)
def test_an_operator_becomes_a_kernel(name):
    program = PROGRAMS[name]
    compiled = framefuse.compile(program, fullgraph=True)
    for size in (6, 6, 7, 9):
        x = torch.randn(size, 8)
        torch.testing.assert_close(compiled(x), program(x))
    state = compiled_function(compiled)
    assert (len(state.products), state.dispatch.hits, state.dispatch.declines) == (1, 3, 0)
    assert not any(isinstance(item, RunCall) for item in state.products[0].stages.code.schedule.items)


def test_parts_of_a_mask_keep_their_run_time_size():
    def program(x):
        return aten.index(x, [aten.gt(x, 0)]) + 1

    compiled = framefuse.compile(program)
    for _ in range(4):
        x = torch.randn(20)
        torch.testing.assert_close(compiled(x), program(x))


@pytest.mark.parametrize("method", [torch.Tensor.expand_as, torch.Tensor.view_as, torch.Tensor.reshape_as])
def test_a_view_as_of_a_single_number_runs_compiled(method):
    compiled = framefuse.compile(lambda x, y: method(x, y))
    for _ in range(3):
        x = torch.randn(())
        found = compiled(x, torch.randn(()))
        assert found.data_ptr() == x.data_ptr() and torch.equal(found, x)
    dispatch = compiled_function(compiled).dispatch
    assert (dispatch.hits, dispatch.declines) == (2, 0)
