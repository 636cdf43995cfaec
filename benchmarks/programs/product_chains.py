"""Programs of a product, and the short chain of operators that users write behind it."""

# mypy: disable-error-code="no-any-return"

from __future__ import annotations

import torch
from torch import Tensor, nn, rand, randn
from torch.nn import functional as F

from benchmarks.programs.program import Behind, Inputs, program

HALF = torch.bfloat16


def rows(inputs: int, batch: int = 1024) -> Inputs:
    """What a linear layer takes."""
    return lambda n: [randn(n(batch, 16), inputs)]


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
