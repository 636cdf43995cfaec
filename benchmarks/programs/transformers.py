"""Whole nets of texts, series, recommendations and of acting: transformers, recurrent nets, state spaces."""

# mypy: disable-error-code="no-any-return"

from __future__ import annotations

import math

import torch
from torch import Tensor, nn, rand, randint, randn
from torch.nn import functional as F

from benchmarks.programs.program import Inputs, program

HALF = torch.bfloat16


def tokens(batch: int, length: int, words: int = 8000) -> Inputs:
    """A batch of texts."""
    return lambda n: [randint(words, (n(batch, 1), n(length, 32)))]


class SelfAttention(nn.Module):
    """Causal or not, by torch's attention or by hand."""

    def __init__(self, width: int, heads: int, causal: bool = False, by_hand: bool = False) -> None:
        super().__init__()
        self.inward, self.outward = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.heads, self.causal, self.by_hand = heads, causal, by_hand

    def forward(self, x: Tensor) -> Tensor:
        b, t, c = x.shape
        q, k, v = (one.view(b, t, self.heads, -1).transpose(1, 2) for one in self.inward(x).split(c, dim=2))
        if self.by_hand:
            scores = (q @ k.transpose(-2, -1)) * (1.0 / math.sqrt(k.size(-1)))
            if self.causal:
                mask = torch.tril(torch.ones(t, t, device=x.device))
                scores = scores.masked_fill(mask == 0, float("-inf"))
            y = F.softmax(scores, dim=-1) @ v
        else:
            y = F.scaled_dot_product_attention(q, k, v, is_causal=self.causal)
        return self.outward(y.transpose(1, 2).reshape(b, t, c))


class Block(nn.Module):
    """Attention and a feed-forward net, with norms before them."""

    def __init__(self, width: int, heads: int, causal: bool = False, by_hand: bool = False) -> None:
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.attention = SelfAttention(width, heads, causal, by_hand)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.attention(self.norm1(x))
        return x + self.down(F.gelu(self.up(self.norm2(x))))


