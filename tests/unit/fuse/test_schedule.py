"""Graphs become few kernels, and the kernels compute what torch computes, at the recorded sizes and at others."""

import pytest
import torch
from tests.unit.fuse.graphs import Builder, check, kernels, symbol

from framefuse.fuse import fuse
from framefuse.ir.loop_printer import print_kernel

ROWS = symbol("s0")


def chain(b, x, length):
    steps = [
        lambda x: b.add(x, 0.1), b.sin, lambda x: b.mul(x, 1.1), b.cos, lambda x: b.maximum(x, 0.0), b.sigmoid,
        lambda x: b.exp(b.mul(x, 0.5)),
    ]  # fmt: skip
    for number in range(length):
        x = steps[number % len(steps)](x)
    return x


@pytest.mark.parametrize("rows", [8, 0, 1, 300])
def test_a_chain_with_its_sum_is_one_kernel(rows):
    b = Builder(s0=8)
    x = b.input((ROWS, 16))
    graph = b.graph(b.reduce("sum", chain(b, x, 30), 0, 1))
    schedule = fuse(graph)
    assert len(kernels(schedule)) == len(schedule.items) - 1 == 1
    check(graph, schedule, torch.randn(rows, 16))


def test_print(golden):
    b = Builder(s0=8)
    x = b.input((ROWS, 16))
    golden(print_kernel(kernels(fuse(b.graph(b.reduce("sum", chain(b, x, 5), 0, 1))))[0]))
