"""Sizes that torch computes in tensors of numbers alone (``torch.div`` of two ints) are run-time ints of the trace."""

from __future__ import annotations

import torch

import framefuse
from framefuse.api import compiled_function


def chunks(x):
    count = torch.div(x.size(1), 4, rounding_mode="trunc")
    parts = x.view(x.size(0), count, 4)
    room = x.new_zeros((x.size(0), count - 1 + 2, 4))
    room[:, :-1] = parts
    return room.sin(), parts * 2


def test_sizes_in_tensors_are_numbers_of_one_graph():
    compiled = framefuse.compile(chunks)
    state = compiled_function(compiled)
    for length in (8, 12, 16, 32):
        x = torch.randn(3, length)
        for found, expected in zip(compiled(x), chunks(x), strict=True):
            torch.testing.assert_close(found, expected)
    assert (state.dispatch.hits, len(state.products)) == (3, 1)


def divided(x, n):
    return x.new_ones((torch.div(n, 4, rounding_mode="trunc") + 3,)) * x.sum()


def test_a_negative_number_is_divided_as_torch_divides():
    compiled = framefuse.compile(divided)
    for n in (8, 9, -5, 8, -5, -9, 9, 0):
        x = torch.randn(3)
        torch.testing.assert_close(compiled(x, n), divided(x, n))


def overlapping(x):
    x = x * 2
    rows = x.transpose(1, 2).reshape(x.shape[0] * x.shape[2], x.shape[1], x.shape[3])
    rows = rows.view(rows.size(0), torch.div(rows.size(1), 4, rounding_mode="trunc"), 4, rows.size(2))
    size, stride = list(rows.size()), list(rows.stride())
    size[1] = size[1] * 2 - 1
    stride[1] //= 2
    return rows.as_strided(size=size, stride=stride).sin()


def test_strides_of_a_permuted_tensor_are_read_and_given():
    compiled = framefuse.compile(overlapping)
    state = compiled_function(compiled)
    for batch, length in ((1, 8), (1, 8), (2, 8), (2, 8), (1, 16), (1, 4), (3, 4), (3, 4)):
        x = torch.randn(batch, length, 3, 5, requires_grad=True)
        found, expected = compiled(x), overlapping(x)
        torch.testing.assert_close(found, expected)
        wanted = torch.randn_like(expected)
        torch.testing.assert_close(torch.autograd.grad(found, x, wanted), torch.autograd.grad(expected, x, wanted))
    assert state.dispatch.hits == 3 and not state.breaks
