"""Programs of one operator, or of the few that stand for one: products, activations, norms, reductions, losses."""

# mypy: disable-error-code="no-any-return"

from __future__ import annotations

import math

import torch
from torch import Tensor, nn, rand, randint, randn
from torch.nn import functional as F

from benchmarks.programs.program import Size, program

HALF = torch.bfloat16


def rows(n: Size) -> list[Tensor]:
    """A matrix of long rows."""
    return [randn(n(4096, 64), n(16384, 1000))]


def pictures(n: Size) -> list[Tensor]:
    """A batch of activations of a convolutional net."""
    return [randn(n(64, 2), 64, n(224, 28), n(224, 28))]


def volume(n: Size) -> list[Tensor]:
    """Three axes, the last of which is odd."""
    return [randn(n(64, 4), n(2048, 64), n(1023, 63))]


# ---- products


@program(1, lambda n: [randn(n(4096, 256), n(4096, 256)), randn(n(4096, 256), n(4096, 256))], HALF)
def square_product(a: Tensor, b: Tensor) -> Tensor:
    return a @ b


@program(1, lambda n: [randn(n(8192, 300), n(3000, 200)), randn(n(3000, 200), n(1000, 100))])
def odd_product(a: Tensor, b: Tensor) -> Tensor:
    return torch.matmul(a, b)


@program(1, lambda n: [randn(n(16384, 500), 32), randn(32, n(16384, 500))])
def product_of_few_terms(a: Tensor, b: Tensor) -> Tensor:
    return a @ b


@program(1, lambda n: [randn(n(256, 32), n(200_000, 3000)), randn(n(200_000, 3000), n(256, 32))])
def product_of_many_terms(a: Tensor, b: Tensor) -> Tensor:
    return a @ b


@program(1, lambda n: [randn(n(8192, 256), n(8192, 256)), randn(n(8192, 256))])
def matrix_times_vector(a: Tensor, b: Tensor) -> Tensor:
    return a @ b


@program(1, lambda n: [randn(n(256, 8), n(512, 32), n(128, 32)), randn(n(256, 8), n(128, 32), n(512, 32))])
def batched_product(a: Tensor, b: Tensor) -> Tensor:
    return torch.bmm(a, b)


@program(1, lambda n: [randn(n(4096, 256)), randn(n(4096, 256), n(4096, 256))])
def diagonal_times_matrix(a: Tensor, b: Tensor) -> Tensor:
    return torch.diag(a) @ b


@program(1, lambda n: [randn(n(2048, 128), n(2048, 128)), randn(n(2048, 128), n(2048, 128))])
def lower_triangle_of_product(a: Tensor, b: Tensor) -> Tensor:
    return torch.tril(torch.tril(a) @ torch.tril(b))


@program(1, lambda n: [randn(n(4096, 128), n(2048, 128)), randn(n(4096, 128), n(2048, 128))])
def product_of_transposed(a: Tensor, b: Tensor) -> Tensor:
    return a.T @ b


@program(1, lambda n: [randn(n(16, 2), n(128, 8), n(128, 8), 256), randn(256, n(512, 64))])
def einsum_over_the_last(a: Tensor, b: Tensor) -> Tensor:
    return torch.einsum("bijl,lk->bijk", a, b)


@program(1, lambda n: [randn(n(64, 4), n(512, 32), n(64, 16)), randn(n(64, 4), n(64, 16))])
def einsum_of_rows(a: Tensor, b: Tensor) -> Tensor:
    return torch.einsum("bnd,bd->bn", a, b)


# ---- activations


@program(1, rows, HALF)
def relu(x: Tensor) -> Tensor:
    return torch.relu(x)


@program(1, rows)
def gelu_by_tanh(x: Tensor) -> Tensor:
    return 0.5 * x * (1.0 + torch.tanh(math.sqrt(2.0 / math.pi) * (x + 0.044715 * torch.pow(x, 3.0))))


@program(1, rows)
def swish(x: Tensor) -> Tensor:
    return x * torch.sigmoid(x)


@program(1, rows)
def softplus(x: Tensor) -> Tensor:
    return F.softplus(x)


@program(1, rows)
def hardtanh(x: Tensor) -> Tensor:
    return F.hardtanh(x, min_val=-1.0, max_val=1.0)


@program(1, rows)
def selu(x: Tensor) -> Tensor:
    return torch.selu(x)


@program(1, lambda n: [randn(n(8192, 64), n(8192, 512))], HALF)
def gated_silu(x: Tensor) -> Tensor:
    gate, value = x.chunk(2, dim=-1)
    return F.silu(gate) * value


