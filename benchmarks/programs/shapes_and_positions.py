"""Programs of one operator about where elements lie: windows, pictures, positions, gathers, rotations, sampling."""

# mypy: disable-error-code="no-any-return"

from __future__ import annotations

import torch
from torch import Tensor, nn, rand, randint, randn
from torch.nn import functional as F

from benchmarks.programs.program import Size, program

HALF = torch.bfloat16


def pictures(n: Size) -> list[Tensor]:
    """A batch of activations of a convolutional net."""
    return [randn(n(32, 2), 64, n(256, 28), n(256, 28))]


def photos(n: Size) -> list[Tensor]:
    """Colours between 0 and 1."""
    return [rand(n(32, 2), 3, n(512, 48), n(512, 48))]


# ---- pooling


@program(1, pictures)
def max_pool(x: Tensor) -> Tensor:
    return F.max_pool2d(x, 3, stride=2, padding=1)


@program(1, pictures)
def dilated_max_pool(x: Tensor) -> Tensor:
    return F.max_pool2d(x, 3, stride=1, padding=1, dilation=2)


@program(1, lambda n: [randn(n(64, 2), 192, n(8192, 256))])
def dilated_max_pool_of_series(x: Tensor) -> Tensor:
    return F.max_pool1d(x, 4, stride=2, padding=2, dilation=3)


@program(1, lambda n: [randn(n(16, 2), 32, n(64, 12), n(64, 12), n(64, 12))])
def dilated_max_pool_of_volumes(x: Tensor) -> Tensor:
    return F.max_pool3d(x, 3, stride=2, padding=1, dilation=3)


@program(1, pictures)
def average_pool(x: Tensor) -> Tensor:
    return F.avg_pool2d(x, 5, stride=2, padding=2)


@program(1, lambda n: [randn(n(16, 2), 32, n(64, 12), n(64, 12), n(64, 12))])
def average_pool_of_volumes(x: Tensor) -> Tensor:
    return F.avg_pool3d(x, 3, stride=2, padding=1)


@program(1, lambda n: [randn(n(64, 2), 512, n(32, 8), n(32, 8))])
def adaptive_average_pool(x: Tensor) -> Tensor:
    return F.adaptive_avg_pool2d(x, 7)


@program(1, pictures)
def blurred_downsampling(x: Tensor) -> Tensor:
    row = torch.tensor([1.0, 3.0, 3.0, 1.0], device=x.device, dtype=x.dtype)
    kernel = (row[:, None] * row[None, :]) / 64
    weight = kernel.expand(x.shape[1], 1, 4, 4)
    return F.conv2d(F.pad(x, (1, 1, 1, 1), mode="reflect"), weight, stride=2, groups=x.shape[1])


# ---- convolutions


