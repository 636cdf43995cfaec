"""Programs of recurrences and scans that users write of products and cumulative operators."""

# mypy: disable-error-code="no-any-return"

from __future__ import annotations

import torch
from torch import Tensor, rand, randn
from torch.nn import functional as F

from benchmarks.programs.program import Size, program


def selective(n: Size) -> list[Tensor]:
    """Values, decays, and what goes in and out of the states of a state space."""
    b, t, h = n(8, 1), n(2048, 64), 16
    return [randn(b, t, h, 64), rand(b, t, h), randn(b, t, h, 16), randn(b, t, h, 16)]


@program(2, selective)
def state_space_by_chunks(x: Tensor, decay: Tensor, inward: Tensor, outward: Tensor) -> Tensor:
    b, t, h, d = x.shape
    size = 32
    x, inward, outward = (one.view(b, t // size, size, h, -1) for one in (x, inward, outward))
    total = torch.cumsum(-F.softplus(decay).view(b, t // size, size, h), dim=2)
    apart = total[:, :, :, None] - total[:, :, None]
    lower = torch.tril(torch.ones(size, size, dtype=torch.bool, device=x.device))
    apart = torch.exp(apart.masked_fill(~lower[:, :, None], float("-inf")))
    within = torch.einsum("bclhn,bcshn,bclsh,bcshp->bclhp", outward, inward, apart, x)
    last = torch.exp(total[:, :, -1:] - total)
    states = torch.einsum("bcshn,bcsh,bcshp->bchpn", inward, last, x)
    between = torch.cumsum(total[:, :, -1], 1)
    steps = between[:, :, None] - between[:, None]
    count = t // size
    before = torch.tril(torch.ones(count, count, dtype=torch.bool, device=x.device), -1)
    steps = torch.exp(steps.masked_fill(~before[:, :, None], float("-inf")))
    carried = torch.einsum("bczh,bzhpn->bchpn", steps, states)
    across = torch.einsum("bclhn,bchpn,bclh->bclhp", outward, carried, torch.exp(total))
    return (within + across).reshape(b, t, h, d)


@program(2, lambda n: [rand(n(16, 2), n(2048, 64), 512) * 0.2 + 0.8, randn(n(16, 2), n(2048, 64), 512)])
def gated_scan(gate: Tensor, value: Tensor) -> Tensor:
    logs = torch.cumsum(torch.log(gate), dim=1)
    return torch.exp(logs) * torch.cumsum(value * (1 - gate) * torch.exp(-logs), dim=1)


@program(2, lambda n: [randn(n(8, 1), n(16, 2), n(1024, 64), 64) for _ in range(3)])
def linear_attention(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    q, k = F.elu(q) + 1, F.elu(k) + 1
    both = torch.einsum("bhnd,bhne->bhde", k, v)
    size = torch.einsum("bhnd,bhd->bhn", q, k.sum(2))
    return torch.einsum("bhnd,bhde->bhne", q, both) / (size.unsqueeze(-1) + 1e-6)


@program(2, lambda n: [randn(n(64, 2), 64, 100), rand(n(64, 2), 64, 100)])
def advantages(rewards: Tensor, values: Tensor) -> Tensor:
    last, found = torch.zeros_like(rewards[..., 0]), []
    for t in reversed(range(rewards.shape[-1] - 1)):
        error = rewards[..., t] + 0.99 * values[..., t + 1] - values[..., t]
        last = error + 0.99 * 0.95 * last
        found.append(last)
    return torch.stack(found[::-1], -1)
