"""Numbers of NumPy that are made of numbers alone are constants of the trace; those found in attributes are facts."""

from __future__ import annotations

import numpy as np
import pytest
import torch

import framefuse
from framefuse.api import compiled_function


def results(function, *calls, hits, graphs):
    """Each call beside eager's: values, types of numbers, hits and graphs."""
    compiled = framefuse.compile(function)
    state = compiled_function(compiled)
    for args in calls:
        assert repr(compiled(*args)) == repr(function(*args))
    assert (state.dispatch.hits, len(state.products)) == (hits, graphs)
    return state


def xs(*sizes):
    return [(torch.randn(size),) for size in sizes]


def constants(x):
    ratio = np.log(float(10_000)) / 3
    if np.ceil(2.5) > 2:
        x = x + int(np.prod((2, 3)))
    return x * -ratio + np.float32(0.3), np.lcm(4, 6), ratio, ratio > 1


def test_numbers_of_numbers_are_constants_of_one_graph():
    assert not results(constants, *xs(3, 3, 5), hits=2, graphs=1).breaks


class Scaled(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.scale = np.sqrt(16.0)

    def forward(self, x):
        return x * self.scale / (self.scale + 1)


def test_a_number_in_an_attribute_is_a_fact():
    module = Scaled()
    compiled = framefuse.compile(module)
    state = compiled_function(compiled)
    for x in (torch.randn(3), torch.randn(3)):
        torch.testing.assert_close(compiled(x), module(x))
    assert (state.dispatch.hits, len(state.products)) == (1, 1)
    module.scale = np.sqrt(25.0)
    x = torch.randn(3)
    torch.testing.assert_close(compiled(x), module(x))
    assert state.dispatch.hits == 1


def test_a_size_decides_a_number_at_each_call():
    def padded(x):
        return x.new_ones(np.lcm(4, 6) - x.shape[0] % np.lcm(4, 6))

    results(padded, *xs(3, 3, 9, 9, 16), hits=2, graphs=3)


@pytest.mark.parametrize("value", [np.float64(0.1), np.float32(0.1), np.int64(3), np.uint8(20), np.int8(-3)])
def test_torch_takes_a_number_for_that_of_python(value):
    def scaled(x, i):
        made = type(value)(value)
        return x * made, i + made, made * 2

    results(scaled, (torch.randn(3), torch.arange(3)), (torch.randn(3), torch.arange(3)), hits=1, graphs=1)


def test_a_truth_of_numpy_beside_a_tensor_is_left_to_torch():
    def added(i):
        return i + np.bool_(True)

    results(added, *[(torch.arange(3) + turn,) for turn in range(4)], hits=2, graphs=2)
