"""What only chooses between 16-bit floats moves them as they are: no element is widened to be rounded again."""

import pytest
import torch
import torch.nn.functional as F

import framefuse
from framefuse.api import compiled_function
from framefuse.ir.loops.print import kernel_text
from framefuse.ir.schedule import RunKernel


def steps(x):
    y = x.clone()
    y[..., ::2] = y[..., :1]
    return y


MOVES = {
    "pad": lambda x: F.pad(x, (1, 2)),
    "pad with a number": lambda x: F.pad(x, (0, 1, 2, 0), value=0.1),
    "cat": lambda x: torch.cat([x, x.flip(1)], 1),
    "tril": lambda x: x.tril(1),
    "masked_fill": lambda x: x.masked_fill(torch.ones_like(x, dtype=torch.bool).tril(), 0.1),
    "masked_fill of NaN": lambda x: x.masked_fill(x.isnan(), 0.1),
    "where": lambda x: torch.where(torch.ones_like(x, dtype=torch.bool).tril(), x, x.flip(0)),
    "every second": steps,
}
COMPUTES = {
    "pad, then a product": lambda x: F.pad(x, (1, 2)) * 1.7 + 0.3,
    "a product, then pad": lambda x: F.pad(x * 1.7 + 0.3, (1, 2)),
    "a choice of a product": lambda x: torch.where(x > 0, x, x * 1.7) * 0.3,
    "a cat of a product": lambda x: torch.cat([x, x * 1.7], 1) + 0.3,
}


def kernels(fast):
    schedules = [product.stages.code.schedule for product in compiled_function(fast).products]
    return [item.kernel for each in schedules for item in each.items if isinstance(item, RunKernel)]


def sample(sizes, dtype):
    """With all that rounding could change: NaNs of either sign and any payload, infinities, zeros, the smallest."""
    bits = torch.randint(-(2**15), 2**15, sizes, dtype=torch.int16)
    bits[:, 0] = torch.tensor([0, -(2**15), 1, 0x7F80, 0x7C00], dtype=torch.int16)[torch.arange(sizes[0]) % 5]
    return bits.view(dtype)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("name", MOVES)
def test_moves(name, dtype):
    fast = framefuse.compile(MOVES[name])
    for sizes in ((6, 40), (6, 40), (7, 33), (10, 90)):
        x = sample(sizes, dtype)
        assert torch.equal(fast(x).view(torch.int16), MOVES[name](x).view(torch.int16))
    assert fast.hits >= 2
    if name == "masked_fill of NaN":  # what is asked of an element is asked of it as 32 bits
        return
    assert not any(word in kernel_text(kernel) for kernel in kernels(fast) for word in ("f32(b", "bf16(v", "f16(v"))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("name", COMPUTES)
def test_what_is_computed_is_rounded_as_before(name, dtype):
    fast = framefuse.compile(COMPUTES[name])
    for sizes in ((6, 40), (6, 40), (7, 33), (10, 90)):
        x = torch.randn(sizes).to(dtype)
        exact, eager = COMPUTES[name](x.double()), COMPUTES[name](x)
        mine = fast(x)
        assert mine.dtype is dtype and mine.stride() == eager.stride()
        assert (mine - exact).abs().max() <= (eager - exact).abs().max() + 1e-6
    assert fast.hits >= 2
