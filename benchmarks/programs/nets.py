"""Whole nets of pictures, series, volumes and graphs, written by hand, with random weights."""

# mypy: disable-error-code="no-any-return"

from __future__ import annotations

import itertools
from collections.abc import Sequence

import torch
from torch import Tensor, nn, rand, randint, randn
from torch.nn import functional as F

from benchmarks.programs.program import Inputs, program


def pictures(batch: int, size: int = 224, small: int = 64, channels: int = 3) -> Inputs:
    """A batch of pictures."""
    return lambda n: [randn(n(batch, 1), channels, n(size, small), n(size, small))]


def conv_norm(inputs: int, outputs: int, size: int = 3, stride: int = 1, groups: int = 1) -> nn.Sequential:
    """A convolution, batch norm and relu."""
    conv = nn.Conv2d(inputs, outputs, size, stride, size // 2, groups=groups, bias=False)
    return nn.Sequential(conv, nn.BatchNorm2d(outputs), nn.ReLU(inplace=True))


class Net(nn.Module):
    """A body and a head that classifies the mean of its pictures."""

    def __init__(self, body: Sequence[nn.Module], width: int, classes: int = 1000) -> None:
        super().__init__()
        self.body, self.head = nn.Sequential(*body), nn.Linear(width, classes)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.body(x).mean((2, 3)))