@program(1, lambda n: [randn(n(16, 2), 32, n(128, 20), n(128, 20))])
class Conv(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(32, 64, 3, padding=1)

    def forward(self, x: Tensor) -> Tensor:
        return self.conv(x)


@program(1, lambda n: [randn(n(16, 2), 32, n(128, 20), n(128, 20))])
class DilatedConv(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(32, 64, (3, 5), padding=(2, 4), dilation=(2, 3))

    def forward(self, x: Tensor) -> Tensor:
        return self.conv(x)


@program(1, lambda n: [randn(n(16, 2), 64, n(4096, 128))])
class ConvOfSeries(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv1d(64, 128, 5, stride=2, dilation=2)

    def forward(self, x: Tensor) -> Tensor:
        return self.conv(x)


@program(1, lambda n: [randn(n(16, 2), 64, n(128, 20), n(128, 20))])
class DepthwiseConv(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(64, 64, 3, padding=1, groups=64, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        return self.conv(x)


@program(1, lambda n: [randn(n(16, 2), 64, n(128, 20), n(128, 20))])
class SeparableConv(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.depthwise = nn.Conv2d(64, 64, 3, padding=1, groups=64)
        self.pointwise = nn.Conv2d(64, 128, 1)

    def forward(self, x: Tensor) -> Tensor:
        return self.pointwise(self.depthwise(x))


@program(1, lambda n: [randn(n(8, 1), 32, n(32, 8), n(32, 8), n(32, 8))])
class ConvOfVolumes(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv3d(32, 64, (3, 5, 3), bias=False)

    def forward(self, x: Tensor) -> Tensor:
        return self.conv(x)


@program(1, lambda n: [randn(n(16, 2), 64, n(64, 12), n(64, 12))])
class TransposedConv(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.ConvTranspose2d(64, 32, 4, stride=2, padding=1)

    def forward(self, x: Tensor) -> Tensor:
        return self.conv(x)


# ---- pictures


@program(1, photos)
def bilinear_to_twice(x: Tensor) -> Tensor:
    return F.interpolate(x, scale_factor=2, mode="bilinear", align_corners=False)


@program(1, pictures)
def bilinear_of_features(x: Tensor) -> Tensor:
    return F.interpolate(x, size=(x.shape[2] // 2, x.shape[3] // 2), mode="bilinear", align_corners=True)


@program(1, photos)
def bicubic_to_twice(x: Tensor) -> Tensor:
    return F.interpolate(x, scale_factor=2, mode="bicubic", align_corners=False)


@program(1, pictures)
def nearest_to_twice(x: Tensor) -> Tensor:
    return F.interpolate(x, scale_factor=2, mode="nearest")


@program(1, pictures)
def pixel_shuffle(x: Tensor) -> Tensor:
    return F.pixel_shuffle(x, 4)


@program(1, lambda n: [randn(n(32, 2), 64, n(128, 16), n(128, 16)), rand(n(32, 2), n(128, 16), n(128, 16), 2) * 2 - 1])
def grid_sample(x: Tensor, grid: Tensor) -> Tensor:
    return F.grid_sample(x, grid, align_corners=False)


@program(1, photos)
def hue_saturation_value(picture: Tensor) -> Tensor:
    most, place = picture.max(dim=1)
    least = picture.amin(dim=1)
    spread = most - least
    r, g, b = picture.unbind(1)
    safe = torch.where(spread == 0, torch.ones_like(spread), spread)
    hue = torch.stack([((g - b) / safe) % 6, (b - r) / safe + 2, (r - g) / safe + 4], 1)
    hue = hue.gather(1, place[:, None]).squeeze(1) / 6
    return torch.stack([hue, spread / (most + 1e-8), most], 1)


@program(1, photos)
def sobel_edges(picture: Tensor) -> Tensor:
    across = torch.tensor([[-1.0, 0.0, 1.0], [-2.0, 0.0, 2.0], [-1.0, 0.0, 1.0]], device=picture.device)
    weight = torch.stack([across, across.t()])[:, None].to(picture.dtype)
    grey = picture.mean(1, keepdim=True)
    edges = F.conv2d(grey, weight, padding=1)
    return torch.sqrt(edges.pow(2).sum(1, keepdim=True) + 1e-6)


@program(1, photos)
def normalised_pictures(picture: Tensor) -> Tensor:
    mean = torch.tensor([0.485, 0.456, 0.406], device=picture.device).view(1, 3, 1, 1)
    deviation = torch.tensor([0.229, 0.224, 0.225], device=picture.device).view(1, 3, 1, 1)
    return (picture - mean) / deviation


@program(1, lambda n: [randn(n(64, 2), 96, n(112, 14), n(112, 14))])
def windows_of_attention(x: Tensor) -> Tensor:
    b, c, h, w = x.shape
    x = torch.roll(x, shifts=(-3, -3), dims=(2, 3))
    x = x.view(b, c, h // 7, 7, w // 7, 7).permute(0, 2, 4, 3, 5, 1)
    return x.reshape(-1, 49, c)


@program(1, lambda n: [randn(n(16, 2), 16, n(128, 16), n(128, 16))])
def unfolded_patches(x: Tensor) -> Tensor:
    return F.unfold(x, 3, padding=1)


@program(1, lambda n: [rand(n(4000, 40), 4) * 100, rand(n(4000, 40), 4) * 100])
def overlaps_of_boxes(one: Tensor, other: Tensor) -> Tensor:
    one = torch.cat([one[:, :2], one[:, :2] + one[:, 2:]], 1)
    other = torch.cat([other[:, :2], other[:, :2] + other[:, 2:]], 1)
    areas = (one[:, 2:] - one[:, :2]).prod(1), (other[:, 2:] - other[:, :2]).prod(1)
    low = torch.max(one[:, None, :2], other[None, :, :2])
    high = torch.min(one[:, None, 2:], other[None, :, 2:])
    both = (high - low).clamp(min=0).prod(2)
    return both / (areas[0][:, None] + areas[1][None] - both)


# ---- positions


@program(1, lambda n: [randn(n(1_000_000, 2000), 64), randint(n(100_000, 500), (n(1_000_000, 2000),))])
def scatter_into_zeros(values: Tensor, index: Tensor) -> Tensor:
    out = torch.zeros(100_000, values.shape[1], device=values.device, dtype=values.dtype)
    return out.scatter_add_(0, index[:, None].expand_as(values), values)


@program(1, lambda n: [randn(n(100_000, 500), 64), randint(n(100_000, 500), (2, n(1_000_000, 2000)))])
def messages_along_edges(nodes: Tensor, edges: Tensor) -> Tensor:
    source, target = edges
    return torch.zeros_like(nodes).index_add_(0, target, nodes[source])


@program(1, lambda n: [randn(n(4096, 64), n(4096, 256)), randint(n(4096, 256), (n(4096, 64), n(2048, 100)))])
def gather_of_rows(x: Tensor, index: Tensor) -> Tensor:
    return torch.gather(x, 1, index)


@program(1, lambda n: [randint(50_000, (n(256, 4), n(512, 16)))])
class Embedding(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.words = nn.Embedding(50_000, 512)
        self.places = nn.Embedding(512, 512)

    def forward(self, tokens: Tensor) -> Tensor:
        places = torch.arange(tokens.shape[1], device=tokens.device)
        return self.words(tokens) + self.places(places)


@program(1, lambda n: [randint(100_000, (n(8192, 32), 50))])
class EmbeddingBag(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.bag = nn.EmbeddingBag(100_000, 128, mode="mean")

    def forward(self, items: Tensor) -> Tensor:
        return self.bag(items)


@program(1, lambda n: [randn(n(4096, 16), n(8192, 300))])
def best_of_each_row(x: Tensor) -> tuple[Tensor, Tensor]:
    return torch.topk(x, 8, dim=-1)


@program(1, lambda n: [randn(n(4096, 16), n(4096, 300))])
def sorted_rows(x: Tensor) -> Tensor:
    return torch.sort(x, dim=-1).values


@program(1, lambda n: [randn(n(128, 4), n(50257, 500))])
def likely_tokens(logits: Tensor) -> Tensor:
    chances = torch.softmax(logits / 0.8, dim=-1)
    bound = 0.05 * chances.amax(dim=-1, keepdim=True)
    kept = logits.masked_fill(chances < bound, float("-inf"))
    return torch.softmax(kept, dim=-1)


@program(1, lambda n: [randn(n(65536, 256), n(512, 32)), randn(n(1024, 64), n(512, 32))])
def nearest_codes(x: Tensor, codes: Tensor) -> Tensor:
    distances = x.pow(2).sum(1, keepdim=True) - 2 * x @ codes.T + codes.pow(2).sum(1)
    return codes[distances.argmin(1)]


@program(1, lambda n: [randn(n(2048, 50), 3), randn(n(4096, 60), 3)])
def pairwise_distances(a: Tensor, b: Tensor) -> Tensor:
    return (a[:, None] - b[None]).pow(2).sum(-1).sqrt()


@program(1, lambda n: [randint(256, (n(64, 2), n(256, 16), n(256, 16)))])
def one_hot_labels(labels: Tensor) -> Tensor:
    return F.one_hot(labels % 32, 32).permute(0, 3, 1, 2).float()


@program(1, lambda n: [randn(n(64, 2), n(2048, 50), n(512, 32)), randn(n(64, 2), n(2048, 50), n(512, 32))])
def joined_features(a: Tensor, b: Tensor) -> Tensor:
    return torch.cat([a, b], dim=-1)


@program(1, lambda n: [randn(n(64, 2), n(1024, 50), 8, 64)])
def heads_in_front(x: Tensor) -> Tensor:
    return x.transpose(1, 2).contiguous()


@program(1, lambda n: [randn(n(8, 1), 8, n(2048, 50), 64)])
def repeated_keys(keys: Tensor) -> Tensor:
    b, h, s, d = keys.shape
    return keys[:, :, None].expand(b, h, 4, s, d).reshape(b, h * 4, s, d)


# ---- rotations of positions


def turned(n: Size) -> list[Tensor]:
    """Queries, and the cosines and sines of their positions."""
    angles = torch.arange(n(2048, 40))[:, None] * torch.rand(64)[None]
    return [randn(n(8, 1), n(32, 2), n(2048, 40), 128), angles.cos(), angles.sin()]


@program(1, turned, HALF)
def interleaved_rotary(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    even, odd = x[..., ::2], x[..., 1::2]
    return torch.stack([even * cos - odd * sin, even * sin + odd * cos], dim=-1).flatten(-2)


@program(1, turned, HALF)
def chunked_rotary(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    first, second = x.chunk(2, dim=-1)
    return torch.cat([first * cos - second * sin, second * cos + first * sin], dim=-1)


@program(1, turned, HALF)
def rotate_half(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    cos, sin = torch.cat([cos, cos], -1), torch.cat([sin, sin], -1)
    half = x.shape[-1] // 2
    return x * cos + torch.cat([-x[..., half:], x[..., :half]], -1) * sin


@program(1, lambda n: [randn(n(8, 1), n(16, 2), n(2048, 40), 64), randn(n(2048, 40), 32), randn(n(2048, 40), 32)])
def complex_rotary(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    pairs = torch.view_as_complex(x.reshape(*x.shape[:-1], -1, 2))
    return torch.view_as_real(pairs * torch.complex(cos, sin)).flatten(3)


# ---- numbers in few bits


@program(1, lambda n: [randn(n(8192, 64), n(4096, 256))])
def quantised_by_rows(x: Tensor) -> tuple[Tensor, Tensor]:
    scale = x.abs().amax(dim=-1, keepdim=True) / 127
    return torch.clamp(torch.round(x / scale), -128, 127).to(torch.int8), scale


@program(1, lambda n: [randint(0, 256, (n(4096, 64), n(4096, 128)), dtype=torch.uint8), rand(n(4096, 64), 1)])
def unpacked_weights(packed: Tensor, scale: Tensor) -> Tensor:
    low, high = packed & 15, packed >> 4
    return (torch.stack([low, high], -1).flatten(-2).to(scale.dtype) - 8) * scale


@program(1, lambda n: [randn(n(64, 2), n(480_000, 4000))])
def companded_sound(x: Tensor) -> Tensor:
    x = torch.tanh(x)
    coded = torch.sign(x) * torch.log1p(255 * x.abs()) / torch.log1p(torch.tensor(255.0, device=x.device))
    return ((coded + 1) / 2 * 255 + 0.5).to(torch.int64)