@program(3, tokens(8, 512), HALF)
class Gpt(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.words, self.places = nn.Embedding(8000, 512), nn.Embedding(512, 512)
        self.blocks = nn.ModuleList(Block(512, 8, causal=True) for _ in range(4))
        self.norm, self.head = nn.LayerNorm(512), nn.Linear(512, 8000, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        x = self.words(x) + self.places(torch.arange(x.shape[1], device=x.device))
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(x))


@program(3, lambda n: [randn(n(16, 1), n(512, 32), 768)])
class MinimalBlock(Block):
    def __init__(self) -> None:
        super().__init__(768, 8, causal=True, by_hand=True)


@program(3, lambda n: [randn(n(16, 1), n(1024, 32), 768)])
class ReluAttention(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inward, self.heads = nn.Linear(768, 3 * 768), 12
        self.register_buffer("mask", torch.tril(torch.ones(1024, 1024)))

    def forward(self, x: Tensor) -> Tensor:
        b, t, c = x.shape
        q, k, v = (one.view(b, t, self.heads, -1).transpose(1, 2) for one in self.inward(x).chunk(3, -1))
        scores = (q @ k.transpose(-2, -1)) / math.sqrt(k.size(-1))
        scores = scores.masked_fill(self.mask[:t, :t] == 0, float("-inf"))  # type: ignore[index]
        return (F.relu(scores) @ v).transpose(1, 2).reshape(b, t, c)


@program(3, tokens(16, 256))
class Bert(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.words, self.places, self.norm = nn.Embedding(8000, 384), nn.Embedding(512, 384), nn.LayerNorm(384)
        layer = nn.TransformerEncoderLayer(384, 6, 1536, activation="gelu", batch_first=True)
        self.encoder = nn.TransformerEncoder(layer, 4, enable_nested_tensor=False)
        self.out = nn.Linear(384, 2)

    def forward(self, x: Tensor) -> Tensor:
        y = self.norm(self.words(x) + self.places(torch.arange(x.shape[1], device=x.device)))
        return self.out(torch.tanh(self.encoder(y)[:, 0]))


class RmsNorm(nn.Module):
    """As Llama has it."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width))

    def forward(self, x: Tensor) -> Tensor:
        wide = x.float()
        return self.weight * (wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + 1e-6)).to(x.dtype)


class LlamaBlock(nn.Module):
    """Rotary positions, keys that several heads share, a gated net."""

    def __init__(self, width: int, heads: int, groups: int) -> None:
        super().__init__()
        self.heads, self.groups, self.size = heads, groups, width // heads
        self.norm1, self.norm2 = RmsNorm(width), RmsNorm(width)
        self.q = nn.Linear(width, width, bias=False)
        self.k, self.v = (nn.Linear(width, groups * self.size, bias=False) for _ in range(2))
        self.o = nn.Linear(width, width, bias=False)
        self.gate, self.up = (nn.Linear(width, 3 * width, bias=False) for _ in range(2))
        self.down = nn.Linear(3 * width, width, bias=False)

    def turned(self, x: Tensor) -> Tensor:
        half = self.size // 2
        steps = 1.0 / 10000 ** (torch.arange(half, device=x.device, dtype=torch.float32) / half)
        angles = torch.arange(x.shape[2], device=x.device, dtype=torch.float32)[:, None] * steps
        angles = torch.cat([angles, angles], -1)
        other = torch.cat([-x[..., half:], x[..., :half]], -1)
        return x * angles.cos().to(x.dtype) + other * angles.sin().to(x.dtype)

    def forward(self, x: Tensor) -> Tensor:
        b, t, c = x.shape
        y = self.norm1(x)
        q = self.turned(self.q(y).view(b, t, self.heads, -1).transpose(1, 2))
        k = self.turned(self.k(y).view(b, t, self.groups, -1).transpose(1, 2))
        v = self.v(y).view(b, t, self.groups, -1).transpose(1, 2)
        k, v = (one.repeat_interleave(self.heads // self.groups, dim=1) for one in (k, v))
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.o(y.transpose(1, 2).reshape(b, t, c))
        y = self.norm2(x)
        return x + self.down(F.silu(self.gate(y)) * self.up(y))


@program(3, tokens(4, 512), HALF)
class Llama(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.words = nn.Embedding(8000, 512)
        self.blocks = nn.ModuleList(LlamaBlock(512, 8, 2) for _ in range(4))
        self.norm, self.head = RmsNorm(512), nn.Linear(512, 8000, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        x = self.words(x)
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(x))


@program(3, lambda n: [randn(n(32, 1), 3, n(224, 64), n(224, 64))], HALF)
class VisionTransformer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.patches, self.first = nn.Conv2d(3, 384, 16, 16), nn.Parameter(torch.randn(1, 1, 384))
        self.places = nn.Parameter(torch.randn(1, 197, 384))
        self.blocks = nn.Sequential(*[Block(384, 6) for _ in range(4)])
        self.norm, self.head = nn.LayerNorm(384), nn.Linear(384, 1000)

    def forward(self, x: Tensor) -> Tensor:
        y = self.patches(x).flatten(2).transpose(1, 2)
        y = torch.cat([self.first.expand(len(y), -1, -1), y], 1)
        y = self.blocks(y + self.places[:, : y.shape[1]])
        return self.head(self.norm(y)[:, 0])


class WindowBlock(nn.Module):
    """Attention in windows of pictures, shifted or not, with a bias for each pair of places."""

    def __init__(self, width: int, heads: int, shift: int) -> None:
        super().__init__()
        self.norm1, self.norm2, self.shift, self.heads = nn.LayerNorm(width), nn.LayerNorm(width), shift, heads
        self.inward, self.outward = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.table = nn.Parameter(torch.randn(13 * 13, heads) * 0.02)
        places = torch.stack(torch.meshgrid(torch.arange(7), torch.arange(7), indexing="ij")).flatten(1)
        apart = places[:, :, None] - places[:, None] + 6
        self.register_buffer("index", apart[0] * 13 + apart[1])
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: Tensor) -> Tensor:
        b, h, w, c = x.shape
        y = torch.roll(self.norm1(x), (-self.shift, -self.shift), (1, 2)) if self.shift else self.norm1(x)
        y = y.view(b, h // 7, 7, w // 7, 7, c).transpose(2, 3).reshape(-1, 49, c)
        q, k, v = self.inward(y).view(-1, 49, 3, self.heads, c // self.heads).permute(2, 0, 3, 1, 4)
        bias = self.table[self.index.flatten()].view(49, 49, -1).permute(2, 0, 1)  # type: ignore[operator]
        y = torch.softmax(q @ k.transpose(-2, -1) * (c // self.heads) ** -0.5 + bias, dim=-1) @ v
        y = self.outward(y.transpose(1, 2).reshape(-1, 49, c))
        y = y.view(b, h // 7, w // 7, 7, 7, c).transpose(2, 3).reshape(b, h, w, c)
        x = x + (torch.roll(y, (self.shift, self.shift), (1, 2)) if self.shift else y)
        return x + self.down(F.gelu(self.up(self.norm2(x))))


@program(3, lambda n: [randn(n(16, 1), 3, n(224, 56), n(224, 56))])
class Swin(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.patches = nn.Conv2d(3, 96, 4, 4)
        self.blocks = nn.ModuleList(WindowBlock(96, 3, shift) for shift in (0, 3, 0, 3))
        self.merge, self.head = nn.Linear(384, 192), nn.Linear(192, 1000)

    def forward(self, x: Tensor) -> Tensor:
        y = self.patches(x).permute(0, 2, 3, 1)
        for block in self.blocks:
            y = block(y)
        y = torch.cat([y[:, 0::2, 0::2], y[:, 1::2, 0::2], y[:, 0::2, 1::2], y[:, 1::2, 1::2]], -1)
        return self.head(self.merge(y).mean((1, 2)))


@program(3, lambda n: [randn(n(32, 1), 196, 384)])
class MlpMixer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norms = nn.ModuleList(nn.LayerNorm(384) for _ in range(8))
        self.across = nn.ModuleList(
            nn.Sequential(nn.Linear(196, 256), nn.GELU(), nn.Linear(256, 196)) for _ in range(4)
        )
        self.along = nn.ModuleList(nn.Sequential(nn.Linear(384, 768), nn.GELU(), nn.Linear(768, 384)) for _ in range(4))

    def forward(self, x: Tensor) -> Tensor:
        for i, (across, along) in enumerate(zip(self.across, self.along, strict=True)):
            x = x + across(self.norms[2 * i](x).transpose(1, 2)).transpose(1, 2)
            x = x + along(self.norms[2 * i + 1](x))
        return x.mean(1)


@program(3, lambda n: [randn(n(16, 1), n(256, 64), 384), randn(n(16, 1), 256)])
class DiffusionTransformer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.attention = nn.ModuleList(SelfAttention(384, 6) for _ in range(3))
        self.nets = nn.ModuleList(
            nn.Sequential(nn.Linear(384, 1536), nn.GELU("tanh"), nn.Linear(1536, 384)) for _ in range(3)
        )
        self.modulation = nn.ModuleList(nn.Linear(256, 6 * 384) for _ in range(3))

    def forward(self, x: Tensor, condition: Tensor) -> Tensor:
        for attention, net, modulation in zip(self.attention, self.nets, self.modulation, strict=True):
            a, b, c, d, e, f = modulation(F.silu(condition))[:, None].chunk(6, -1)
            x = x + c * attention(F.layer_norm(x, (384,)) * (1 + b) + a)
            x = x + f * net(F.layer_norm(x, (384,)) * (1 + e) + d)
        return x


class Residual(nn.Module):
    """A block of a diffusion net: the time is added between two convolutions."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm1, self.norm2 = nn.GroupNorm(8, width), nn.GroupNorm(8, width)
        self.conv1, self.conv2 = (nn.Conv2d(width, width, 3, padding=1) for _ in range(2))
        self.time = nn.Linear(256, width)

    def forward(self, x: Tensor, time: Tensor) -> Tensor:
        y = self.conv1(F.silu(self.norm1(x))) + self.time(F.silu(time))[:, :, None, None]
        return x + self.conv2(F.silu(self.norm2(y)))


@program(3, lambda n: [randn(n(8, 1), 4, n(64, 16), n(64, 16)), randint(1000, (n(8, 1),))])
class Denoiser(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Conv2d(4, 128, 3, padding=1), nn.Conv2d(128, 4, 3, padding=1)
        self.blocks = nn.ModuleList(Residual(128) for _ in range(4))
        self.time = nn.Linear(256, 256)
        self.q, self.out = nn.Conv2d(128, 384, 1), nn.Conv2d(128, 128, 1)

    def forward(self, x: Tensor, time: Tensor) -> Tensor:
        steps = torch.exp(-math.log(10000) * torch.arange(128, device=x.device) / 128)
        angles = time[:, None] * steps
        t = self.time(torch.cat([angles.cos(), angles.sin()], -1).to(self.time.weight.dtype))
        x = self.first(x)
        x = self.blocks[1](self.blocks[0](x, t), t)
        b, c, h, w = x.shape
        q, k, v = (one.reshape(b, 4, c // 4, h * w).transpose(2, 3) for one in self.q(x).chunk(3, 1))
        y = F.scaled_dot_product_attention(q, k, v).transpose(2, 3).reshape(b, c, h, w)
        x = F.interpolate(F.avg_pool2d(x + self.out(y), 2), scale_factor=2.0, mode="nearest")
        return self.last(self.blocks[3](self.blocks[2](x, t), t))


@program(3, lambda n: [randn(n(8, 1), n(1024, 32), 256)])
class Mamba(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inward, self.outward = nn.Linear(256, 1024), nn.Linear(512, 256)
        self.conv = nn.Conv1d(512, 512, 4, groups=512, padding=3)
        self.parts = nn.Linear(512, 48)
        self.step = nn.Linear(16, 512)
        self.decay = nn.Parameter(torch.log(torch.arange(1.0, 17.0)).repeat(512, 1))

    def forward(self, x: Tensor) -> Tensor:
        x, gate = self.inward(x).chunk(2, -1)
        x = F.silu(self.conv(x.transpose(1, 2))[..., : x.shape[1]].transpose(1, 2))
        step, inward, outward = self.parts(x).split([16, 16, 16], -1)
        step = F.softplus(self.step(step))
        decay = torch.cumsum(step, 1)[..., None] * -torch.exp(self.decay) * 0.01
        states = (step * x)[..., None] * inward[:, :, None]
        states = torch.cumsum(states * torch.exp(-decay).clamp(max=1e4), 1) * torch.exp(decay)
        y = (states * outward[:, :, None]).sum(-1)
        return self.outward(y * F.silu(gate))


@program(3, lambda n: [randn(n(64, 2), n(32, 8), 128)])
class GatedRecurrence(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inward, self.state = nn.Linear(128, 3 * 256), nn.Linear(256, 3 * 256)

    def forward(self, x: Tensor) -> Tensor:
        h = torch.zeros(len(x), 256, device=x.device, dtype=x.dtype)
        for t in range(x.shape[1]):
            r, z, n = self.inward(x[:, t]).chunk(3, -1)
            a, b, c = self.state(h).chunk(3, -1)
            z = torch.sigmoid(z + b)
            h = (1 - z) * torch.tanh(n + torch.sigmoid(r + a) * c) + z * h
        return h


@program(3, lambda n: [randn(n(64, 2), n(128, 8), 128)])
class Lstm(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.lstm, self.out = nn.LSTM(128, 256, 2, batch_first=True), nn.Linear(256, 10)

    def forward(self, x: Tensor) -> Tensor:
        return self.out(self.lstm(x)[0][:, -1])


@program(3, lambda n: [randn(n(8192, 64), 13), randint(1000, (n(8192, 64), 26))])
class Recommender(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.tables = nn.ModuleList(nn.Embedding(1000, 64) for _ in range(26))
        self.bottom = nn.Sequential(nn.Linear(13, 256), nn.ReLU(), nn.Linear(256, 64), nn.ReLU())
        self.top = nn.Sequential(nn.Linear(64 + 351, 256), nn.ReLU(), nn.Linear(256, 1))

    def forward(self, dense: Tensor, sparse: Tensor) -> Tensor:
        x = self.bottom(dense)
        features = torch.stack([x, *[table(sparse[:, i]) for i, table in enumerate(self.tables)]], 1)
        i, j = torch.tril_indices(27, 27, offset=-1, device=dense.device)
        products = torch.bmm(features, features.transpose(1, 2))[:, i, j]
        return torch.sigmoid(self.top(torch.cat([x, products], 1)))


@program(3, lambda n: [randn(n(4096, 32), 8, 128), randint(0, 2, (n(4096, 32),)), randn(n(4096, 32))])
class DuelingValues(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Linear(1024, 512), nn.LayerNorm(512), nn.SiLU(), nn.Linear(512, 512), nn.SiLU())
        self.value, self.advantage = nn.Linear(512, 1), nn.Linear(512, 2)

    def forward(self, states: Tensor, actions: Tensor, rewards: Tensor) -> Tensor:
        y = self.body(states.flatten(1))
        gain = self.advantage(y)
        q = self.value(y) + gain - gain.mean(-1, keepdim=True)
        target = rewards + 0.99 * q.max(-1).values
        return F.smooth_l1_loss(q.gather(1, actions[:, None]).squeeze(1), target)


@program(3, lambda n: [randn(n(2048, 32), 1024)])
class Autoencoder(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.encoder = nn.Sequential(nn.Linear(1024, 512), nn.ELU(), nn.Linear(512, 64))
        self.decoder = nn.Sequential(nn.Linear(32, 512), nn.ELU(), nn.Linear(512, 1024))

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        mean, spread = self.encoder(x).chunk(2, -1)
        loss = -0.5 * (1 + spread - mean**2 - spread.exp()).sum(1).mean()
        return torch.sigmoid(self.decoder(mean)), loss


@program(3, lambda n: [randn(n(8, 1), n(1024, 32), 512), rand(n(8, 1), n(1024, 32)) > 0.1])
class MixtureOfExperts(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm, self.router = RmsNorm(512), nn.Linear(512, 8, bias=False)
        self.up, self.gate, self.down = (nn.Parameter(torch.randn(8, *sizes) * 0.03) for sizes in
                                         ((512, 512), (512, 512), (512, 512)))  # fmt: skip

    def forward(self, x: Tensor, kept: Tensor) -> Tensor:
        y = self.norm(x).flatten(0, 1)
        weights, chosen = self.router(y).softmax(-1).topk(2)
        share = torch.zeros(len(y), 8, device=x.device, dtype=x.dtype).scatter_(1, chosen, weights)
        hidden = F.silu(torch.einsum("nd,edf->enf", y, self.gate)) * torch.einsum("nd,edf->enf", y, self.up)
        found = torch.einsum("enf,efd->end", hidden, self.down)
        return x + (found * share.t()[..., None]).sum(0).view_as(x) * kept[..., None]