@program(3, lambda n: [randn(n(128, 8), 4096)])
class Perceptron(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList([nn.Linear(4096, 2048), nn.Linear(2048, 2048), nn.Linear(2048, 10)])

    def forward(self, x: Tensor) -> Tensor:
        for layer in self.layers[:-1]:
            x = F.relu(layer(x))
        return self.layers[-1](x)


@program(3, lambda n: [randn(n(128, 4), 512)])
class NarrowPerceptron(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        widths = [512, *[64] * 12, 10]
        layers = [part for pair in itertools.pairwise(widths) for part in (nn.Linear(*pair), nn.ReLU())]
        self.net = nn.Sequential(*layers[:-1])

    def forward(self, x: Tensor) -> Tensor:
        return self.net(x)


@program(3, pictures(256, 32, 32, 1))
class LeNet(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv1, self.conv2 = nn.Conv2d(1, 6, 5), nn.Conv2d(6, 16, 5)
        self.fc1, self.fc2, self.fc3 = nn.Linear(400, 120), nn.Linear(120, 84), nn.Linear(84, 10)

    def forward(self, x: Tensor) -> Tensor:
        x = F.max_pool2d(F.relu(self.conv1(x)), 2)
        x = F.max_pool2d(F.relu(self.conv2(x)), 2).view(-1, 400)
        return self.fc3(F.relu(self.fc2(F.relu(self.fc1(x)))))


@program(3, pictures(128, 224, 224))
class AlexNet(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.features = nn.Sequential(
            nn.Conv2d(3, 64, 11, 4, 2), nn.ReLU(True), nn.MaxPool2d(3, 2), nn.Conv2d(64, 192, 5, padding=2),
            nn.ReLU(True), nn.MaxPool2d(3, 2), nn.Conv2d(192, 384, 3, padding=1), nn.ReLU(True),
            nn.Conv2d(384, 256, 3, padding=1), nn.ReLU(True), nn.Conv2d(256, 256, 3, padding=1), nn.ReLU(True),
            nn.MaxPool2d(3, 2),
        )  # fmt: skip
        self.classes = nn.Sequential(
            nn.Dropout(), nn.Linear(9216, 2048), nn.ReLU(True), nn.Dropout(), nn.Linear(2048, 1000)
        )

    def forward(self, x: Tensor) -> Tensor:
        return self.classes(self.features(x).flatten(1))


@program(3, pictures(16))
class Vgg(Net):
    def __init__(self) -> None:
        body: list[nn.Module] = []
        width = 3
        for wide, count in ((64, 2), (128, 2), (256, 3), (512, 3)):
            for _ in range(count):
                body += [nn.Conv2d(width, wide, 3, padding=1), nn.ReLU(inplace=True)]
                width = wide
            body.append(nn.MaxPool2d(2))
        super().__init__(body, 512)


class Basic(nn.Module):
    """A residual block of two convolutions."""

    def __init__(self, inputs: int, outputs: int, stride: int = 1) -> None:
        super().__init__()
        self.first = conv_norm(inputs, outputs, 3, stride)
        self.second = conv_norm(outputs, outputs)[:2]
        self.down = conv_norm(inputs, outputs, 1, stride)[:2] if stride > 1 or inputs != outputs else nn.Identity()

    def forward(self, x: Tensor) -> Tensor:
        return F.relu(self.second(self.first(x)) + self.down(x))


class Bottleneck(nn.Module):
    """A residual block of three convolutions, the middle one in groups."""

    def __init__(self, inputs: int, width: int, stride: int = 1, groups: int = 1) -> None:
        super().__init__()
        self.path = nn.Sequential(
            conv_norm(inputs, width, 1), conv_norm(width, width, 3, stride, groups), conv_norm(width, 4 * width, 1)[:2]
        )
        self.down = conv_norm(inputs, 4 * width, 1, stride)[:2] if inputs != 4 * width else nn.Identity()

    def forward(self, x: Tensor) -> Tensor:
        return F.relu(self.path(x) + self.down(x))


@program(3, pictures(32), torch.bfloat16)
class ResNet18(Net):
    def __init__(self) -> None:
        wide = [(64, 64, 1), (64, 64, 1), (64, 128, 2), (128, 128, 1), (128, 256, 2), (256, 256, 1), (256, 512, 2)]
        blocks = [Basic(*sizes) for sizes in [*wide, (512, 512, 1)]]
        super().__init__([conv_norm(3, 64, 7, 2), nn.MaxPool2d(3, 2, 1), *blocks], 512)


@program(3, pictures(16))
class ResNext(Net):
    def __init__(self) -> None:
        wide = [(64, 64, 1), (256, 64, 1), (256, 128, 2), (512, 128, 1), (512, 256, 2), (1024, 256, 1)]
        blocks = [Bottleneck(*sizes, groups=32) for sizes in wide]
        super().__init__([conv_norm(3, 64, 7, 2), nn.MaxPool2d(3, 2, 1), *blocks], 1024)


class Dense(nn.Module):
    """Layers that each read all before them."""

    def __init__(self, inputs: int, count: int, growth: int = 32) -> None:
        super().__init__()
        self.layers = nn.ModuleList(
            nn.Sequential(
                nn.BatchNorm2d(width), nn.ReLU(), nn.Conv2d(width, 4 * growth, 1, bias=False),
                nn.BatchNorm2d(4 * growth), nn.ReLU(), nn.Conv2d(4 * growth, growth, 3, padding=1, bias=False),
            )
            for width in range(inputs, inputs + count * growth, growth)
        )  # fmt: skip

    def forward(self, x: Tensor) -> Tensor:
        found = [x]
        for layer in self.layers:
            found.append(layer(torch.cat(found, 1)))
        return torch.cat(found, 1)


@program(3, pictures(16))
class DenseNet(Net):
    def __init__(self) -> None:
        body, width = [conv_norm(3, 64, 7, 2), nn.MaxPool2d(3, 2, 1)], 64
        for count in (6, 8, 6):
            body += [Dense(width, count), conv_norm(width + 32 * count, (width + 32 * count) // 2, 1), nn.AvgPool2d(2)]
            width = (width + 32 * count) // 2
        super().__init__(body, width)


class Fire(nn.Module):
    """A squeezed convolution, and two that expand it."""

    def __init__(self, inputs: int, narrow: int, wide: int) -> None:
        super().__init__()
        self.squeeze = nn.Conv2d(inputs, narrow, 1)
        self.one, self.three = nn.Conv2d(narrow, wide, 1), nn.Conv2d(narrow, wide, 3, padding=1)

    def forward(self, x: Tensor) -> Tensor:
        x = F.relu(self.squeeze(x))
        return torch.cat([F.relu(self.one(x)), F.relu(self.three(x))], 1)


@program(3, pictures(64))
class SqueezeNet(Net):
    def __init__(self) -> None:
        pool = nn.MaxPool2d(3, 2, ceil_mode=True)
        fires = [Fire(96, 16, 64), Fire(128, 16, 64), Fire(128, 32, 128), pool, Fire(256, 32, 128), Fire(256, 48, 192)]
        super().__init__([nn.Conv2d(3, 96, 7, 2), nn.ReLU(), pool, *fires, Fire(384, 64, 256)], 512)


class Branches(nn.Module):
    """Four ways beside each other."""

    def __init__(self, inputs: int, widths: Sequence[int]) -> None:
        super().__init__()
        one, small, three, tiny, five, last = widths
        self.ways = nn.ModuleList([
            conv_norm(inputs, one, 1),
            nn.Sequential(conv_norm(inputs, small, 1), conv_norm(small, three)),
            nn.Sequential(conv_norm(inputs, tiny, 1), conv_norm(tiny, five, 5)),
            nn.Sequential(nn.MaxPool2d(3, 1, 1), conv_norm(inputs, last, 1)),
        ])  # fmt: skip

    def forward(self, x: Tensor) -> Tensor:
        return torch.cat([way(x) for way in self.ways], 1)


@program(3, pictures(32))
class Inception(Net):
    def __init__(self) -> None:
        body = [conv_norm(3, 64, 7, 2), nn.MaxPool2d(3, 2, 1), conv_norm(64, 192), nn.MaxPool2d(3, 2, 1)]
        body += [Branches(192, (64, 96, 128, 16, 32, 32)), Branches(256, (128, 128, 192, 32, 96, 64))]
        body += [nn.MaxPool2d(3, 2, 1), Branches(480, (192, 96, 208, 16, 48, 64))]
        super().__init__(body, 512)


class Inverted(nn.Module):
    """An inverted residual, with a gate of its means where it is asked for."""

    def __init__(self, inputs: int, outputs: int, stride: int, grow: int = 6, gated: bool = False) -> None:
        super().__init__()
        wide = inputs * grow
        self.up = conv_norm(inputs, wide, 1)
        self.depth = conv_norm(wide, wide, 3, stride, wide)
        self.narrow = nn.Conv2d(wide, inputs // 4, 1) if gated else None
        self.gate = nn.Conv2d(inputs // 4, wide, 1) if gated else None
        self.down = conv_norm(wide, outputs, 1)[:2]
        self.same = stride == 1 and inputs == outputs

    def forward(self, x: Tensor) -> Tensor:
        y = self.depth(self.up(x))
        if self.narrow is not None and self.gate is not None:
            y = y * torch.sigmoid(self.gate(F.silu(self.narrow(F.adaptive_avg_pool2d(y, 1)))))
        y = self.down(y)
        return x + y if self.same else y


@program(3, pictures(32))
class MobileNet(Net):
    def __init__(self) -> None:
        wide = [(32, 24, 2), (24, 24, 1), (24, 32, 2), (32, 32, 1), (32, 64, 2), (64, 64, 1), (64, 96, 1)]
        super().__init__([conv_norm(3, 32, 3, 2), *[Inverted(*sizes) for sizes in wide], conv_norm(96, 576, 1)], 576)


@program(3, pictures(32))
class EfficientNet(Net):
    def __init__(self) -> None:
        wide = [(32, 24, 2), (24, 24, 1), (24, 40, 2), (40, 40, 1), (40, 80, 2), (80, 80, 1), (80, 112, 1)]
        body = [conv_norm(3, 32, 3, 2), *[Inverted(*sizes, gated=True) for sizes in wide], conv_norm(112, 640, 1)]
        super().__init__(body, 640)


class Shuffled(nn.Module):
    """Grouped convolutions with their channels shuffled between."""

    def __init__(self, width: int, groups: int = 4) -> None:
        super().__init__()
        self.groups = groups
        self.first = conv_norm(width, width // 4, 1, groups=groups)
        self.depth = conv_norm(width // 4, width // 4, 3, groups=width // 4)[:2]
        self.last = conv_norm(width // 4, width, 1, groups=groups)[:2]

    def forward(self, x: Tensor) -> Tensor:
        y = self.first(x)
        b, c, h, w = y.shape
        y = y.view(b, self.groups, c // self.groups, h, w).transpose(1, 2).reshape(b, c, h, w)
        return F.relu(x + self.last(self.depth(y)))


@program(3, pictures(32))
class ShuffleNet(Net):
    def __init__(self) -> None:
        body = [conv_norm(3, 64, 3, 2), nn.MaxPool2d(3, 2, 1), conv_norm(64, 256, 1)]
        super().__init__([*body, *[Shuffled(256) for _ in range(4)]], 256)


class Mixer(nn.Module):
    """A block of a mixer of convolutions."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.depth, self.norm = nn.Conv2d(width, width, 9, groups=width, padding=4), nn.BatchNorm2d(width)
        self.point, self.last = nn.Conv2d(width, width, 1), nn.BatchNorm2d(width)

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.norm(F.gelu(self.depth(x)))
        return self.last(F.gelu(self.point(x)))


@program(3, pictures(16))
class ConvMixer(Net):
    def __init__(self) -> None:
        stem = [nn.Conv2d(3, 256, 7, 7), nn.GELU(), nn.BatchNorm2d(256)]
        super().__init__([*stem, *[Mixer(256) for _ in range(4)]], 256)


class Next(nn.Module):
    """A block of ConvNeXt."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.depth, self.norm = nn.Conv2d(width, width, 7, padding=3, groups=width), nn.LayerNorm(width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)
        self.scale = nn.Parameter(torch.full((width,), 0.1))

    def forward(self, x: Tensor) -> Tensor:
        y = self.norm(self.depth(x).permute(0, 2, 3, 1))
        return x + (self.scale * self.down(F.gelu(self.up(y)))).permute(0, 3, 1, 2)


class LastNorm(nn.LayerNorm):
    """Layer norm of the channels of pictures."""

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x.permute(0, 2, 3, 1)).permute(0, 3, 1, 2)


@program(3, pictures(16))
class ConvNext(Net):
    def __init__(self) -> None:
        body = [nn.Conv2d(3, 96, 4, 4), LastNorm(96), Next(96), Next(96)]
        body += [LastNorm(96), nn.Conv2d(96, 192, 2, 2), Next(192), Next(192)]
        super().__init__([*body, LastNorm(192), nn.Conv2d(192, 384, 2, 2), Next(384), Next(384)], 384)


class Twice(nn.Module):
    """Two convolutions of a U-Net, with what ``act`` says behind them."""

    def __init__(self, inputs: int, outputs: int, softmax: bool = False) -> None:
        super().__init__()
        self.conv1, self.norm1 = nn.Conv2d(inputs, outputs, 3, padding=1), nn.BatchNorm2d(outputs)
        self.conv2, self.norm2 = nn.Conv2d(outputs, outputs, 3, padding=1), nn.BatchNorm2d(outputs)
        self.softmax = softmax

    def act(self, x: Tensor) -> Tensor:
        return torch.softmax(x, dim=-1) if self.softmax else F.relu(x)

    def forward(self, x: Tensor) -> Tensor:
        return self.act(self.norm2(self.conv2(self.act(self.norm1(self.conv1(x))))))


class Segmenting(nn.Module):
    """A U-Net of three levels."""

    def __init__(self, width: int, softmax: bool) -> None:
        super().__init__()
        self.down1, self.down2 = Twice(3, width, softmax), Twice(width, 2 * width, softmax)
        self.middle = Twice(2 * width, 4 * width, softmax)
        self.up2 = nn.ConvTranspose2d(4 * width, 2 * width, 2, 2)
        self.up1 = nn.ConvTranspose2d(2 * width, width, 2, 2)
        self.join2, self.join1 = Twice(4 * width, 2 * width, softmax), Twice(2 * width, width, softmax)
        self.out = nn.Conv2d(width, 5, 1)

    def forward(self, x: Tensor) -> Tensor:
        one = self.down1(x)
        two = self.down2(F.max_pool2d(one, 2))
        y = self.up2(self.middle(F.max_pool2d(two, 2)))
        y = self.up1(self.join2(torch.cat([y, two], 1)))
        return self.out(self.join1(torch.cat([y, one], 1)))


@program(3, pictures(8, 256))
class UNet(Segmenting):
    def __init__(self) -> None:
        super().__init__(32, False)


@program(3, pictures(8, 256))
class UNetOfSoftmax(Segmenting):
    def __init__(self) -> None:
        super().__init__(32, True)


@program(3, lambda n: [randn(n(4, 1), 1, n(64, 16), n(64, 16), n(64, 16))])
class VolumeNet(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Sequential(nn.Conv3d(1, 16, 3, padding=1), nn.InstanceNorm3d(16), nn.LeakyReLU(0.01))
        self.down = nn.Sequential(nn.Conv3d(16, 32, 3, 2, 1), nn.InstanceNorm3d(32), nn.LeakyReLU(0.01))
        self.up, self.out = nn.ConvTranspose3d(32, 16, 2, 2), nn.Conv3d(32, 3, 1)

    def forward(self, x: Tensor) -> Tensor:
        one = self.first(x)
        return torch.softmax(self.out(torch.cat([self.up(self.down(one)), one], 1)), 1)


@program(3, pictures(8, 64, 16, 64))
class SuperResolution(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(
            nn.Sequential(nn.Conv2d(64, 64, 3, padding=1), nn.ReLU(), nn.Conv2d(64, 64, 3, padding=1)) for _ in range(6)
        )
        self.up, self.out = nn.Conv2d(64, 256, 3, padding=1), nn.Conv2d(64, 3, 3, padding=1)

    def forward(self, x: Tensor) -> Tensor:
        for block in self.blocks:
            x = x + 0.1 * block(x)
        return self.out(F.pixel_shuffle(self.up(x), 2))


@program(3, lambda n: [randn(n(128, 4), 128)])
class Generator(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        parts: list[nn.Module] = [nn.ConvTranspose2d(128, 512, 4, bias=False), nn.BatchNorm2d(512), nn.ReLU(True)]
        for width in (512, 256, 128):
            conv = nn.ConvTranspose2d(width, width // 2, 4, 2, 1, bias=False)
            parts += [conv, nn.BatchNorm2d(width // 2), nn.ReLU(True)]
        self.net = nn.Sequential(*parts, nn.ConvTranspose2d(64, 3, 4, 2, 1), nn.Tanh())

    def forward(self, x: Tensor) -> Tensor:
        return self.net(x[:, :, None, None])


@program(3, lambda n: [randn(n(16, 1), 80, n(1000, 64))])
class TimeDelayNet(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        sizes = [(80, 256, 5, 1), (256, 256, 3, 2), (256, 256, 3, 3), (256, 768, 1, 1)]
        self.layers = nn.Sequential(
            *[nn.Sequential(nn.Conv1d(i, o, k, dilation=d), nn.ReLU(), nn.BatchNorm1d(o)) for i, o, k, d in sizes]
        )
        self.attention, self.out = nn.Conv1d(768, 768, 1), nn.Linear(1536, 192)

    def forward(self, x: Tensor) -> Tensor:
        y = self.layers(x)
        share = torch.softmax(self.attention(torch.tanh(y)), dim=-1)
        mean = (share * y).sum(-1)
        deviation = torch.sqrt(((share * y * y).sum(-1) - mean**2).clamp(min=1e-6))
        return F.normalize(self.out(torch.cat([mean, deviation], 1)), dim=-1)


@program(3, lambda n: [randn(n(16, 1), 1, n(16000, 1600))])
class WaveNet(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Conv1d(1, 32, 1)
        self.dilated = nn.ModuleList(nn.Conv1d(32, 64, 2, dilation=2**i) for i in range(8))
        self.skip = nn.ModuleList(nn.Conv1d(32, 32, 1) for _ in range(8))
        self.out = nn.Conv1d(32, 256, 1)

    def forward(self, x: Tensor) -> Tensor:
        x = self.first(x)
        total = torch.zeros_like(x)
        for i, (conv, skip) in enumerate(zip(self.dilated, self.skip, strict=True)):
            left, right = conv(F.pad(x, (2**i, 0))).chunk(2, 1)
            y = skip(torch.tanh(left) * torch.sigmoid(right))
            x, total = x + y, total + y
        return self.out(F.relu(total))


@program(3, lambda n: [randn(n(4, 1), 8, 4, n(64, 24), n(64, 24)), rand(n(4, 1), 2) * 4])
class VideoNet(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Conv3d(8, 32, (1, 3, 3), padding=(0, 1, 1))
        self.space = nn.ModuleList(nn.Conv3d(32, 32, (1, 3, 3), padding=(0, 1, 1)) for _ in range(3))
        self.time = nn.ModuleList(nn.Conv3d(32, 32, (3, 1, 1), padding=(1, 0, 0)) for _ in range(3))
        self.norms = nn.ModuleList(nn.BatchNorm3d(32) for _ in range(3))
        self.out = nn.Linear(34, 12)

    def forward(self, x: Tensor, speed: Tensor) -> Tensor:
        x = F.relu(self.stem(x))
        for space, time, norm in zip(self.space, self.time, self.norms, strict=True):
            x = x + F.relu(norm(time(space(x))))
        return self.out(torch.cat([x.mean((2, 3, 4)), speed], 1))


@program(3, lambda n: [randn(n(20000, 300), 128), randint(n(20000, 300), (2, n(200_000, 2000)))])
class GraphAttention(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList([nn.Linear(128, 128, bias=False), nn.Linear(128, 128, bias=False)])
        self.left, self.right = nn.Parameter(torch.randn(2, 8, 16)), nn.Parameter(torch.randn(2, 8, 16))

    def forward(self, x: Tensor, edges: Tensor) -> Tensor:
        source, target = edges
        for layer, left, right in zip(self.layers, self.left, self.right, strict=True):
            heads = layer(x).view(-1, 8, 16)
            scores = F.leaky_relu((heads * left).sum(-1)[source] + (heads * right).sum(-1)[target], 0.2)
            weights = torch.exp(scores.clamp(max=10))
            total = torch.zeros(len(x), 8, device=x.device, dtype=x.dtype).index_add(0, target, weights)
            messages = heads[source] * (weights / (total[target] + 1e-9)).unsqueeze(-1)
            x = F.elu(torch.zeros_like(heads).index_add(0, target, messages).flatten(1))
        return x


@program(3, lambda n: [randn(n(16, 1), 3, n(2048, 128))])
class PointNet(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        widths = [3, 64, 128, 1024]
        self.layers = nn.Sequential(
            *[nn.Sequential(nn.Conv1d(i, o, 1), nn.BatchNorm1d(o), nn.ReLU()) for i, o in itertools.pairwise(widths)]
        )
        self.out = nn.Linear(1024, 40)

    def forward(self, points: Tensor) -> Tensor:
        return F.log_softmax(self.out(self.layers(points).max(2)[0]), dim=1)
