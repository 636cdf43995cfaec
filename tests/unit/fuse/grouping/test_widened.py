"""A large value of float32 that is computed from 16-bit elements is computed in both of its readers on a CPU."""

import pytest
import torch

import framefuse
from framefuse.api import compiled_function
from framefuse.ir.dtypes import FLOAT32
from framefuse.ir.schedule import RunKernel


def program(x, y):
    wide = torch.where(y > 0, x, 0).float()
    return wide.sum(0), (wide * 2 + 1).bfloat16()


def written(fast):
    """How many values of float32 the kernels leave in memory."""
    (product,) = compiled_function(fast).products
    kernels = [item.kernel for item in product.stages.code.schedule.items if isinstance(item, RunKernel)]
    return sum(buffer.written and buffer.dtype is FLOAT32 for kernel in kernels for buffer in kernel.buffers)


@pytest.mark.parametrize(("rows", "count"), [(2048, 1), (16, 2)])
def test_it_is_not_written_where_it_leaves_the_caches(rows, count):
    fast = framefuse.compile(program, dynamic=False)
    with torch.no_grad():
        for _ in range(3):
            x, y = torch.randint(-8, 8, (2, rows, 256)).bfloat16()
            for mine, eager in zip(fast(x, y), program(x, y)):
                assert torch.equal(mine, eager)
    assert fast.hits >= 2
    assert written(fast) == count
