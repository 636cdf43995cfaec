"""An operand that lies across the result is transposed tile by tile, in long rows and in short ones."""

import pytest
import torch

import framefuse
from framefuse.api import compiled_function
from framefuse.ir.loops import Scratch
from framefuse.ir.loops.walk import statements
from framefuse.ir.schedule import RunKernel

SIZES = ((2, 9, 70), (2, 9, 70), (3, 70, 9), (2, 66, 131), (1, 5, 17), (2, 17, 5), (2, 3, 11), (4, 8, 8), (1, 1, 9))


CASES = [(lambda x, y: x + y, dtype) for dtype in (torch.float32, torch.float64, torch.bfloat16, torch.int8)]
CASES += [(lambda x, y: y[:1] - x, torch.float32), (lambda x, y: y[..., :1] - x + y, torch.int16)]


@pytest.mark.parametrize("function, dtype", CASES)
def test_a_transposed_operand_is_read_in_tiles(function, dtype):
    fast = framefuse.compile(function)
    for many, high, wide in SIZES:
        x = torch.randint(-9, 9, (many, wide, high)).to(dtype).transpose(1, 2)
        y = torch.randint(-9, 9, (many, high, wide)).to(dtype)
        torch.testing.assert_close(fast(x, y), function(x, y), rtol=0, atol=0)
    schedules = [product.stages.code.schedule for product in compiled_function(fast).products]
    kernels = [item.kernel for each in schedules for item in each.items if isinstance(item, RunKernel)]
    assert any(isinstance(statement, Scratch) for kernel in kernels for statement in statements(kernel.body))


JOINED = [
    lambda x, y: torch.cat([y[..., :3], y[..., :-3] * 2], -1) + x,
    lambda x, y: torch.cat([y[:, :2] - 1, y[:, 2:]], 1) * x,
]


@pytest.mark.parametrize("function", JOINED)
def test_pieces_of_a_result_are_loops_of_their_own_in_a_tile(function):
    fast = framefuse.compile(function)
    for many, high, wide in (*SIZES, (2, 130, 140)):
        if high > 2 and wide > 3:
            x = torch.randn(many, wide, high).transpose(1, 2)
            y = torch.randn(many, high, wide)
            torch.testing.assert_close(fast(x, y), function(x, y))
    schedules = [product.stages.code.schedule for product in compiled_function(fast).products]
    kernels = [item.kernel for each in schedules for item in each.items if isinstance(item, RunKernel)]
    assert any(isinstance(statement, Scratch) for kernel in kernels for statement in statements(kernel.body))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16, torch.complex64], ids=str)
def test_most_operands_lie_across_what_is_written(dtype):
    def function(x, y, z, w):
        return (x.mT * y.mT - z.mT).contiguous() + w[..., :1]

    fast = framefuse.compile(function)
    for many, high, wide in (*SIZES, (1, 70, 300)):
        x, y, z = (torch.randint(-9, 9, (many, wide, high)).to(dtype) for _ in range(3))
        w = torch.randint(-9, 9, (many, high, wide)).to(dtype)
        torch.testing.assert_close(fast(x, y, z, w), function(x, y, z, w), rtol=0, atol=0)


def test_vectors_store_along_what_is_written():
    fast = framefuse.compile(lambda x, y, z: (x.mT * y.mT - z.mT).contiguous())
    for _ in range(2):
        fast(*(torch.randn(200, 100) for _ in range(3)))
    (product,) = compiled_function(fast).products
    (kernel,) = (item.kernel for item in product.stages.code.schedule.items if isinstance(item, RunKernel))
    assert sum(isinstance(statement, Scratch) for statement in statements(kernel.body)) == 3
