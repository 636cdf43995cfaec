"""Draws modules with makers of their arguments: other layers, widths, outputs and habits each time."""

from __future__ import annotations

from collections.abc import Callable
from random import Random
from typing import Any

import torch
from torch import nn
from torch.nn import functional as F

Inputs = Callable[[Random], tuple[Any, ...]]
ACTIVATIONS = (nn.ReLU, nn.GELU, nn.SiLU, nn.Tanh, nn.ELU, nn.Hardswish, nn.Softplus)


def drawn(random: Random) -> tuple[str, nn.Module, Inputs]:
    """A family's name, one module of it and what makes arguments of sizes that differ from call to call."""
    family = random.choice(FAMILIES)
    module, inputs = family(random)
    return family.__name__, module, inputs


class Residual(nn.Module):
    """Adds what its layers give to their input, or multiplies it by a gate of it."""

    def __init__(self, inner: nn.Module, gated: bool) -> None:
        super().__init__()
        self.inner, self.gated = inner, gated

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.inner(x)
        return x * torch.sigmoid(y) if self.gated else x + y


def perceptron(random: Random) -> tuple[nn.Module, Inputs]:
    width = random.choice((5, 8, 16, 33))
    layers: list[nn.Module] = []
    for _ in range(random.randint(1, 5)):
        norm = random.choice((nn.LayerNorm, nn.RMSNorm, nn.BatchNorm1d, None))
        inner = [nn.Linear(width, width, bias=random.random() < 0.8), random.choice(ACTIVATIONS)()]
        inner += [norm(width)] if norm is not None else [nn.Dropout(0.2)]
        layers.append(Residual(nn.Sequential(*inner), random.random() < 0.3))
    return nn.Sequential(*layers), lambda r: (torch.randn(r.randint(2, 40), width),)


def pictures(random: Random) -> tuple[nn.Module, Inputs]:
    channels = random.choice((3, 4, 8))
    layers: list[nn.Module] = []
    for _ in range(random.randint(1, 4)):
        groups = random.choice((1, channels))
        convolution = nn.Conv2d(channels, channels, random.choice((1, 3)), padding="same", groups=groups)
        norm = random.choice((nn.BatchNorm2d(channels), nn.GroupNorm(1, channels), nn.Identity()))
        layers.append(Residual(nn.Sequential(convolution, norm, random.choice(ACTIVATIONS)()), False))
    pool = random.choice((nn.AvgPool2d(2), nn.MaxPool2d(2), nn.AdaptiveAvgPool2d(2)))
    return nn.Sequential(*layers, pool), lambda r: (torch.randn(r.randint(1, 4), channels, *[r.randint(4, 20)] * 2),)


class Attention(nn.Module):
    """Causal self-attention with a cache of keys and values that it returns, as decoders do."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.norm = nn.LayerNorm(width)

    def forward(self, x: torch.Tensor, past: tuple[torch.Tensor, ...] | None = None) -> Any:
        parts = self.qkv(self.norm(x)).chunk(3, -1)
        q, k, v = (part.unflatten(-1, (self.heads, -1)).transpose(1, 2) for part in parts)
        if past is not None:
            k, v = torch.cat([past[0], k], 2), torch.cat([past[1], v], 2)
        y = F.scaled_dot_product_attention(q, k, v, is_causal=past is None)
        return x + self.out(y.transpose(1, 2).flatten(2)), (k, v)


class Decoder(nn.Module):
    """Embedding, attention blocks and a head tied to the embedding; gives logits and caches."""

    def __init__(self, width: int, heads: int, depth: int) -> None:
        super().__init__()
        self.embed = nn.Embedding(50, width)
        self.blocks = nn.ModuleList(Attention(width, heads) for _ in range(depth))

    def forward(self, tokens: torch.Tensor) -> dict[str, Any]:
        x, caches = self.embed(tokens), []
        for block in self.blocks:
            x, cache = block(x)
            caches.append(cache)
        return {"logits": x @ self.embed.weight.t(), "caches": caches}


def text(random: Random) -> tuple[nn.Module, Inputs]:
    heads = random.choice((1, 2, 4))
    module = Decoder(heads * random.choice((4, 8)), heads, random.randint(1, 3))
    return module, lambda r: (torch.randint(0, 50, (r.randint(1, 4), r.randint(2, 24))),)


def encoder(random: Random) -> tuple[nn.Module, Inputs]:
    layer = nn.TransformerEncoderLayer(16, random.choice((1, 2, 4)), 32, 0.1, batch_first=True)
    module = nn.TransformerEncoder(layer, random.randint(1, 2), enable_nested_tensor=False)
    return module, lambda r: (torch.randn(r.randint(1, 4), r.randint(2, 24), 16),)


class Recurrent(nn.Module):
    """A cell unrolled in Python over the steps of its input; the number of turns is a size."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.gates = nn.Linear(2 * width, 2 * width)

    def forward(self, x: torch.Tensor) -> list[torch.Tensor]:
        state, states = torch.zeros_like(x[:, 0]), []
        for step in range(x.shape[1]):
            update, new = self.gates(torch.cat([x[:, step], state], -1)).chunk(2, -1)
            state = state + torch.sigmoid(update) * (torch.tanh(new) - state)
            states.append(state)
        return states


def recurrent(random: Random) -> tuple[nn.Module, Inputs]:
    width = random.choice((3, 8))
    return Recurrent(width), lambda r: (torch.randn(r.randint(1, 5), r.choice((2, 3, 5)), width),)


class Branching(nn.Module):
    """Reads values of tensors, counts its calls in a number and a buffer, and takes a number as an argument."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.linear = nn.Linear(width, width)
        self.calls = 0
        self.register_buffer("average", torch.zeros(width))

    def forward(self, x: torch.Tensor, scale: float, deep: bool) -> tuple[torch.Tensor, int]:
        self.calls += 1
        y = self.linear(x) * scale
        with torch.no_grad():
            self.average.mul_(0.9).add_(y.mean(0), alpha=0.1)
        if deep:
            y = y + F.softmax(y, -1)
        if y.sum() > 0:
            y = y - self.average
        return y, self.calls


def branching(random: Random) -> tuple[nn.Module, Inputs]:
    width = random.choice((4, 9))
    return Branching(width), lambda r: (torch.randn(r.randint(2, 9), width), r.uniform(0.5, 2.0), r.random() < 0.5)


FAMILIES = (perceptron, pictures, text, encoder, recurrent, branching)
