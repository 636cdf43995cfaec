"""Programs of one operator in shapes that differ from the usual: products, norms, reductions, scans, convolutions."""

# mypy: disable-error-code="no-any-return"

from __future__ import annotations

import torch
from torch import Tensor, nn, rand, randint, randn
from torch.nn import functional as F

from benchmarks.programs.program import Size, program

HALF = torch.bfloat16


def rows(n: Size) -> list[Tensor]:
    """Rows of no power of two."""
    return [randn(n(6000, 60), n(12_345, 1001))]


def pictures(n: Size) -> list[Tensor]:
    """A batch of activations whose sides are odd."""
    return [randn(n(32, 2), 48, n(255, 27), n(255, 27))]


def volumes(n: Size) -> list[Tensor]:
    """A batch of small volumes."""
    return [randn(n(8, 2), 32, n(48, 10), n(48, 10), n(48, 10))]


# ---- products


@program(1, lambda n: [randn(n(2047, 100), n(4095, 100)), randn(n(4095, 100), n(3071, 100))])
def product_of_odd_sides(a: Tensor, b: Tensor) -> Tensor:
    return torch.mm(a, b)


@program(1, lambda n: [randn(n(64, 3), n(500, 30), n(700, 30)), randn(n(64, 3), n(700, 30), n(300, 30))])
def batched_product_of_odd_sides(a: Tensor, b: Tensor) -> Tensor:
    return a @ b


@program(1, lambda n: [randn(n(100_000, 1000), 64), randn(64, 16)], HALF)
def tall_and_thin_product(a: Tensor, b: Tensor) -> Tensor:
    return a @ b


@program(1, lambda n: [randn(n(4096, 128), n(4096, 128)), randn(n(4096, 128), n(4096, 128))])
def product_of_symmetric(a: Tensor, b: Tensor) -> Tensor:
    a = (a + a.T) / 2
    return a @ b


@program(1, lambda n: [randn(n(4096, 128), n(4096, 128)).triu(), randn(n(4096, 128), n(4096, 128)).triu()])
def upper_triangle_of_product(a: Tensor, b: Tensor) -> Tensor:
    return torch.triu(torch.matmul(a, b))


@program(1, lambda n: [randn(n(256, 4), n(131_072, 1000)), randn(n(131_072, 1000), 1)])
def wide_matrix_times_column(a: Tensor, b: Tensor) -> Tensor:
    return torch.matmul(a, b)


@program(1, lambda n: [randn(n(4096, 64)), randn(n(4096, 64), n(4096, 64))])
def vector_times_matrix(a: Tensor, b: Tensor) -> Tensor:
    return a @ b


@program(1, lambda n: [randn(n(128, 4), n(1024, 50), n(512, 40)), randn(n(512, 40), n(256, 30))])
def rows_of_volume_times_matrix(a: Tensor, b: Tensor) -> Tensor:
    return torch.matmul(a, b)


