"""Says how each model of the zoo is trained, and three more: its batches, its loss and its optimizer."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.optim import SGD, AdamW, Optimizer

from benchmarks.zoo import zoo
from benchmarks.zoo.text_models import LSTM, TiedGPT
from benchmarks.zoo.unet import UNet
from benchmarks.zoo.zoo import HEADS, HIDDEN, LAYERS, MODELS, VOCABULARY, Inputs, optional

CLASSES, SIDE, TIMES = 1000, 64, 1000
Batch = tuple[Tensor, ...]
Step = Callable[..., Tensor]


@dataclass(frozen=True)
class Training:
    """One row: `loss(model, *batch)` is what `optimizer(parameters)` lowers; `batches` makes what one step takes."""

    name: str
    title: str
    make: Callable[[], nn.Module]
    batches: Inputs
    loss: Callable[..., Tensor]
    optimizer: Callable[[Any], Optimizer]

    def build(self) -> nn.Module:
        """The module in training mode, always with the same weights."""
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(0)
            return self.make().train()

    def step(self, model: Any) -> Step:
        """One step of training for `model`, with an optimizer of its own: takes a batch, gives the loss."""
        optimizer, loss = self.optimizer(model.parameters()), self.loss

        def step(*batch: Tensor) -> Tensor:
            optimizer.zero_grad()
            value = loss(model, *batch)
            value.backward()
            optimizer.step()
            return value

        return step


def generator(seed: int) -> torch.Generator:
    """A source of random numbers that leaves torch's own alone."""
    return torch.Generator().manual_seed(seed)


def tokens(seed: int = 0, batch: int | None = None, length: int | None = None) -> Batch:
    """Token numbers, int64, (batch 4, length 32) unless told otherwise."""
    return zoo.text(seed, batch or 4, length or 32)


def hidden_states(seed: int = 0, batch: int | None = None, length: int | None = None) -> Batch:
    """Token numbers as `tokens`, and what the last hidden state shall be, float32 (batch, length, 256)."""
    (numbers,) = tokens(seed, batch, length)
    return numbers, torch.randn(*numbers.shape, HIDDEN, generator=generator(seed))


def labelled_features(seed: int = 0, batch: int | None = None, length: int | None = None) -> Batch:
    """Rows of float32 features, (batch 32, 256), and a class of ten for each."""
    (rows,) = zoo.features(seed, batch)
    return rows, torch.randint(0, 10, (len(rows),), generator=generator(seed))


def labelled_pictures(seed: int = 0, batch: int | None = None, length: int | None = None) -> Batch:
    """Float32 pictures, (batch 4, 3, 64, 64), and a class of a thousand for each; their side cannot be told."""
    (pictures,) = zoo.image(seed, batch or 4, SIDE)
    return pictures, torch.randint(0, CLASSES, (len(pictures),), generator=generator(seed))


def noisy_pictures(seed: int = 0, batch: int | None = None, length: int | None = None) -> Batch:
    """Float32 pictures with noise, (batch 4, 3, 32, 32), their times (batch,) int64, and the noise."""
    source, shape = generator(seed), (batch or 4, 3, SIDE // 2, SIDE // 2)
    clean, noise = torch.randn(shape, generator=source), torch.randn(shape, generator=source)
    times = torch.randint(0, TIMES, shape[:1], generator=source)
    share = (times / TIMES).sqrt()[:, None, None, None]
    return (1 - share) * clean + share * noise, times, noise


def next_token(model: nn.Module, numbers: Tensor) -> Tensor:
    """Cross-entropy of each token under what the model says after those before it."""
    result = model(numbers)
    logits = getattr(result, "logits", result)
    return F.cross_entropy(logits[:, :-1].flatten(0, 1), numbers[:, 1:].flatten())


def last_hidden_state(model: nn.Module, numbers: Tensor, wanted: Tensor) -> Tensor:
    """Mean squared distance of the last hidden state, and of the pooled one where there is one, from what is wanted."""
    result = model(numbers)
    distance = F.mse_loss(result.last_hidden_state, wanted)
    pooled = getattr(result, "pooler_output", None)
    return distance if pooled is None else distance + F.mse_loss(pooled, wanted[:, 0])


def classes(model: nn.Module, inputs: Tensor, labels: Tensor) -> Tensor:
    """Cross-entropy of the labels."""
    return F.cross_entropy(model(inputs), labels)


def noise(model: nn.Module, pictures: Tensor, times: Tensor, wanted: Tensor) -> Tensor:
    """Mean squared distance of the noise that the model finds from that which was added."""
    return F.mse_loss(model(pictures, times), wanted)


def adamw(parameters: Any) -> Optimizer:
    """AdamW with a rate at which losses fall within twenty steps."""
    return AdamW(parameters, lr=3e-4)


def sgd(parameters: Any) -> Optimizer:
    """SGD with momentum and weight decay, as convolutional networks are trained."""
    return SGD(parameters, lr=0.01, momentum=0.9, weight_decay=1e-4)


def small_vit() -> nn.Module:
    """ViT-tiny for pictures of the side that is trained on."""
    module: nn.Module = optional("timm").create_model("vit_tiny_patch16_224", pretrained=False, img_size=SIDE)
    return module


def of_zoo(name: str, batches: Inputs, loss: Callable[..., Tensor], optimizer: Any = adamw) -> Training:
    """The row for a model that is in the zoo of inference too."""
    model = MODELS[name]
    return Training(name, model.title, small_vit if name == "vit" else model.make, batches, loss, optimizer)


ROWS = (
    of_zoo("mlp", labelled_features, classes),
    of_zoo("bert", hidden_states, last_hidden_state),
    of_zoo("gpt2", tokens, next_token),
    of_zoo("llama", tokens, next_token),
    of_zoo("t5", hidden_states, last_hidden_state),
    of_zoo("vit", labelled_pictures, classes),
    of_zoo("resnet18", labelled_pictures, classes, sgd),
    of_zoo("mobilenetv3", labelled_pictures, classes, sgd),
    of_zoo("convnext", labelled_pictures, classes),
    Training("lstm", "LSTM", lambda: LSTM(VOCABULARY, HIDDEN), tokens, next_token, adamw),
    Training("unet", "U-Net, diffusion", UNet, noisy_pictures, noise, adamw),
    Training("gpt", "GPT, tied", lambda: TiedGPT(VOCABULARY, HIDDEN, LAYERS, HEADS), tokens, next_token, adamw),
)
TRAININGS = {row.name: row for row in ROWS}
