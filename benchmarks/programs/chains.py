"""Programs of a product or a convolution, and the short chain of operators that users write behind it."""

# mypy: disable-error-code="no-any-return"

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn, rand, randn
from torch.nn import functional as F

from benchmarks.programs.program import Inputs, Size, program

HALF = torch.bfloat16


class Behind(nn.Module):
    """A layer and a parameter of what is behind it, which is the method of the programs below."""

    def __init__(self, layer: nn.Module, *shape: int) -> None:
        super().__init__()
        self.layer = layer
        self.bias = nn.Parameter(torch.randn(shape) * 0.1)


def rows(inputs: int, batch: int = 1024) -> Inputs:
    """What a linear layer takes."""
    return lambda n: [randn(n(batch, 16), inputs)]


def pictures(channels: int, size: int, batch: int = 32) -> Inputs:
    """What a convolution takes."""
    return lambda n: [randn(n(batch, 2), channels, n(size, 18), n(size, 18))]


def volumes(channels: int, size: int, batch: int = 8) -> Inputs:
    """What a convolution of volumes takes."""
    return lambda n: [randn(n(batch, 1), channels, n(size, 8), n(size, 8), n(size, 8))]


Layer = Callable[[], nn.Module]


# ---- products


@program(2, rows(2048))
class LinearGeluSoftmax(Behind):
    def __init__(self) -> None:
        super().__init__(nn.Linear(2048, 4096))

    def forward(self, x: Tensor) -> Tensor:
        return F.softmax(F.gelu(self.layer(x)), dim=1)


@program(2, rows(4096))
class LinearScaleResidual(Behind):
    def __init__(self) -> None:
        super().__init__(nn.Linear(4096, 4096))

    def forward(self, x: Tensor) -> Tensor:
        y = self.layer(x)
        return y * 0.5 + y.clone().detach()


@program(2, rows(2048), HALF)
class LinearSwishBiasNorm(Behind):
    def __init__(self) -> None:
        super().__init__(nn.Linear(2048, 2048), 2048)
        self.norm = nn.GroupNorm(32, 2048)

    def forward(self, x: Tensor) -> Tensor:
        y = self.layer(x)
        return self.norm(torch.sigmoid(y) * y + self.bias)


@program(2, rows(4096))
class LinearBatchNormDivideSwish(Behind):
    def __init__(self) -> None:
        super().__init__(nn.Linear(4096, 4096), 1)
        self.norm = nn.BatchNorm1d(4096)

    def forward(self, x: Tensor) -> Tensor:
        y = (self.norm(self.layer(x)) + self.bias) / 2.0
        return y * torch.sigmoid(y)


@program(2, rows(8192, 512))
class LinearSumsOfRows(Behind):
    def __init__(self) -> None:
        super().__init__(nn.Linear(8192, 4096))

    def forward(self, x: Tensor) -> Tensor:
        y = self.layer(x).sum(dim=1, keepdim=True)
        y = torch.max(y, dim=1, keepdim=True)[0]
        return torch.logsumexp(y, dim=1, keepdim=True)


@program(2, rows(1024))
class LinearSubtractMultiplyRelu(Behind):
    def __init__(self) -> None:
        super().__init__(nn.Linear(1024, 4096))

    def forward(self, x: Tensor) -> Tensor:
        return torch.relu((self.layer(x) - 2.0) * 1.5)


@program(2, rows(1024))
class LinearMaxPoolSum(Behind):
    def __init__(self) -> None:
        super().__init__(nn.Linear(1024, 8192))

    def forward(self, x: Tensor) -> Tensor:
        y = F.max_pool1d(self.layer(x).unsqueeze(1), 2).squeeze(1)
        return y.sum(dim=1) * 0.5


@program(2, rows(2048))
class LinearDropoutMeanSoftmax(Behind):
    def __init__(self) -> None:
        super().__init__(nn.Linear(2048, 4096))
        self.dropout = nn.Dropout(0.2)

    def forward(self, x: Tensor) -> Tensor:
        return torch.softmax(self.dropout(self.layer(x)).mean(dim=1, keepdim=True), dim=1)


@program(2, lambda n: [randn(n(128, 4), n(512, 32), 1024), randn(n(128, 4), 1024)])
class ProjectionInstanceNormMultiply(Behind):
    def __init__(self) -> None:
        super().__init__(nn.Linear(1024, 1024))

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        y = y[:, None]
        z = F.instance_norm(self.layer(x).transpose(1, 2)).transpose(1, 2)
        return (z + y) * y


