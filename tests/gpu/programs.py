"""Programs for any device: functions of tensors, and models with a step of training. The machine with a GPU runs them
there; every machine runs them on the CPU by Triton's interpreter.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn


@dataclass(frozen=True)
class Program:
    """``function`` is called on ``inputs(rows, device)`` for several numbers of rows; ``kernels`` is the least number
    of kernels that its compiled code has. ``scale`` loosens the comparison with eager.
    """

    name: str
    function: Callable[..., Any]
    inputs: Callable[[int, str], tuple[Any, ...]]
    kernels: int = 1
    scale: float = 1.0


def matrix(rows: int, device: str) -> tuple[Any, ...]:
    return (torch.randn(rows, 24, device=device),)


def two(rows: int, device: str) -> tuple[Any, ...]:
    return torch.randn(rows, 24, device=device), torch.randn(rows, 24, device=device)


def with_indices(rows: int, device: str) -> tuple[Any, ...]:
    return torch.randn(rows, 24, device=device), torch.randint(0, 24, (rows,), device=device)


def with_scalar(rows: int, device: str) -> tuple[Any, ...]:
    return torch.randn(rows, 24, device=device), torch.tensor(0.1 * rows)


def pictures(rows: int, device: str) -> tuple[Any, ...]:
    return (torch.randn(rows, 3, 9, 11, device=device),)


def long(rows: int, device: str) -> tuple[Any, ...]:
    return (torch.randn(rows * 30011, device=device),)


def chain(x: Tensor) -> Any:
    y = x * 2 + 1
    return (y.sin() + y.relu()).sigmoid() * math.pi, torch.tanh(y) / (y.abs() + 1), y.clamp(-1, 0.5).exp()


def functions(x: Tensor) -> Any:
    y = x.abs() + 0.5
    return y.log() + y.sqrt() + y.rsqrt() + y.log1p(), torch.erf(x) + F.gelu(x) + F.silu(x), y**1.5, x.atan2(y), x.cos()


def mixed(x: Tensor, y: Tensor) -> Any:
    low = x.bfloat16()
    whole = (x * 10).int()
    return low * 2, (x.half() + 1).float(), whole // 3, whole % 4 + (whole > 2), x.double() / 3, whole.float() * y


def broadcast(x: Tensor, y: Tensor) -> Any:
    return x[:, None] * y[None, :, :1], x + torch.arange(24, device=x.device), torch.where(x > y, x, 0.0)


def scalar(x: Tensor, s: Tensor) -> Any:
    return x * s, s - x, (x.half() * s).float(), torch.where(x > 0, x, 2.5)


def softmax(x: Tensor) -> Any:
    return torch.softmax(x, -1), F.log_softmax(x * 2, 0), torch.logsumexp(x, 1)


def norms(x: Tensor) -> Any:
    return F.layer_norm(x, (24,)), x / (x.square().mean(-1, keepdim=True) + 1e-5).sqrt(), x - x.mean(0)


def reductions(x: Tensor) -> Any:
    return x.sum(), x.sum(0), x.mean(1), x.amax(1), x.argmax(1), x.var(1), (x > 0).any(0), x.prod(1), x.amin()


def long_sum(x: Tensor) -> Any:
    return (x * x).sum(), x.mean(), x.amax()


def strided(x: Tensor) -> Any:
    return x.t() * 2, x[::2, 1:] + 1, torch.cat([x, x * 2], 1).flip(0), x.reshape(-1, 12).t().contiguous()


def transposed(x: Tensor, y: Tensor) -> Any:
    return x.t() + y.t(), (x.t() * 2).contiguous(), F.pad(x, (1, 2)) + 1, x.unfold(1, 4, 2).sum(-1)


def indices(x: Tensor, i: Tensor) -> Any:
    return x[:, i], x.gather(1, i[:, None]), F.one_hot(i, 24) * x, x.index_select(1, i).relu()


def product(x: Tensor, y: Tensor) -> Any:
    return (x @ y.t()).relu() + 1, F.linear(x, y) * 2


def written(x: Tensor, y: Tensor) -> Any:
    x = x.clone()
    x.add_(y)
    x[0] = 5
    x[:, 1].mul_(2)
    return x


def writes(x: Tensor, y: Tensor) -> Any:
    x.mul_(0.5).add_(y)
    return x.sum(0)


def writes_parts(x: Tensor, y: Tensor) -> Any:
    x[2] = y[0] * 2
    x[:, 3].add_(y[:, 1])
    x[0], x[1, 4:9] = x[1].clone(), 1.5
    return x.sum(0), x[:, 3] + 1


def made(x: Tensor) -> Any:
    n = x.shape[0]
    return torch.zeros(n, 3, device=x.device) + n, torch.ones_like(x).tril(), torch.full((n,), 2.5, device=x.device)


def entropy(x: Tensor, i: Tensor) -> Any:
    part = x.sigmoid()
    entropy = F.binary_cross_entropy(part, part * part), F.gaussian_nll_loss(x, part, part)
    return F.cross_entropy(x, i), F.nll_loss(F.log_softmax(x, 1), i, reduction="sum"), F.mse_loss(x, x * 2), *entropy


def random(x: Tensor) -> Any:
    return F.dropout(x, 0.4) * 2, torch.rand(x.shape[0], device=x.device) + 1, torch.randn_like(x) * x


def viewed(x: Tensor) -> Any:
    first, second, third = (x * 2).view(x.shape[0], 3, 2, 4).permute(1, 0, 2, 3)
    return torch.trapezoid(first), torch.trapezoid(second, dim=1) + 1, third.sum()


def pooled(x: Tensor) -> Any:
    high, at = F.max_pool2d(x.relu(), 3, 2, 1, return_indices=True)
    cut = F.avg_pool2d(x, 3, 2, 1, ceil_mode=True, count_include_pad=False)
    return high * 2, at, cut, F.max_pool1d(x[0], 4, 3), F.avg_pool3d(x, 2, 1)


def chosen(x: Tensor) -> Any:
    found = x[x > 0]
    return found * 2 + 1, found.sum(), torch.softmax(x * found.sum(), -1)


def moved(x: Tensor) -> Any:
    near = x.cpu() * 2
    return near, near.to(x.device) + x


def scanned(x: Tensor) -> Any:
    return (x.relu() * 2).cumsum(1) + x, x.cumsum(0), x.double().cumsum(1), x.sigmoid().cumprod(1), x.round().cummax(0)


FUNCTIONS = (
    Program("chain", chain, matrix),
    Program("functions", functions, matrix, scale=4),
    Program("mixed", mixed, two),
    Program("broadcast", broadcast, two),
    Program("scalar", scalar, with_scalar, scale=4),
    Program("softmax", softmax, matrix, 2),
    Program("norms", norms, matrix),
    Program("reductions", reductions, matrix, 2, scale=4),
    Program("long_sum", long_sum, long, scale=10),
    Program("strided", strided, matrix),
    Program("transposed", transposed, two),
    Program("indices", indices, with_indices),
    Program("product", product, two),
    Program("written", written, two),
    Program("writes", writes, two),
    Program("writes_parts", writes_parts, two),
    Program("made", made, matrix),
    Program("entropy", entropy, with_indices, scale=4),
    Program("random", random, matrix),
    Program("viewed", viewed, matrix),
    Program("pooled", pooled, pictures),
    Program("scanned", scanned, matrix, 4),
    Program("chosen", chosen, matrix),
    Program("moved", moved, matrix),
)


class Block(nn.Module):
    """A transformer's block over (batch, 6, 16)."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.LayerNorm(16), nn.LayerNorm(16)
        self.heads, self.out = nn.Linear(16, 48), nn.Linear(16, 16)
        self.inner = nn.Sequential(nn.Linear(16, 32), nn.GELU(), nn.Linear(32, 16))

    def forward(self, x: Tensor) -> Tensor:
        batch, length, width = x.shape
        q, k, v = self.heads(self.first(x)).view(batch, length, 3, 2, 8).permute(2, 0, 3, 1, 4)
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(y.transpose(1, 2).reshape(batch, length, width))
        return x + self.inner(self.second(x))


