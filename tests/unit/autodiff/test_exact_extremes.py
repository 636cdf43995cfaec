"""Gradients of extremes of computed 16-bit floats find the elements that the forward chose."""

import pytest
import torch
import torch.nn.functional as F

import framefuse

EXTREMES = {
    "amax": lambda x: x.amax(-1),
    "amin": lambda x: x.amin(0),
    "all": lambda x: x.amax(),
    "infinite norm": lambda x: x.norm(float("inf"), dim=-1),
    "pooled": lambda x: F.adaptive_max_pool1d(x, 1),
    "kept": lambda x: x.amax(-1, keepdim=True) - x,
}


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("name", EXTREMES)
def test_each_row_has_its_gradients(name, dtype):
    """What a backward computes again, from values that were saved rounded, equals what the forward compared."""

    def f(x, y):
        x = F.silu(x) - y
        x = x.abs().log1p() * y
        x = x.sigmoid() - y
        x = torch.erf(x) - y
        x = x.abs().log1p() * y
        x = (x.abs() + 0.1).sqrt() / (y.abs() + 1)
        return EXTREMES[name](x)

    fast = framefuse.compile(f)
    torch.manual_seed(0)
    for rows in (40, 40, 50, 60, 60):
        x, y = (torch.randn(20, rows, 33).to(dtype).requires_grad_() for _ in range(2))
        out, known = fast(x, y), f(x, y)
        torch.testing.assert_close(out, known, rtol=2e-2, atol=2e-2)
        seed = torch.ones_like(known)
        found, eager = torch.autograd.grad(out, (x, y), seed), torch.autograd.grad(known, (x, y), seed)
        for mine, theirs in zip(found, eager, strict=True):
            assert not mine.isnan().any()  # as those of a row were in which nothing equals the extreme
            torch.testing.assert_close(mine, theirs, rtol=0.1, atol=0.2)
    assert fast.hits >= 3
