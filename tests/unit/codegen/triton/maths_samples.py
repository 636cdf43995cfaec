"""What the elementary functions of float32 are tried on, and the error that each may have."""

from __future__ import annotations

import math

import torch

# Highest error in units in the last place: with Triton's exponential and division rounded to nearest, and as a GPU
# approximates them.
ULP = {
    "exp": (1.1, 3.0), "exp2": (1.1, 2.0), "expm1": (1.6, 2.0), "log": (1.1, 2.0), "log2": (1.6, 2.0),
    "log10": (1.6, 2.0), "log1p": (1.6, 2.0), "sin": (1.7, 2.2), "cos": (2.2, 2.2), "tanh": (2.0, 2.0),
    "erf": (1.7, 2.0), "rsqrt": (1.5, 1.5),
}  # fmt: skip
# Those of which kernels that write 16 bits take a shorter one.
NEAR = ("acosh", "asinh", "cosh", "erf", "exp", "log", "log10", "log1p", "log2", "rsqrt", "sigmoid", "sinh", "tanh")
ROUNDED = ("floor", "ceil", "trunc", "round")  # exact

SPECIAL = torch.tensor(
    [
        0.0, -0.0, 1.0, -1.0, 0.5, -0.5, 1.5, 2.5, -1.5, 0.3, -0.3, 0.7, -0.7, 8388607.5, -8388607.5, 4194303.5, 1e9,
        math.inf, -math.inf, math.nan, 1e-45, -1e-45, 1e-40, -1e-40, 3e38, -3e38, -2.4e38, 88.72283172607422,
        88.72283935546875, 88.73, -87.4, -103.5, -110.0, 127.9, 128.0, 149.9, 150.0, -149.0, -150.0, -160.0, 1e5, -1e5,
    ]
)  # fmt: skip


def spread() -> torch.Tensor:
    """90 thousand numbers, dense where functions change their way."""
    generator = torch.Generator().manual_seed(1)
    return torch.cat(
        [
            torch.randn(20000, generator=generator) * 4,
            torch.linspace(-104, 100, 20001),
            torch.linspace(-1e5, 1e5, 20001),
            torch.randn(4000, generator=generator) * 1e-3,
            torch.exp(torch.linspace(-87, 88, 12000)),
            -torch.exp(torch.linspace(-87, 88, 8000)),
            1 + torch.linspace(-1e-3, 1e-3, 4001),
        ]
    )


def check_near(found: torch.Tensor, wanted: torch.Tensor) -> None:
    """Results of a kernel that writes bfloat16, rounded as those of float64 but for a few."""
    torch.testing.assert_close(found, wanted, rtol=2**-7, atol=1e-38, equal_nan=True)
    assert (found == wanted)[~wanted.isnan()].float().mean() > 0.998
    zero = wanted == 0
    assert torch.equal(found[zero].signbit(), wanted[zero].signbit())


def check_digamma(found: torch.Tensor, x: torch.Tensor) -> None:
    """Within what the terms of the sum round off, poles and both zeros as eager has them."""
    wanted = torch.digamma(x.double())
    finite = wanted.float().isfinite()
    torch.testing.assert_close(found[~finite], wanted[~finite].float(), equal_nan=True)
    terms = 4 + wanted.abs() + 2 * (x.double().abs() + 10).log()
    assert ((found - wanted).abs() / terms)[finite].max() < 4e-7


def error(found: torch.Tensor, exact: torch.Tensor) -> float:
    """The largest difference of float32 from float64 in units in the last place of the latter, where it is normal."""
    normal = exact.isfinite() & (exact.abs() > 2e-38) & (exact.abs() < 3.4e38)
    unit = torch.exp2(torch.floor(torch.log2(exact[normal].abs())) - 23)
    return ((found.double()[normal] - exact[normal]).abs() / unit).max().item()


def check_special(name: str, found: torch.Tensor, x: torch.Tensor) -> None:
    """NaN, infinities, zeros and their signs are those of the function's, denormals are kept."""
    wanted = getattr(torch, name)(x.double()).float()
    assert torch.equal(found.isnan(), wanted.isnan()), name
    kept = ~wanted.isnan()
    found, wanted, x = found[kept], wanted[kept], x[kept]
    for at in (wanted == 0, wanted.isinf()):
        # Beside the limits of exp a result may round to the last number or the next.
        assert torch.equal(found[at], wanted[at]), (name, x[at], found[at])
    assert torch.equal(found.signbit(), wanted.signbit()), name
    torch.testing.assert_close(found, wanted, rtol=1.3e-6, atol=3e-45)
