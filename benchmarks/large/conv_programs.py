"""Programs of convolutions: one with 1 to 6 operations behind it, and whole nets with random weights.

The chains are taken as they come in other collections of such programs, not for what a compiler does well.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from benchmarks.zoo.unet import UNet
from benchmarks.zoo.zoo import optional

Operation = Callable[[Tensor], Tensor]
CHANNELS, GROUPS = 64, 8


@dataclass(frozen=True)
class Program:
    """One program: ``make`` builds its module, ``shape`` says of a batch, and whether it is for a GPU, what it takes.
    A ``net`` is compared by its results alone: what rounds otherwise chooses other elements of its many maxima, and
    gradients follow them.
    """

    name: str
    make: Callable[[], nn.Module]
    shape: Callable[[int, bool], tuple[int, ...]]
    net: bool = False


# ---- one convolution, and what is behind it


def channel(x: Tensor) -> Tensor:
    """A number for each channel."""
    shape = (1, x.shape[1], *[1] * (x.dim() - 2))
    return torch.linspace(0.5, 1.5, x.shape[1], device=x.device, dtype=x.dtype).view(shape)


def normalised(x: Tensor) -> Tensor:
    return F.group_norm(x, GROUPS)


def pooled(x: Tensor) -> Tensor:
    return F.max_pool3d(x, 2) if x.dim() == 5 else F.max_pool2d(x, 2)


def averaged(x: Tensor) -> Tensor:
    return x.mean(tuple(range(2, x.dim())), keepdim=True)


TAILS: tuple[tuple[str, tuple[Operation, ...]], ...] = (
    ("relu", (torch.relu,)),
    ("least channel, tanh", (lambda x: x.amin(1, keepdim=True), torch.tanh)),
    ("mish twice", (F.mish, F.mish)),
    ("scale, clamp, gelu", (lambda x: x * channel(x), lambda x: x.clamp(-1, 1), F.gelu)),
    ("group norm, silu, mean", (normalised, F.silu, averaged)),
    ("pool, bias, sigmoid, sum", (pooled, lambda x: x + channel(x), torch.sigmoid, lambda x: x.sum(1))),
    (
        "hardswish, instance norm, divide, square, max",
        (F.hardswish, F.instance_norm, lambda x: x / 2, torch.square, lambda x: x.amax(1)),
    ),
    (
        "softplus, tanh, multiply, softmax, group norm, mean",
        (F.softplus, torch.tanh, lambda x: x * channel(x), lambda x: x.softmax(1), normalised, averaged),
    ),
)


class Chain(nn.Module):
    """A convolution and the operations of a tail, one after the other."""

    def __init__(self, convolution: nn.Module, tail: tuple[Operation, ...]) -> None:
        super().__init__()
        self.convolution, self.tail = convolution, tail

    def forward(self, x: Tensor) -> Tensor:
        x = self.convolution(x)
        for operation in self.tail:
            x = operation(x)
        return x


def plane(batch: int, large: bool) -> tuple[int, ...]:
    side = 64 if large else 12
    return batch, CHANNELS if large else 16, side, side


def volume(batch: int, large: bool) -> tuple[int, ...]:
    depth, side = (16, 32) if large else (4, 6)
    return batch, CHANNELS if large else 16, depth, side, side


CONVOLUTIONS: dict[str, tuple[Callable[[int], nn.Module], Callable[[int, bool], tuple[int, ...]]]] = {
    "conv2d": (lambda c: nn.Conv2d(c, c, 3, padding=1), plane),
    "conv2d 1x1": (lambda c: nn.Conv2d(c, c, 1), plane),
    "conv2d by 2": (lambda c: nn.Conv2d(c, 2 * c, 3, stride=2, padding=1), plane),
    "transposed": (lambda c: nn.ConvTranspose2d(c, c, 3, stride=2, padding=1, output_padding=1), plane),
    "grouped": (lambda c: nn.Conv2d(c, c, 3, padding=1, groups=4), plane),
    "depthwise": (lambda c: nn.Conv2d(c, c, 5, padding=2, groups=c), plane),
    "conv3d": (lambda c: nn.Conv3d(c, c, 3, padding=1), volume),
}


def chains(large: bool) -> Iterator[Program]:
    """Every convolution with every tail."""
    channels = CHANNELS if large else 16

    def maker(convolution: Callable[[int], nn.Module], tail: tuple[Operation, ...]) -> Callable[[], nn.Module]:
        return lambda: Chain(convolution(channels), tail)

    for kind, (convolution, shape) in CONVOLUTIONS.items():
        for name, tail in TAILS:
            yield Program(f"{kind}, {name}", maker(convolution, tail), shape)


# ---- whole nets


class Denoiser(nn.Module):
    """The U-Net of the zoo at one time."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.net = UNet(width)

    def forward(self, x: Tensor) -> Tensor:
        result: Tensor = self.net(x, torch.full((len(x),), 3, device=x.device))
        return result


class Volumes(nn.Module):
    """A 3-D U-Net of two levels, as segmentation has it: convolutions with instance norm, skip connections."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.enter, self.low = self.twice(1, width), self.twice(width, 2 * width)
        self.grow = nn.ConvTranspose3d(2 * width, width, 2, stride=2)
        self.leave = nn.Sequential(self.twice(2 * width, width), nn.Conv3d(width, 4, 1))

    @staticmethod
    def twice(channels: int, to: int) -> nn.Module:
        """Two convolutions, each with norm and activation."""
        layers: list[nn.Module] = []
        for before in (channels, to):
            layers += [nn.Conv3d(before, to, 3, padding=1), nn.InstanceNorm3d(to, affine=True), nn.LeakyReLU()]
        return nn.Sequential(*layers)

    def forward(self, x: Tensor) -> Tensor:
        high = self.enter(x)
        low = self.low(F.max_pool3d(high, 2))
        result: Tensor = self.leave(torch.cat([high, self.grow(low)], 1))
        return result


def of_timm(name: str) -> Callable[[], nn.Module]:
    """A classifier of timm with random weights."""

    def make() -> nn.Module:
        model: Any = optional("timm").create_model(name, pretrained=False)
        return model  # type: ignore[no-any-return]

    return make


def pictures(side: int, small: int) -> Callable[[int, bool], tuple[int, ...]]:
    """Batches of pictures, of another side on a CPU."""
    return lambda batch, large: (batch, 3, *[side if large else small] * 2)


CLASSIFIERS = ("resnet50", "densenet121", "densenet201", "vgg16", "efficientnet_b0", "convnext_tiny")


def nets(large: bool) -> Iterator[Program]:
    """Classifiers and U-Nets."""
    for name in CLASSIFIERS:
        yield Program(name, of_timm(name), pictures(224, 64), net=True)
    width = 64 if large else 8
    yield Program("U-Net", lambda: Denoiser(width), pictures(64, 16), net=True)
    yield Program("3-D U-Net", lambda: Volumes(width // 2), lambda n, big: (n, 1, *[64 if big else 8] * 3), net=True)


def programs(device: str) -> list[Program]:
    """All of them, in sizes that fill a GPU, or that a CPU does in milliseconds."""
    large = device != "cpu"
    return [*chains(large), *nets(large)]
