"""Reductions of what is computed from one value, over the same axes, are one kernel that reads it once."""

import pytest
import torch

import framefuse
from framefuse.api import compiled_function
from framefuse.ir.schedule import RunKernel

PROGRAMS = {
    "scaled columns": lambda x, y: ((x * y).sum(0) * 2, x.sum(0) * 3),
    "scaled rows": lambda x, y: ((x * y).sum(1) * 2, x.sum(1) * 3),
    "rounded": lambda x, y: ((x.float() * y.float()).sum(0).bfloat16(), x.float().sum(0).bfloat16()),
    "squares": lambda x, y: ((x * x).mean(0), (x * y).mean(0), x.mean(0)),
}


def kernels_of(fast):
    (product,) = compiled_function(fast).products
    return [item.kernel for item in product.stages.code.schedule.items if isinstance(item, RunKernel)]


@pytest.mark.parametrize("name", PROGRAMS)
def test_sums_of_one_value_are_one_kernel(name):
    program = PROGRAMS[name]
    fast = framefuse.compile(program)
    with torch.no_grad():
        for rows, columns in ((30, 70), (30, 70), (9, 33), (64, 5)):
            x, y = torch.randint(-3, 4, (2, rows, columns)).float()
            for mine, eager in zip(fast(x, y), program(x, y), strict=True):
                torch.testing.assert_close(mine, eager)
    assert fast.hits >= 2
    assert len(kernels_of(fast)) == 1


def test_sums_over_other_axes_are_kernels_of_their_own():
    fast = framefuse.compile(lambda x, y: ((x * y).sum(0) * 2, x.sum(1) * 3))
    for _ in range(2):
        fast(torch.randn(30, 70), torch.randn(30, 70))
    assert len(kernels_of(fast)) == 2


BESIDE = {
    "a mask": lambda x, y: ((x * y).relu().sum(), (x * y).relu() <= 0),
    "softmax": lambda x, y: ((x.log_softmax(-1) * y).sum(), x.log_softmax(-1).exp()),
    "less the mean": lambda x, y: (x - x.mean(-1, keepdim=True), x.amax(-1), (x * y).sum(-1)),
}


@pytest.mark.parametrize("name", BESIDE)
def test_what_is_computed_of_a_value_that_is_reduced_is_in_the_kernel_that_reduces_it(name):
    program = BESIDE[name]
    fast = framefuse.compile(program)
    with torch.no_grad():
        for rows, columns in ((30, 70), (30, 70), (9, 33), (64, 5), (0, 4), (1, 1)):
            if rows == 0 and name == "less the mean":
                continue
            x, y = torch.randn(2, rows, columns)
            for mine, eager in zip(fast(x, y), program(x, y), strict=True):
                torch.testing.assert_close(mine, eager, rtol=1e-4, atol=1e-4)
    assert fast.hits >= 2
    assert len(kernels_of_first(fast)) <= (2 if name == "softmax" else 1)  # of which one adds what rows come to


def kernels_of_first(fast):
    product = compiled_function(fast).products[0]
    return [item.kernel for item in product.stages.code.schedule.items if isinstance(item, RunKernel)]