@program(2, rows(4096))
class LinearMishTwice(Behind):
    def __init__(self) -> None:
        super().__init__(nn.Linear(4096, 4096))

    def forward(self, x: Tensor) -> Tensor:
        return F.mish(F.mish(self.layer(x)))


@program(2, rows(1024, 4096))
class LinearGroupNormHardtanh(Behind):
    def __init__(self) -> None:
        super().__init__(nn.Linear(1024, 2048))
        self.norm = nn.GroupNorm(16, 2048)

    def forward(self, x: Tensor) -> Tensor:
        return F.hardtanh(self.norm(self.layer(x)))


@program(2, rows(1024, 8192), HALF)
class FeedForward(Behind):
    def __init__(self) -> None:
        super().__init__(nn.Linear(1024, 4096))
        self.norm, self.down = nn.LayerNorm(1024), nn.Linear(4096, 1024)

    def forward(self, x: Tensor) -> Tensor:
        return x + self.down(F.gelu(self.layer(self.norm(x))))


@program(2, rows(1024, 8192), HALF)
class GatedFeedForward(Behind):
    def __init__(self) -> None:
        super().__init__(nn.Linear(1024, 2816, bias=False))
        self.up, self.down = nn.Linear(1024, 2816, bias=False), nn.Linear(2816, 1024, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        return self.down(F.silu(self.layer(x)) * self.up(x))


@program(2, rows(768, 4096))
class HeadWithCrossEntropy(Behind):
    def __init__(self) -> None:
        super().__init__(nn.Linear(768, 32000))

    def forward(self, x: Tensor) -> Tensor:
        logits = self.layer(x)
        return F.cross_entropy(logits, torch.arange(len(x), device=x.device) % 32000)


@program(2, lambda n: [randn(n(4096, 32), 512), randn(n(4096, 32), 512)])
class ContrastiveLoss(Behind):
    def __init__(self) -> None:
        super().__init__(nn.Linear(512, 512))

    def forward(self, pictures: Tensor, texts: Tensor) -> Tensor:
        one, other = F.normalize(self.layer(pictures), dim=-1), F.normalize(self.layer(texts), dim=-1)
        scores = one @ other.t() / 0.07
        places = torch.arange(len(scores), device=scores.device)
        return (F.cross_entropy(scores, places) + F.cross_entropy(scores.t(), places)) / 2


@program(2, lambda n: [randn(n(8192, 64), 1024)])
class MixtureCombine(Behind):
    def __init__(self) -> None:
        super().__init__(nn.Linear(1024, 8))
        self.experts = nn.Parameter(torch.randn(8, 1024, 512) * 0.03)

    def forward(self, x: Tensor) -> Tensor:
        weights, chosen = self.layer(x).softmax(-1).topk(2, dim=-1)
        weights = weights / weights.sum(-1, keepdim=True)
        share = torch.zeros(len(x), 8, device=x.device).scatter(1, chosen, weights)
        results = torch.einsum("nd,edf->enf", x, self.experts)
        return torch.einsum("enf,ne->nf", results, share)


@program(2, lambda n: [randn(n(4096, 64), 26, 64), randn(n(4096, 64), 64)])
def interactions(embeddings: Tensor, dense: Tensor) -> Tensor:
    features = torch.cat([dense[:, None], embeddings], dim=1)
    products = features @ features.transpose(1, 2)
    i, j = torch.tril_indices(27, 27, offset=-1, device=dense.device)
    return torch.cat([dense, products[:, i, j]], dim=1)


@program(2, rows(512, 16384))
class CrossLayers(Behind):
    def __init__(self) -> None:
        super().__init__(nn.Linear(512, 512))
        self.second = nn.Linear(512, 512)

    def forward(self, x: Tensor) -> Tensor:
        y = x * self.layer(x) + x
        return x * self.second(y) + y


@program(2, rows(512, 8192))
class LowRankAdapter(Behind):
    def __init__(self) -> None:
        super().__init__(nn.Linear(512, 512))
        self.down, self.up = nn.Linear(512, 8, bias=False), nn.Linear(8, 512, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        return self.layer(x) + 2.0 * self.up(self.down(x))


@program(2, lambda n: [randn(n(8192, 64), 1024)])
class ModulatedNorm(Behind):
    def __init__(self) -> None:
        super().__init__(nn.Linear(1024, 3072))

    def forward(self, x: Tensor) -> Tensor:
        shift, scale, gate = self.layer(F.silu(x)).chunk(3, dim=-1)
        return x + gate * (F.layer_norm(x, (1024,)) * (1 + scale) + shift)


@program(2, lambda n: [randn(n(8192, 64), 376), rand(n(8192, 64), 17)])
class PolicyLogProbability(Behind):
    def __init__(self) -> None:
        super().__init__(nn.Sequential(nn.Linear(376, 256), nn.Tanh(), nn.Linear(256, 34)))

    def forward(self, states: Tensor, actions: Tensor) -> tuple[Tensor, Tensor]:
        mean, deviation = self.layer(states).chunk(2, -1)
        deviation = deviation.clamp(-5, 2)
        chance = -0.5 * ((actions - mean) / deviation.exp()) ** 2 - deviation - 0.9189385
        squashed = 2 * (0.6931472 - actions - F.softplus(-2 * actions))
        return (chance - squashed).sum(-1), (deviation + 1.4189385).sum(-1)


# ---- convolutions


@program(2, pictures(16, 256))
class ConvReluBias(Behind):
    def __init__(self) -> None:
        super().__init__(nn.Conv2d(16, 64, 3), 64, 1, 1)

    def forward(self, x: Tensor) -> Tensor:
        return torch.relu(self.layer(x)) + self.bias


@program(2, pictures(16, 256))
class ConvLeastChannelTanh(Behind):
    def __init__(self) -> None:
        super().__init__(nn.Conv2d(16, 64, 3))

    def forward(self, x: Tensor) -> Tensor:
        return torch.tanh(torch.tanh(torch.min(self.layer(x), dim=1, keepdim=True)[0]))


@program(2, pictures(32, 128))
class ConvInstanceNormDivide(Behind):
    def __init__(self) -> None:
        super().__init__(nn.Conv2d(32, 64, 3))
        self.norm = nn.InstanceNorm2d(64)

    def forward(self, x: Tensor) -> Tensor:
        return self.norm(self.layer(x)) / 2.0


@program(2, pictures(32, 128), HALF)
class ConvBatchNormRelu(Behind):
    def __init__(self) -> None:
        super().__init__(nn.Conv2d(32, 64, 3, padding=1, bias=False))
        self.norm = nn.BatchNorm2d(64)

    def forward(self, x: Tensor) -> Tensor:
        return F.relu(self.norm(self.layer(x)), inplace=True)


@program(2, pictures(32, 128))
class ConvSubtractHardswishPoolMish(Behind):
    def __init__(self) -> None:
        super().__init__(nn.Conv2d(32, 64, 3))

    def forward(self, x: Tensor) -> Tensor:
        return F.mish(F.max_pool2d(F.hardswish(self.layer(x) - 0.5), 2))


@program(2, pictures(16, 128))
class ConvPoolSigmoidSum(Behind):
    def __init__(self) -> None:
        super().__init__(nn.Conv2d(16, 64, 3))

    def forward(self, x: Tensor) -> Tensor:
        return torch.sigmoid(F.avg_pool2d(self.layer(x), 2)).sum(dim=(1, 2, 3))


@program(2, pictures(16, 128))
class ConvGroupNormScalePoolClamp(Behind):
    def __init__(self) -> None:
        super().__init__(nn.Conv2d(16, 64, 3), 64, 1, 1)
        self.norm = nn.GroupNorm(16, 64)

    def forward(self, x: Tensor) -> Tensor:
        return torch.clamp(F.max_pool2d(self.norm(self.layer(x)) * self.bias, 4), 0.0, 1.0)


@program(2, pictures(32, 128))
class ConvSoftplusTanhMultiply(Behind):
    def __init__(self) -> None:
        super().__init__(nn.Conv2d(32, 64, 3))
        self.norm = nn.BatchNorm2d(64)

    def forward(self, x: Tensor) -> Tensor:
        y = self.layer(x)
        return self.norm(torch.tanh(F.softplus(y)) * y)


@program(2, pictures(64, 128, 16))
class ConvLogsumexpOfShortcut(Behind):
    def __init__(self) -> None:
        super().__init__(nn.Conv2d(64, 64, 3, padding=1))
        self.norm = nn.GroupNorm(16, 64)

    def forward(self, x: Tensor) -> Tensor:
        y = self.layer(x)
        return torch.logsumexp(y + F.hardswish(torch.tanh(self.norm(y))), dim=1, keepdim=True)


@program(2, pictures(64, 64))
class TransposedConvBiasSoftmaxSigmoid(Behind):
    def __init__(self) -> None:
        super().__init__(nn.ConvTranspose2d(64, 64, 4, stride=2, padding=1), 64, 1, 1)

    def forward(self, x: Tensor) -> Tensor:
        return torch.sigmoid((torch.softmax(self.layer(x), dim=1) + self.bias) * 2.0)


@program(2, pictures(64, 64))
class TransposedConvGeluGroupNorm(Behind):
    def __init__(self) -> None:
        super().__init__(nn.ConvTranspose2d(64, 64, 3, stride=1))
        self.norm = nn.GroupNorm(8, 64)

    def forward(self, x: Tensor) -> Tensor:
        return self.norm(F.gelu(self.layer(x)))


@program(2, pictures(32, 64))
class TransposedConvMeanLogsumexpSum(Behind):
    def __init__(self) -> None:
        super().__init__(nn.ConvTranspose2d(32, 64, 3), 64, 1, 1)

    def forward(self, x: Tensor) -> Tensor:
        y = torch.mean(self.layer(x), dim=(2, 3), keepdim=True) + self.bias
        return torch.logsumexp(y, dim=1, keepdim=True).sum(dim=(2, 3)) * 10.0


@program(2, pictures(32, 64))
class TransposedConvClampScale(Behind):
    def __init__(self) -> None:
        super().__init__(nn.ConvTranspose2d(32, 64, 3, stride=2, padding=1, output_padding=1), 64, 1, 1)

    def forward(self, x: Tensor) -> Tensor:
        y = torch.clamp(self.layer(x) + self.bias, 0.0, 1.0) * 2.0
        return torch.clamp(y, 0.0, 1.0) / 2.0


@program(2, volumes(8, 48))
class VolumeConvLeastSoftmax(Behind):
    def __init__(self) -> None:
        super().__init__(nn.Conv3d(8, 24, 3))

    def forward(self, x: Tensor) -> Tensor:
        return torch.softmax(torch.min(self.layer(x), dim=2)[0], dim=1)


@program(2, volumes(8, 48))
class VolumeConvSoftmaxPoolTwice(Behind):
    def __init__(self) -> None:
        super().__init__(nn.Conv3d(8, 16, 3))

    def forward(self, x: Tensor) -> Tensor:
        return F.max_pool3d(F.max_pool3d(torch.softmax(self.layer(x), dim=1), 2), 2)


@program(2, volumes(8, 48))
class VolumeConvActivationsBias(Behind):
    def __init__(self) -> None:
        super().__init__(nn.Conv3d(8, 32, 3), 32, 1, 1, 1)

    def forward(self, x: Tensor) -> Tensor:
        y = F.leaky_relu(torch.relu(self.layer(x)), 0.01)
        return torch.sigmoid(F.gelu(y)) + self.bias


@program(2, volumes(8, 48))
class VolumeConvGroupNormMean(Behind):
    def __init__(self) -> None:
        super().__init__(nn.Conv3d(8, 24, 3))
        self.norm = nn.GroupNorm(8, 24)

    def forward(self, x: Tensor) -> Tensor:
        return self.norm(self.layer(x)).mean(dim=(1, 2, 3, 4))


@program(2, volumes(8, 48))
class VolumeConvInstanceNormClampMax(Behind):
    def __init__(self) -> None:
        super().__init__(nn.Conv3d(8, 16, 3), 16, 1, 1, 1)

    def forward(self, x: Tensor) -> Tensor:
        y = F.instance_norm(self.layer(x) * self.bias)
        return torch.max(torch.clamp(y, -1.0, 1.0) * self.bias, dim=1)[0]


@program(2, volumes(32, 16, 16))
class TransposedVolumeConvSumNormPoolGelu(Behind):
    def __init__(self) -> None:
        super().__init__(nn.ConvTranspose3d(32, 64, 3, stride=2, padding=1, output_padding=1), 1)
        self.norm = nn.LayerNorm(64)

    def forward(self, x: Tensor) -> Tensor:
        y = self.layer(x) + self.bias
        y = self.norm(y.permute(0, 2, 3, 4, 1)).permute(0, 4, 1, 2, 3)
        return F.gelu(F.avg_pool3d(y, 2))


@program(2, volumes(32, 16, 16))
class TransposedVolumeConvBatchNormMean(Behind):
    def __init__(self) -> None:
        super().__init__(nn.ConvTranspose3d(32, 32, 3, stride=2, padding=1))
        self.norm = nn.BatchNorm3d(32)

    def forward(self, x: Tensor) -> Tensor:
        y = self.norm(self.layer(x))
        return y - torch.mean(y, dim=(2, 3, 4), keepdim=True)


@program(2, lambda n: [randn(n(32, 2), 64, n(4096, 128))])
class SeriesConvGatedResidual(Behind):
    def __init__(self) -> None:
        super().__init__(nn.Conv1d(64, 128, 3, padding=4, dilation=4))
        self.out = nn.Conv1d(64, 64, 1)

    def forward(self, x: Tensor) -> Tensor:
        left, right = self.layer(x).chunk(2, dim=1)
        return x + self.out(torch.tanh(left) * torch.sigmoid(right))


@program(2, lambda n: [randn(n(32, 2), n(2048, 64), 512)])
class CausalShortConv(Behind):
    def __init__(self) -> None:
        super().__init__(nn.Conv1d(512, 512, 4, groups=512, padding=3))

    def forward(self, x: Tensor) -> Tensor:
        y = self.layer(x.transpose(1, 2))[..., : x.shape[1]]
        return F.silu(y).transpose(1, 2)


@program(2, pictures(64, 56, 64))
class SqueezeAndExcite(Behind):
    def __init__(self) -> None:
        super().__init__(nn.Conv2d(64, 16, 1))
        self.back = nn.Conv2d(16, 64, 1)

    def forward(self, x: Tensor) -> Tensor:
        y = x.mean((2, 3), keepdim=True)
        return x * torch.sigmoid(self.back(F.silu(self.layer(y))))


@program(2, pictures(3, 224, 64))
class PatchesWithPlaces(Behind):
    def __init__(self) -> None:
        super().__init__(nn.Conv2d(3, 768, 16, stride=16))
        self.norm = nn.LayerNorm(768)
        self.register_buffer("places", torch.randn(1, 196, 768))

    def forward(self, x: Tensor) -> Tensor:
        y = self.layer(x).flatten(2).transpose(1, 2)
        return self.norm(y + self.places[:, : y.shape[1]])  # type: ignore[index]


@program(2, pictures(96, 56, 32))
class ConvNextBlock(Behind):
    def __init__(self) -> None:
        super().__init__(nn.Conv2d(96, 96, 7, padding=3, groups=96), 96)
        self.norm, self.up, self.down = nn.LayerNorm(96), nn.Linear(96, 384), nn.Linear(384, 96)

    def forward(self, x: Tensor) -> Tensor:
        y = self.norm(self.layer(x).permute(0, 2, 3, 1))
        y = self.bias * self.down(F.gelu(self.up(y)))
        return x + y.permute(0, 3, 1, 2)


@program(2, pictures(96, 56, 32))
class FireModule(Behind):
    def __init__(self) -> None:
        super().__init__(nn.Conv2d(96, 16, 1))
        self.one, self.three = nn.Conv2d(16, 64, 1), nn.Conv2d(16, 64, 3, padding=1)

    def forward(self, x: Tensor) -> Tensor:
        x = F.relu(self.layer(x))
        return torch.cat([F.relu(self.one(x)), F.relu(self.three(x))], 1)


@program(2, pictures(64, 56, 32))
class InvertedResidual(Behind):
    def __init__(self) -> None:
        super().__init__(nn.Sequential(nn.Conv2d(64, 384, 1, bias=False), nn.BatchNorm2d(384), nn.ReLU6()))
        self.depth = nn.Sequential(
            nn.Conv2d(384, 384, 3, padding=1, groups=384, bias=False), nn.BatchNorm2d(384), nn.ReLU6()
        )
        self.out = nn.Sequential(nn.Conv2d(384, 64, 1, bias=False), nn.BatchNorm2d(64))

    def forward(self, x: Tensor) -> Tensor:
        return x + self.out(self.depth(self.layer(x)))


@program(2, pictures(32, 64))
class UpsampledSkip(Behind):
    def __init__(self) -> None:
        super().__init__(nn.Conv2d(64, 32, 3, padding=1))

    def forward(self, x: Tensor) -> Tensor:
        small = F.avg_pool2d(x, 2)
        up = F.interpolate(small, size=x.shape[2:], mode="bilinear", align_corners=False)
        return F.leaky_relu(self.layer(torch.cat([up, x], 1)), 0.2)


# ---- recurrences and scans, a few steps wide


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
