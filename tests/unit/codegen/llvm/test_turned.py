"""What is read from the end of a row comes as vectors whose lanes are turned, also where lanes are off."""

import pytest
import torch
from torch.nn import functional as F

import framefuse

PROGRAMS = {
    "turned": lambda x: x.flip(-1) * 2,
    "both": lambda x: x.flip(0, 1) + x,
    "part": lambda x: x[:, 3:].flip(-1) - x[:, 3:],
    "beside others": lambda x: F.pad(x.flip(-1), (2, 3)) + 1,
    "border": lambda x: F.pad(x, (3, 2), mode="reflect") * 2,
    "rows": lambda x: x.flip(-1).sum(-1),
    "greatest": lambda x: x.flip(-1).amax(-1),
    "quarter": lambda x: torch.rot90(x) * 2,
    "from the end": lambda x: x.flip(-1).cumsum(-1).flip(-1),
    "compared": lambda x: (x > 0).flip(-1) & (x < 1),
}


@pytest.mark.parametrize("name", PROGRAMS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16, torch.int64, torch.int8])
def test_rows_read_from_the_end(name, dtype):
    function = PROGRAMS[name]
    fast = framefuse.compile(function)
    for wide in (37, 37, 64, 5, 16, 129, 1000):
        torch.manual_seed(wide)
        x = torch.randint(-3, 4, (6, wide)).to(dtype)
        torch.testing.assert_close(fast(x), function(x), rtol=0, atol=0)
    assert framefuse.explain(fast).hits >= 3


def test_a_sum_from_the_end_is_eagers():
    """Gradients of running sums, with an infinity in a row."""
    fast = framefuse.compile(lambda x: x.cumsum(-1))
    for dtype in (torch.float32, torch.float32, torch.bfloat16, torch.bfloat16):
        x, g = torch.randn(5, 133).to(dtype).requires_grad_(), torch.randn(5, 133).to(dtype)
        g[2, 70] = float("inf")
        (ours,) = torch.autograd.grad(fast(x), x, g)
        (theirs,) = torch.autograd.grad(x.cumsum(-1), x, g)
        torch.testing.assert_close(ours, theirs)