@program(1, lambda n: [randn(n(512, 8), n(256, 16)), randn(n(256, 16), n(1024, 16)), randn(n(1024, 16))])
def linear_of_transposed(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    return x @ weight + bias


# ---- activations


@program(1, rows)
def leaky_relu(x: Tensor) -> Tensor:
    return F.leaky_relu(x, negative_slope=0.05)


@program(1, rows, HALF)
def mish(x: Tensor) -> Tensor:
    return F.mish(x)


@program(1, rows)
def hard_sigmoid_and_swish(x: Tensor) -> tuple[Tensor, Tensor]:
    return F.hardsigmoid(x), F.hardswish(x)


@program(1, rows)
def softsign(x: Tensor) -> Tensor:
    return x / (1 + torch.abs(x))


@program(1, rows)
def elu(x: Tensor) -> Tensor:
    return F.elu(x, alpha=0.7)


@program(1, lambda n: [randn(n(32, 2), 2 * n(128, 8), n(96, 12), n(96, 12))])
def gated_channels(x: Tensor) -> Tensor:
    return F.glu(x, dim=1)


# ---- softmax and norms


@program(1, lambda n: [randn(n(256, 8), n(65_535, 4095))], HALF)
def softmax_of_wide_rows(x: Tensor) -> Tensor:
    return torch.softmax(x, dim=-1)


@program(1, rows, HALF)
def log_softmax(x: Tensor) -> Tensor:
    return F.log_softmax(x, dim=1)


@program(1, rows)
def softmin(x: Tensor) -> Tensor:
    return F.softmin(x, dim=1)


@program(1, rows)
def rows_by_their_largest(x: Tensor) -> Tensor:
    return x / x.abs().amax(dim=1, keepdim=True).clamp(min=1e-8)


@program(1, lambda n: [randn(n(64, 4), n(1000, 50), n(768, 70))], HALF)
def normalised_over_time(x: Tensor) -> Tensor:
    return (x - x.mean(1, keepdim=True)) / (x.std(1, keepdim=True) + 1e-5)


@program(1, pictures)
class GroupNormOfOddSides(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.GroupNorm(6, 48)

    def forward(self, x: Tensor) -> Tensor:
        return self.norm(x)


@program(1, pictures)
class InstanceNormWithWeights(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.InstanceNorm2d(48, affine=True)

    def forward(self, x: Tensor) -> Tensor:
        return self.norm(x)


@program(1, lambda n: [randn(n(32, 2), 96, n(56, 7), n(56, 7))])
class LayerNormOverChannels(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(96)

    def forward(self, x: Tensor) -> Tensor:
        return self.norm(x.permute(0, 2, 3, 1)).permute(0, 3, 1, 2)


@program(1, pictures)
def unit_channels(x: Tensor) -> Tensor:
    return F.normalize(x, p=2.0, dim=1)


# ---- reductions and scans


@program(1, lambda n: [randn(n(128, 4), n(1000, 50), n(777, 30))])
def mean_of_the_first(x: Tensor) -> Tensor:
    return x.mean(0)


@program(1, lambda n: [randn(n(128, 4), n(1000, 50), n(777, 30))])
def minimum_of_each_axis(x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    return torch.min(x, dim=0)[0], torch.min(x, dim=1)[0], torch.min(x, dim=2)[0]


@program(1, lambda n: [randn(n(128, 4), n(1000, 50), n(777, 30))], HALF)
def maximum_with_places(x: Tensor) -> tuple[Tensor, Tensor]:
    found = x.max(dim=-1)
    return found.values, found.indices


@program(1, lambda n: [randn(n(128, 4), n(1000, 50), n(777, 30))])
def spread_over_two_axes(x: Tensor) -> Tensor:
    return x.std(dim=(0, 2))


@program(1, lambda n: [rand(n(64, 4), n(777, 50), n(999, 30)) + 0.5])
def product_of_the_middle(x: Tensor) -> Tensor:
    return torch.prod(x, dim=1)


@program(1, lambda n: [randn(n(1 << 25, 1 << 15))])
def norm_of_all(x: Tensor) -> Tensor:
    return torch.linalg.vector_norm(x)


@program(1, lambda n: [randn(n(128, 4), n(4000, 50), n(256, 30))])
def cumsum_over_the_middle(x: Tensor) -> Tensor:
    return torch.cumsum(x, dim=1)


@program(1, lambda n: [randn(n(4000, 40), n(10_000, 999)), rand(n(4000, 40), n(10_000, 999)) > 0.3])
def cumsum_where_masked(x: Tensor, mask: Tensor) -> Tensor:
    return torch.where(mask, x, 0.0).cumsum(1)


@program(1, lambda n: [randn(n(4000, 40), n(10_000, 999))])
def sums_from_the_right(x: Tensor) -> Tensor:
    return x.sum(1, keepdim=True) - x.cumsum(1) + x


@program(1, lambda n: [randn(n(4000, 40), n(10_000, 999)) * 0.1])
def logcumsumexp_of_rows(x: Tensor) -> Tensor:
    return torch.logcumsumexp(x, dim=1)


# ---- losses


@program(1, lambda n: [randn(n(16_384, 64), n(3000, 100)), randn(n(16_384, 64), n(3000, 100))])
def huber(found: Tensor, wanted: Tensor) -> Tensor:
    return F.huber_loss(found, wanted, delta=0.5)


@program(1, lambda n: [randn(n(16_384, 64), n(3000, 100)), rand(n(16_384, 64), n(3000, 100))])
def entropy_of_logits(logits: Tensor, wanted: Tensor) -> Tensor:
    return F.binary_cross_entropy_with_logits(logits, wanted)


@program(1, lambda n: [randn(n(4, 1), 32, n(256, 16), n(256, 16)), randint(32, (n(4, 1), n(256, 16), n(256, 16)))])
def cross_entropy_of_pictures(logits: Tensor, wanted: Tensor) -> Tensor:
    return F.cross_entropy(logits, wanted, ignore_index=0)


@program(1, lambda n: [rand(n(16_384, 64), n(3000, 100)) + 0.1, rand(n(16_384, 64), n(3000, 100)) * 4])
def poisson(found: Tensor, wanted: Tensor) -> Tensor:
    return F.poisson_nll_loss(found, wanted, log_input=False)


@program(1, lambda n: [randn(n(2048, 64), n(256, 64)), randn(n(2048, 64), n(256, 64))])
def contrasted(one: Tensor, other: Tensor) -> Tensor:
    scores = F.normalize(one, dim=1) @ F.normalize(other, dim=1).T / 0.07
    return F.cross_entropy(scores, torch.arange(scores.shape[0], device=scores.device))


# ---- pools


@program(1, lambda n: [randn(n(64, 2), 128, n(16_383, 255))])
def max_pool_of_series(x: Tensor) -> Tensor:
    return F.max_pool1d(x, 5, stride=3, padding=1)


@program(1, volumes)
def max_pool_of_volumes(x: Tensor) -> Tensor:
    return F.max_pool3d(x, 3, stride=2, padding=1)


@program(1, lambda n: [randn(n(64, 2), 128, n(16_383, 255))])
def average_pool_of_series(x: Tensor) -> Tensor:
    return F.avg_pool1d(x, 8, stride=1, padding=4)


@program(1, pictures)
def wide_average_pool(x: Tensor) -> Tensor:
    return F.avg_pool2d(x, 11)


# ---- convolutions


@program(1, lambda n: [randn(n(8, 2), 64, n(100, 12), n(200, 12))])
class ConvOfAsymmetricWindow(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(64, 96, (5, 7), stride=(1, 2), padding=(2, 3), bias=False)

    def forward(self, x: Tensor) -> Tensor:
        return self.conv(x)


@program(1, lambda n: [randn(n(32, 2), 128, n(96, 12), n(96, 12))])
class PointwiseConv(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(128, 64, 1)

    def forward(self, x: Tensor) -> Tensor:
        return self.conv(x)


@program(1, lambda n: [randn(n(16, 2), 3, n(224, 32), n(224, 32))])
class StemConv(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(3, 96, 11, stride=4, padding=2)

    def forward(self, x: Tensor) -> Tensor:
        return self.conv(x)


@program(1, lambda n: [randn(n(16, 2), 64, n(128, 12), n(256, 12))])
class AsymmetricDepthwiseConv(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(64, 64, (7, 3), padding=(3, 1), groups=64, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        return self.conv(x)


@program(1, lambda n: [randn(n(16, 2), 96, n(56, 12), n(56, 12))])
class GroupedConv(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(96, 192, 3, padding=1, groups=4)

    def forward(self, x: Tensor) -> Tensor:
        return self.conv(x)


@program(1, lambda n: [randn(n(16, 2), 32, n(65_536, 256))])
class TransposedConvOfSeries(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.ConvTranspose1d(32, 64, 5, stride=2, padding=3, dilation=2)

    def forward(self, x: Tensor) -> Tensor:
        return self.conv(x)


@program(1, lambda n: [randn(n(8, 2), 48, n(24, 6), n(24, 6), n(24, 6))])
class TransposedConvOfVolumes(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.ConvTranspose3d(48, 24, (3, 5, 4), stride=2, padding=(1, 2, 1), output_padding=(1, 1, 0))

    def forward(self, x: Tensor) -> Tensor:
        return self.conv(x)


@program(1, lambda n: [randn(n(8, 2), 64, n(100, 12), n(75, 12))])
class TransposedConvInGroups(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.ConvTranspose2d(64, 64, (3, 5), stride=(2, 3), padding=(1, 2), dilation=(2, 1), groups=4)

    def forward(self, x: Tensor) -> Tensor:
        return self.conv(x)


@program(1, lambda n: [randn(n(8, 2), 3, n(32, 10), n(128, 16), n(128, 16))])
class StemConvOfVolumes(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv3d(3, 32, (3, 5, 5), stride=(1, 2, 2), padding=(1, 2, 2))

    def forward(self, x: Tensor) -> Tensor:
        return self.conv(x)
