"""Builds a small U-Net as diffusion models have it: group norm, SiLU, attention, time embedding, skip connections."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn
from torch.nn import functional as F

GROUPS = 8  # of every group norm


def time_embedding(time: Tensor, width: int) -> Tensor:
    """Sines and cosines of the times, (batch,) int64 -> (batch, width) float32 (Ho et al. 2020, appendix B)."""
    half = width // 2
    frequencies = torch.exp(-math.log(10_000) * torch.arange(half, dtype=torch.float32, device=time.device) / half)
    angles = time[:, None].float() * frequencies
    return torch.cat([angles.sin(), angles.cos()], dim=1)


class Block(nn.Module):
    """Two convolutions, the time added between them, and a shortcut: (batch, channels, h, w) to (batch, to, h, w)."""

    def __init__(self, channels: int, to: int, time_width: int) -> None:
        super().__init__()
        self.norm1, self.conv1 = nn.GroupNorm(GROUPS, channels), nn.Conv2d(channels, to, 3, padding=1)
        self.norm2, self.conv2 = nn.GroupNorm(GROUPS, to), nn.Conv2d(to, to, 3, padding=1)
        self.time = nn.Linear(time_width, to)
        self.shortcut = nn.Conv2d(channels, to, 1) if channels != to else nn.Identity()

    def forward(self, x: Tensor, time: Tensor) -> Tensor:
        h = self.conv1(F.silu(self.norm1(x)))
        h = h + self.time(F.silu(time))[:, :, None, None]
        h = self.conv2(F.silu(self.norm2(h)))
        result: Tensor = h + self.shortcut(x)
        return result


class Attention(nn.Module):
    """Self-attention over the pixels, with a shortcut; the shape stays."""

    def __init__(self, channels: int, heads: int = 4) -> None:
        super().__init__()
        self.heads = heads
        self.norm = nn.GroupNorm(GROUPS, channels)
        self.qkv, self.out = nn.Conv2d(channels, 3 * channels, 1), nn.Conv2d(channels, channels, 1)

    def forward(self, x: Tensor) -> Tensor:
        batch, channels, height, width = x.shape
        parts = self.qkv(self.norm(x)).view(batch, 3, self.heads, channels // self.heads, height * width)
        q, k, v = parts.transpose(-1, -2).unbind(1)
        mixed = F.scaled_dot_product_attention(q, k, v).transpose(-1, -2)
        result: Tensor = x + self.out(mixed.reshape(batch, channels, height, width))
        return result


class UNet(nn.Module):
    """Predicts the noise in pictures, (batch, 3, side, side), at the times given, (batch,); `side` is a multiple of 4.

    Three levels of `width`, 2 `width` and 2 `width` channels, attention at the lowest.
    """

    def __init__(self, width: int = 32) -> None:
        super().__init__()
        wide, time_width = 2 * width, 4 * width
        self.width = width
        self.time = nn.Sequential(nn.Linear(width, time_width), nn.SiLU(), nn.Linear(time_width, time_width))
        self.enter = nn.Conv2d(3, width, 3, padding=1)
        self.down = nn.ModuleList([Block(width, width, time_width), Block(width, wide, time_width)])
        self.shrink = nn.ModuleList([nn.Conv2d(size, size, 3, stride=2, padding=1) for size in (width, wide)])
        self.middle1, self.middle2 = Block(wide, wide, time_width), Block(wide, wide, time_width)
        self.attention = Attention(wide)
        self.up = nn.ModuleList([Block(2 * wide, wide, time_width), Block(wide + width, width, time_width)])
        self.grow = nn.ModuleList([nn.Conv2d(size, size, 3, padding=1) for size in (wide, wide)])
        self.leave = nn.Sequential(nn.GroupNorm(GROUPS, width), nn.SiLU(), nn.Conv2d(width, 3, 3, padding=1))

    def forward(self, x: Tensor, time: Tensor) -> Tensor:
        embedded = self.time(time_embedding(time, self.width))
        h, kept = self.enter(x), []
        for block, shrink in zip(self.down, self.shrink, strict=True):
            h = block(h, embedded)
            kept.append(h)
            h = shrink(h)
        h = self.middle2(self.attention(self.middle1(h, embedded)), embedded)
        for block, grow in zip(self.up, self.grow, strict=True):
            h = grow(F.interpolate(h, scale_factor=2.0))
            h = block(torch.cat([h, kept.pop()], dim=1), embedded)
        result: Tensor = self.leave(h)
        return result
