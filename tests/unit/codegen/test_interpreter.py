import numpy as np
import pytest
import torch
from tests.unit.codegen import kernels as k

from framefuse.codegen.interpreter import interpret
from framefuse.ir.dtypes import FLOAT32, INT64


def test_softmax_is_eagers():
    x, out = torch.randn(5, 7), torch.empty(35)
    assert interpret(k.softmax(), [x.flatten(), out], [5, 7]) == 0
    torch.testing.assert_close(out.view(5, 7), x.softmax(-1))


def test_layer_norm_is_eagers_on_numpy_arrays():
    x, w, b = torch.randn(3, 10), torch.randn(10), torch.randn(10)
    out = np.empty(30, np.float32)
    assert interpret(k.layer_norm(), [x.flatten().numpy(), w.numpy(), b.numpy(), out], [3, 10]) == 0
    torch.testing.assert_close(torch.from_numpy(out).view(3, 10), torch.layer_norm(x, (10,), w, b))


@pytest.mark.parametrize("count", [1, 10, 30])
def test_chain_is_eagers(count):
    x, out = torch.randn(128), torch.empty(1)
    value = k.load("x0", k.I)
    for statement in range(count):
        value = k.CHAIN[statement % 20](value)
    whole = torch.empty(128)
    assert interpret(k.pointwise([FLOAT32], value), [x, whole], [128]) == 0
    assert interpret(k.chain_sum(count), [x, out], [128]) == 0
    torch.testing.assert_close(out[0], whole.sum())
    if count == 1:
        torch.testing.assert_close(whole, x + 0.1)


@pytest.mark.parametrize("op", ["argmax", "argmin"])
def test_first_nan_wins_then_first_extreme(op):
    nan = float("nan")
    x = torch.tensor([[1.0, 3, 3, 1], [2, nan, nan, 9], [5, 5, 5, 5]])
    out = torch.empty(3, dtype=torch.int64)
    assert interpret(k.row_operation(op), [x.flatten(), out], [3, 4]) == 0
    assert out.tolist() == getattr(torch, op)(x, 1).tolist()


def test_division_by_zero_is_reported():
    value = k.apply("floordiv", k.load("x0", k.I, INT64), k.load("x1", k.I, INT64))
    x, out = torch.tensor([7, -7]), torch.empty(2, dtype=torch.int64)
    assert interpret(k.pointwise([INT64, INT64], value), [x, torch.tensor([2, 2]), out], [2]) == 0
    assert out.tolist() == [3, -4]
    assert interpret(k.pointwise([INT64, INT64], value), [x, torch.tensor([2, 0]), out], [2]) == 1


def test_leaving_a_buffer_is_an_error():
    value = k.load("x0", k.I.expr + 1)
    with pytest.raises(IndexError, match="element 2 of x0"):
        interpret(k.pointwise([FLOAT32], value), [torch.ones(2), torch.empty(2)], [2])
