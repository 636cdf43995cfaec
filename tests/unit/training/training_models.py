"""Small models, what they are trained on, and how: each row is one setting that training runs compare with eager."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from benchmarks.zoo.text_models import LSTM, TiedGPT

VOCABULARY = 41


@dataclass(frozen=True)
class Setting:
    """``loss(model, *batch)`` is lowered by ``optimizer(parameters)``; ``batch(turn)`` gives the batch of a step."""

    name: str
    make: Callable[[], nn.Module]
    batch: Callable[[int], tuple[Tensor, ...]]
    loss: Callable[..., Tensor]
    optimizer: Callable[[Any], torch.optim.Optimizer]


def rows(turn: int) -> tuple[Tensor, ...]:
    g = torch.Generator().manual_seed(turn)
    x = torch.randn(16, 12, generator=g)
    return x, (x.sum(1) > 0).long() + (x[:, 0] > 0.5).long()


def pictures(turn: int) -> tuple[Tensor, ...]:
    g = torch.Generator().manual_seed(turn)
    labels = torch.randint(0, 3, (6,), generator=g)
    return torch.randn(6, 3, 10, 10, generator=g) + labels[:, None, None, None] * 0.3, labels


def texts(turn: int) -> tuple[Tensor, ...]:
    """Counting texts of a length that changes: 9, 10 or 11 tokens."""
    g = torch.Generator().manual_seed(turn % 6)
    start = torch.randint(0, VOCABULARY, (3, 1), generator=g)
    return ((start + torch.arange(9 + turn % 3)) % VOCABULARY,)


def labelled_texts(turn: int) -> tuple[Tensor, ...]:
    (numbers,) = texts(turn)
    return numbers, (numbers[:, 0] < VOCABULARY // 2).long()


def mlp() -> nn.Module:
    return nn.Sequential(nn.LayerNorm(12), nn.Linear(12, 24), nn.GELU(), nn.Linear(24, 24), nn.ReLU(), nn.Linear(24, 3))


def conv_net() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(3, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU(), nn.MaxPool2d(2),
        nn.Conv2d(8, 12, 3, bias=False), nn.GroupNorm(3, 12), nn.SiLU(), nn.AdaptiveAvgPool2d(1),
        nn.Flatten(), nn.Dropout(0.1), nn.Linear(12, 3),
    )  # fmt: skip


class Encoder(nn.Module):
    """A transformer encoder over tokens with two classes; ``dropout`` in attention and in the layers."""

    def __init__(self, dropout: float = 0.0) -> None:
        super().__init__()
        self.tokens = nn.Embedding(VOCABULARY, 16)
        layer = nn.TransformerEncoderLayer(16, 2, 32, dropout, batch_first=True, activation="gelu")
        self.encoder = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.head = nn.Linear(16, 2)

    def forward(self, numbers: Tensor) -> Tensor:
        result: Tensor = self.head(self.encoder(self.tokens(numbers)).mean(1))
        return result


def classes(model: nn.Module, x: Tensor, labels: Tensor) -> Tensor:
    return F.cross_entropy(model(x), labels, label_smoothing=0.05)


def next_token(model: nn.Module, numbers: Tensor) -> Tensor:
    return F.cross_entropy(model(numbers)[:, :-1].flatten(0, 1), numbers[:, 1:].flatten())


def adamw(parameters: Any) -> torch.optim.Optimizer:
    return torch.optim.AdamW(parameters, lr=5e-3)


def sgd(parameters: Any) -> torch.optim.Optimizer:
    return torch.optim.SGD(parameters, lr=0.03, momentum=0.9)


SETTINGS = (
    Setting("mlp", mlp, rows, classes, adamw),
    Setting("mlp-sgd", mlp, rows, classes, sgd),
    Setting("conv net", conv_net, pictures, classes, sgd),
    # The bias of keys has no gradient but rounding, which Adam would blow up to steps of full size.
    Setting("encoder", Encoder, labelled_texts, classes, sgd),
    Setting("encoder with dropout", lambda: Encoder(0.1), labelled_texts, classes, sgd),
    Setting("tied gpt", lambda: TiedGPT(VOCABULARY, 16, 2, 2, longest=16), texts, next_token, adamw),
    Setting("lstm", lambda: LSTM(VOCABULARY, 16, 1), texts, next_token, adamw),
)
