"""Programs of a convolution, and the short chain of operators that users write behind it."""

# mypy: disable-error-code="no-any-return"

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn, randn
from torch.nn import functional as F

from benchmarks.programs.program import Behind, Inputs, program

HALF = torch.bfloat16


def pictures(channels: int, size: int, batch: int = 32) -> Inputs:
    """What a convolution takes."""
    return lambda n: [randn(n(batch, 2), channels, n(size, 18), n(size, 18))]


def volumes(channels: int, size: int, batch: int = 8) -> Inputs:
    """What a convolution of volumes takes."""
    return lambda n: [randn(n(batch, 1), channels, n(size, 8), n(size, 8), n(size, 8))]


Layer = Callable[[], nn.Module]


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
        return self.norm(self.layer(x)).mean(dim=(2, 3, 4))


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
