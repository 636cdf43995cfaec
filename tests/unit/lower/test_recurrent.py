"""The cells of recurrent networks give eager's states and gradients, and fuse as what they are made of."""

import copy

import pytest
import torch
from torch import nn

import framefuse
from framefuse.ir.schedule import RunCall
from framefuse.runtime.function import compiled_function

CELLS = {
    "gru": nn.GRUCell,
    "lstm": nn.LSTMCell,
    "tanh": nn.RNNCell,
    "relu": lambda *sizes, **named: nn.RNNCell(*sizes, nonlinearity="relu", **named),
}


class Unrolled(nn.Module):
    """Three steps; a cell with two states gives the sum of them."""

    def __init__(self, cell):
        super().__init__()
        self.cell = cell

    def forward(self, x, h):
        state = (h, h * 2) if isinstance(self.cell, nn.LSTMCell) else h
        for step in range(3):
            state = self.cell(x[step], state)
        return state[0] + state[1] if isinstance(state, tuple) else state


def outcome(model, x, h):
    x, h = x.clone().requires_grad_(), h.clone().requires_grad_()
    model.zero_grad()
    result = model(x, h)
    result.square().sum().backward()
    return [result.detach(), x.grad, h.grad, *(p.grad.clone() for p in model.parameters())]


def compare(cell, lead, dtype=torch.float32, tolerance=1e-5):
    """Runs three batches by both; gives the compiled function."""
    model = Unrolled(cell.to(dtype))
    other = copy.deepcopy(model)
    fast = framefuse.compile(model)

    def batch():
        return torch.randn(3, *lead, 5, dtype=dtype), torch.randn(*lead, 4, dtype=dtype)

    outcome(fast, *batch()), outcome(fast, *batch())  # a trace; its backward
    with framefuse.assert_compiles(0):
        x, h = batch()
        found, expected = outcome(fast, x, h), outcome(other, x, h)
    torch.testing.assert_close(found, expected, rtol=tolerance, atol=tolerance)
    return fast


def calls(fast):
    """The names of library calls in the forward of what was compiled."""
    (product,) = compiled_function(fast).products
    return [item.node.attr("name") for item in product.stages.code.schedule.items if isinstance(item, RunCall)]


@pytest.mark.parametrize("bias", [True, False], ids=["biases", "no biases"])
@pytest.mark.parametrize("kind", CELLS)
def test_states_and_gradients(kind, bias):
    fast = compare(CELLS[kind](5, 4, bias=bias), (6,))
    assert calls(fast) == []


@pytest.mark.parametrize("kind", CELLS)
def test_without_a_batch(kind):
    assert calls(compare(CELLS[kind](5, 4), ())) == []


def test_double():
    compare(nn.GRUCell(5, 4), (6,), torch.float64, 1e-12)


def test_products_of_16_bits_stay_the_library_s():
    fast = compare(nn.GRUCell(5, 4), (6,), torch.bfloat16, 2e-2)
    assert calls(fast) == ["gru_cell"] * 3


def test_another_batch_needs_no_other_trace():
    cell = nn.LSTMCell(5, 4)
    fast = framefuse.compile(Unrolled(cell))
    for rows in (6, 3):
        fast(torch.randn(3, rows, 5), torch.randn(rows, 4))
    with framefuse.assert_compiles(0):
        x, h = torch.randn(3, 9, 5), torch.randn(9, 4)
        torch.testing.assert_close(fast(x, h), Unrolled(cell)(x, h), rtol=1e-5, atol=1e-6)


def test_under_autocast():
    cell = nn.GRUCell(5, 4)
    fast, plain = framefuse.compile(Unrolled(cell)), Unrolled(cell)
    with torch.autocast("cpu", torch.bfloat16), torch.no_grad():
        fast(torch.randn(3, 6, 5), torch.randn(6, 4))
        with framefuse.assert_compiles(0):
            x, h = torch.randn(3, 6, 5), torch.randn(6, 4)
            found, expected = fast(x, h), plain(x, h)
    assert found.dtype is expected.dtype
    torch.testing.assert_close(found, expected, rtol=2e-2, atol=2e-2)
