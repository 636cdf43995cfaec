"""Rows of a few points are written whole, a lane a row, for their recorded length, and one by one for any other."""

import pytest
import torch

import framefuse
from framefuse.api import compiled_function
from framefuse.codegen.llvm.compile import text
from framefuse.ir.schedule import RunKernel

PROGRAMS = {
    "a column": lambda x, y: x * y,
    "a row": lambda x, y: x * x[:1] + y[0],
    "its length": lambda x, y: x / x.shape[1] + torch.arange(x.shape[1]) * y,
    "compared": lambda x, y: x > y,
    "two results": lambda x, y: (x + y, x - y),
    "across memory": lambda x, y: x.t().contiguous().t() * y,
    "other rows": lambda x, y: x.flip(0) * y + 1,
    "a written input": lambda x, y: x.clone().mul_(y),
    "an axis around": lambda x, y: x[None] * torch.arange(3).to(x.dtype)[:, None, None] + y,
}


@pytest.mark.parametrize("recorded", [2, 3, 4])
@pytest.mark.parametrize("name", PROGRAMS)
def test_short_rows_of_any_length(name, recorded):
    program = PROGRAMS[name]
    fast = framefuse.compile(program)
    for dtype in (torch.float32, torch.int8) if name != "its length" else (torch.float32,):
        for sizes in ((500, recorded), (4097, recorded), (500, 2), (2049, 3), (31, 4), (70, 9), (2, 2)):
            x, y = (torch.randint(-9, 9, (sizes[0], width)).to(dtype) for width in (sizes[1], 1))
            mine, other = fast(x, y), program(x, y)
            torch.testing.assert_close(mine, other, rtol=1e-6, atol=0)
            assert [part.stride() for part in (mine if name == "two results" else [mine])] == [
                part.stride() for part in (other if name == "two results" else [other])
            ]
    assert fast.hits >= 4


def test_rows_of_three_are_whole_vectors():
    fast = framefuse.compile(lambda x, y: x * y)
    for _ in range(2):
        fast(torch.randn(500, 3), torch.randn(500, 1))
    (product,) = compiled_function(fast).products
    (kernel,) = (item.kernel for item in product.stages.code.schedule.items if isinstance(item, RunKernel))
    body = text(kernel)
    assert body.count("shufflevector") > 6