@program(1, lambda n: [randn(n(64, 2), 256, n(56, 14), n(56, 14))])
class Prelu(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.slope = nn.PReLU(256)

    def forward(self, x: Tensor) -> Tensor:
        return self.slope(x)


# ---- softmax and norms


@program(1, rows, HALF)
def softmax(x: Tensor) -> Tensor:
    return torch.softmax(x, dim=1)


@program(1, lambda n: [randn(n(512, 8), n(50257, 1000))], HALF)
def log_softmax_of_a_vocabulary(x: Tensor) -> Tensor:
    return F.log_softmax(x, dim=-1)


@program(1, pictures)
def softmax_over_channels(x: Tensor) -> Tensor:
    return F.softmax(x, dim=1)


@program(1, pictures)
class BatchNorm(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.BatchNorm2d(64)

    def forward(self, x: Tensor) -> Tensor:
        return self.norm(x)


@program(1, pictures)
class BatchNormOfTheBatch(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.BatchNorm2d(64, track_running_stats=False)

    def forward(self, x: Tensor) -> Tensor:
        return self.norm(x)


@program(1, pictures)
def instance_norm(x: Tensor) -> Tensor:
    return F.instance_norm(x)


@program(1, pictures)
class GroupNorm(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.GroupNorm(8, 64)

    def forward(self, x: Tensor) -> Tensor:
        return self.norm(x)


@program(1, lambda n: [randn(n(16384, 128), 4096 // 4)], HALF)
class LayerNorm(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(1024)

    def forward(self, x: Tensor) -> Tensor:
        return self.norm(x)


@program(1, lambda n: [randn(n(32, 2), 64, n(128, 16), n(128, 16))])
def layer_norm_of_pictures(x: Tensor) -> Tensor:
    return F.layer_norm(x, x.shape[1:])


@program(1, pictures)
def rms_norm_over_channels(x: Tensor) -> Tensor:
    return x / torch.sqrt(torch.mean(x**2, dim=1, keepdim=True) + 1e-5)


@program(1, lambda n: [randn(n(16384, 128), 4096), randn(4096)], HALF)
def rms_norm(x: Tensor, weight: Tensor) -> Tensor:
    wide = x.float()
    wide = wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + 1e-6)
    return weight * wide.to(x.dtype)


@program(1, pictures)
def frobenius_norm(x: Tensor) -> Tensor:
    return x / torch.norm(x, p="fro")


@program(1, rows)
def rows_by_their_mean_size(x: Tensor) -> Tensor:
    return x / torch.mean(torch.abs(x), dim=1, keepdim=True)


@program(1, lambda n: [randn(n(1024, 16), n(65535, 999))])
def unit_rows(x: Tensor) -> Tensor:
    return F.normalize(x, dim=-1)


@program(1, pictures)
def local_response_norm(x: Tensor) -> Tensor:
    return F.local_response_norm(x, size=5)


# ---- reductions and scans


@program(1, volume)
def sum_of_the_middle(x: Tensor) -> Tensor:
    return torch.sum(x, dim=1, keepdim=True)


@program(1, volume)
def mean_of_the_last(x: Tensor) -> Tensor:
    return torch.mean(x, dim=-1)


@program(1, volume)
def maximum_of_the_middle(x: Tensor) -> Tensor:
    return torch.max(x, dim=1)[0]


@program(1, volume)
def argmax_of_the_middle(x: Tensor) -> Tensor:
    return torch.argmax(x, dim=1)


@program(1, volume)
def argmin_of_the_last(x: Tensor) -> Tensor:
    return torch.argmin(x, dim=2)


@program(1, volume)
def product_of_the_first(x: Tensor) -> Tensor:
    return torch.prod(x, dim=0)


@program(1, volume)
def variance_and_mean(x: Tensor) -> tuple[Tensor, Tensor]:
    return torch.var_mean(x, dim=-1)


@program(1, volume)
def logsumexp_of_the_middle(x: Tensor) -> Tensor:
    return torch.logsumexp(x, dim=1)


@program(1, lambda n: [randn(n(1 << 26, 1 << 16))])
def mean_of_all(x: Tensor) -> Tensor:
    return x.mean()


@program(1, lambda n: [randn(n(64, 4), n(2048, 64), n(1024, 64)) > 2])
def any_of_the_middle(x: Tensor) -> Tensor:
    return x.any(dim=1)


@program(1, lambda n: [randn(n(16384, 64), n(4096, 1000))])
def cumsum(x: Tensor) -> Tensor:
    return torch.cumsum(x, dim=1)


@program(1, lambda n: [rand(n(16384, 64), n(4096, 1000)) + 0.5])
def cumprod(x: Tensor) -> Tensor:
    return torch.cumprod(x, dim=1)


@program(1, lambda n: [randn(n(16384, 64), n(4096, 1000))])
def reversed_cumsum(x: Tensor) -> Tensor:
    return torch.cumsum(x.flip(1), dim=1).flip(1)


@program(1, lambda n: [randn(n(16384, 64), n(4096, 1000))])
def exclusive_cumsum(x: Tensor) -> Tensor:
    return torch.cat([torch.zeros_like(x[:, :1]), torch.cumsum(x, dim=1)[:, :-1]], dim=1)


@program(1, lambda n: [randn(n(16384, 64), n(4096, 1000)), rand(n(16384, 64), n(4096, 1000)) > 0.5])
def masked_cumsum(x: Tensor, mask: Tensor) -> Tensor:
    return torch.cumsum(x * mask, dim=1)


@program(1, lambda n: [randn(n(256, 4), n(2048, 100), n(128, 16))])
def cummax_over_time(x: Tensor) -> Tensor:
    return torch.cummax(x, dim=1).values


# ---- losses


@program(1, lambda n: [randn(n(32768, 128), n(4096, 100)), randn(n(32768, 128), n(4096, 100))])
def mean_squared_error(predictions: Tensor, targets: Tensor) -> Tensor:
    return torch.mean((predictions - targets) ** 2)


@program(1, lambda n: [randn(n(32768, 128), n(4096, 100)), randint(n(4096, 100), (n(32768, 128),))], HALF)
def cross_entropy(logits: Tensor, targets: Tensor) -> Tensor:
    return F.cross_entropy(logits, targets)


@program(1, lambda n: [randn(n(8192, 128), n(32000, 100)), randint(n(32000, 100), (n(8192, 128),))])
def cross_entropy_with_smoothing(logits: Tensor, targets: Tensor) -> Tensor:
    return F.cross_entropy(logits, targets, label_smoothing=0.1)


@program(1, lambda n: [randn(n(32768, 128), n(4096, 100)), randn(n(32768, 128), n(4096, 100))])
def smooth_l1(predictions: Tensor, targets: Tensor) -> Tensor:
    return F.smooth_l1_loss(predictions, targets)


@program(1, lambda n: [rand(n(8192, 128), n(8192, 100)).softmax(-1), rand(n(8192, 128), n(8192, 100)).softmax(-1)])
def divergence(predictions: Tensor, targets: Tensor) -> Tensor:
    return F.kl_div(torch.log(predictions), targets, reduction="batchmean")


@program(1, lambda n: [randn(n(32768, 128), n(2048, 100)) for _ in range(3)])
def triplet_margin(anchor: Tensor, positive: Tensor, negative: Tensor) -> Tensor:
    return F.triplet_margin_loss(anchor, positive, negative, margin=1.0)


@program(1, lambda n: [randn(n(32768, 128), n(2048, 100)), randn(n(32768, 128), n(2048, 100))])
def cosine_distance(predictions: Tensor, targets: Tensor) -> Tensor:
    return torch.mean(1 - F.cosine_similarity(predictions, targets, dim=1))


@program(1, lambda n: [randn(n(32768, 128), n(2048, 100)), randint(0, 2, (n(32768, 128), 1)) * 2.0 - 1.0])
def hinge(predictions: Tensor, targets: Tensor) -> Tensor:
    return torch.mean(torch.clamp(1 - predictions * targets, min=0))


@program(1, lambda n: [randn(n(16, 2), 21, n(512, 32), n(512, 32)), randint(21, (n(16, 2), n(512, 32), n(512, 32)))])
def dice(logits: Tensor, targets: Tensor) -> Tensor:
    found = logits.softmax(1)
    wanted = F.one_hot(targets, 21).permute(0, 3, 1, 2).float()
    both = (found * wanted).sum((2, 3))
    return 1 - ((2 * both + 1) / (found.sum((2, 3)) + wanted.sum((2, 3)) + 1)).mean()


@program(1, lambda n: [randn(n(256, 4), n(20000, 200), 4), (rand(n(256, 4), n(20000, 200), 4) > 0.9).float()])
def focal(logits: Tensor, targets: Tensor) -> Tensor:
    chance = torch.sigmoid(logits)
    entropy = F.binary_cross_entropy_with_logits(logits, targets, reduction="none")
    right = chance * targets + (1 - chance) * (1 - targets)
    return ((0.25 * targets + 0.75 * (1 - targets)) * (1 - right) ** 2 * entropy).mean()


# ---- attention


def heads(n: Size) -> list[Tensor]:
    """Queries, keys and values."""
    return [randn(n(16, 1), n(16, 2), n(1024, 64), 64) for _ in range(3)]


@program(1, heads, HALF)
def attention(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return F.scaled_dot_product_attention(q, k, v, is_causal=True)


@program(1, heads, HALF)
def attention_by_hand(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    scores = q @ k.transpose(-2, -1) / math.sqrt(q.shape[-1])
    mask = torch.tril(torch.ones(q.shape[-2], q.shape[-2], dtype=torch.bool, device=q.device))
    return scores.masked_fill(~mask, float("-inf")).softmax(-1) @ v


@program(1, lambda n: [randn(n(16, 1), n(16, 2), n(1024, 64), n(1024, 64))], HALF)
def capped_scores(scores: Tensor) -> Tensor:
    return torch.softmax(50.0 * torch.tanh(scores / 50.0), dim=-1)
