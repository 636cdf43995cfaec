"""Negatives and absolute values of 16-bit floats change one bit of each, and are eager's for all 65,536 of them."""

import pytest
import torch

import framefuse
from framefuse.api import compiled_function
from framefuse.codegen.llvm.compile import text
from framefuse.ir.schedule import RunKernel

PROGRAMS = {
    "abs": lambda x: x.abs(),
    "neg": lambda x: -x,
    "both": lambda x: -(x.abs()),
    "more": lambda x: (-x + 1, x.abs().float()),
}


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("name", PROGRAMS)
def test_signs_of_all_numbers(name, dtype):
    program = PROGRAMS[name]
    fast = framefuse.compile(program)
    numbers = torch.arange(-(1 << 15), 1 << 15).to(torch.int16).view(dtype)
    for count in (100, 100, 1 << 16, (1 << 16) - 3, 7):
        x = numbers[-count:]
        torch.testing.assert_close(fast(x), program(x), rtol=0, atol=0, equal_nan=True)
    assert fast.hits >= 4
    if name in ("abs", "neg"):
        (product,) = compiled_function(fast).products
        (kernel,) = (item.kernel for item in product.stages.code.schedule.items if isinstance(item, RunKernel))
        assert "float" not in text(kernel).partition("target triple")[2]