class Pictures(nn.Module):
    """Convolutions with batch norm over (batch, 3, 8, 8)."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.norm = nn.Conv2d(3, 8, 3, padding=1, bias=False), nn.BatchNorm2d(8)
        self.second, self.last = nn.Conv2d(8, 4, 3), nn.Linear(4, 5)

    def forward(self, x: Tensor) -> Tensor:
        x = F.max_pool2d(F.relu(self.norm(self.first(x))), 2)
        return self.last(F.adaptive_avg_pool2d(F.silu(self.second(x)), 1).flatten(1))


class Groups(nn.Module):
    """Group norm over (batch, 6, 9, 5), contiguous and channels-last, of groups of three channels and of two."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.GroupNorm(2, 6), nn.GroupNorm(3, 6, affine=False)
        self.scale = nn.Parameter(torch.full((6, 1, 1), 1.5))  # eager's backward dies of a norm of what needs no grad

    def forward(self, x: Tensor) -> Tensor:
        x = x * self.scale
        last = (x + 3).contiguous(memory_format=torch.channels_last)
        return torch.tanh(self.first(x)) + self.second(last) * self.first(last * 2)


class Words(nn.Module):
    """An embedding of (batch, 4) tokens, averaged."""

    def __init__(self) -> None:
        super().__init__()
        self.table, self.last = nn.Embedding(11, 6), nn.Linear(6, 11)

    def forward(self, i: Tensor) -> Tensor:
        return self.last(torch.tanh(self.table(i))).mean(1)


def perceptron() -> nn.Module:
    return nn.Sequential(nn.Linear(24, 32), nn.GELU(), nn.LayerNorm(32), nn.Dropout(0.3), nn.Linear(32, 5))


MODELS: dict[str, tuple[Callable[[], nn.Module], Callable[[int, str], tuple[Any, ...]]]] = {
    "perceptron": (perceptron, matrix),
    "block": (Block, lambda rows, device: (torch.randn(rows, 6, 16, device=device),)),
    "pictures": (Pictures, lambda rows, device: (torch.randn(rows, 3, 8, 8, device=device),)),
    "groups": (Groups, lambda rows, device: (torch.randn(rows, 6, 9, 5, device=device),)),
    "words": (Words, lambda rows, device: (torch.randint(0, 11, (rows, 4), device=device),)),
}


def loss_of(result: Tensor) -> Tensor:
    """Cross entropy against fixed classes, or squares for results of more dimensions."""
    if result.dim() > 2:
        return result.float().square().mean()
    return F.cross_entropy(result.float(), torch.arange(len(result), device=result.device) % result.shape[1])
