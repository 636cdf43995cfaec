"""Values of programs whose innermost axis is short: positions found by division, rows taken side by side, columns."""

import pytest
import torch
from torch.nn import functional as F

import framefuse

PROGRAMS = {
    "row": lambda x, y: (x + y).sin(),
    "column": lambda x, y: F.gelu(x * y.sum(-1, keepdim=True)) + x.amax(0, keepdim=True),
    "both": lambda x, y: x * y.mean(0, keepdim=True) + y.mean(1, keepdim=True),
    "softmax": lambda x, y: (x + y).softmax(-1),
    "log_softmax": lambda x, y: x.log_softmax(-1) * y,
    "norm": lambda x, y: F.layer_norm(x, x.shape[-1:]) + y,
    "extremes": lambda x, y: x.max(-1).values - (x * y).amin(-1),
    "places": lambda x, y: x.argmax(-1) + y.argmin(-1) + (x > y).any(-1),
    "several": lambda x, y: (x * y).sum((0, 2)) + x.var((0, 2)),
}


def made(width, dtype, kind):
    rows = torch.randn(3, 37, width).to(dtype)
    if kind == "turned":
        return torch.randn(width, 37, 3).to(dtype).permute(2, 1, 0)
    return torch.randn(3, 37, 2 * width).to(dtype)[..., ::2] if kind == "sliced" else rows


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64], ids=str)
@pytest.mark.parametrize("kind", ["rows", "turned", "sliced"])
@pytest.mark.parametrize("name", PROGRAMS)
def test_short_rows_of_any_width(name, kind, dtype):
    fast = framefuse.compile(PROGRAMS[name])
    torch.manual_seed(0)
    for width in (3, 1, 2, 5, 15, 16, 17, 31, 33):
        for _ in range(2):
            x, y = made(width, dtype, kind), made(width, dtype, "rows")
            if name == "places":
                assert torch.equal(fast(x, y), PROGRAMS[name](x, y))
                continue
            exact = PROGRAMS[name](x.double(), y.double())
            found, eager = fast(x, y), PROGRAMS[name](x, y)
            assert found.dtype is eager.dtype and found.stride() == eager.stride()
            least = {torch.float32: 1e-5, torch.bfloat16: 2e-2, torch.float64: 1e-12}[dtype]
            torch.testing.assert_close(found.double(), exact, rtol=least, atol=least * 4, equal_nan=True)
    assert framefuse.explain(fast).hits >= 9
