"""Builds the models that benchmarks, the demo and tests run: nine small networks with random weights, no download."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from dataclasses import dataclass
from types import ModuleType
from typing import Any, Protocol

import torch
from torch import Tensor, nn

from benchmarks.zoo.torchvision_ops import declare_torchvision_operators

VOCABULARY = 8192
HIDDEN, LAYERS, HEADS = 256, 4, 4


class MissingLibrary(ImportError):
    """A model needs a library that is not installed; the text is one line with the command that installs it."""


class Inputs(Protocol):
    """Makes the positional arguments of one call: tensors drawn with `seed`, other sizes where given."""

    def __call__(self, seed: int = 0, batch: int | None = None, length: int | None = None) -> tuple[Tensor, ...]: ...


@dataclass(frozen=True)
class Model:
    """One row of the zoo: `make` builds the module with fresh weights, `inputs` makes arguments for it."""

    name: str
    title: str
    make: Callable[[], nn.Module]
    inputs: Inputs

    def build(self) -> tuple[nn.Module, Inputs]:
        """The module in eval mode, always with the same weights, and the maker of its inputs."""
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(0)
            module = self.make().eval()
        return module, self.inputs


def optional(library: str) -> ModuleType:
    """Imports `library`, which framefuse itself does not require."""
    declare_torchvision_operators()
    try:
        return importlib.import_module(library)
    except ImportError as error:
        raise MissingLibrary(f"this model needs {library}: pip install {library} ({error})") from error


def text(seed: int = 0, batch: int | None = None, length: int | None = None) -> tuple[Tensor, ...]:
    """Token numbers, int64, (batch 1, length 64) unless told otherwise."""
    generator = torch.Generator().manual_seed(seed)
    return (torch.randint(0, VOCABULARY, (batch or 1, length or 64), generator=generator),)


def image(seed: int = 0, batch: int | None = None, length: int | None = None) -> tuple[Tensor, ...]:
    """A float32 picture (batch 1, 3, 224, 224); `length` is the side of another square."""
    generator = torch.Generator().manual_seed(seed)
    side = length or 224
    return (torch.randn(batch or 1, 3, side, side, generator=generator),)


def features(seed: int = 0, batch: int | None = None, length: int | None = None) -> tuple[Tensor, ...]:
    """Rows of float32 features, (batch 32, 256); the width is the model's and cannot be told otherwise."""
    generator = torch.Generator().manual_seed(seed)
    return (torch.randn(batch or 32, HIDDEN, generator=generator),)


def mlp() -> nn.Module:
    """Three linear layers with GELU between them and a layer norm in front."""
    wide = 4 * HIDDEN
    layers = [nn.LayerNorm(HIDDEN), nn.Linear(HIDDEN, wide), nn.GELU(), nn.Linear(wide, wide), nn.GELU()]
    return nn.Sequential(*layers, nn.Linear(wide, 10))


def transformer(cls: str, config: str, **sizes: Any) -> Callable[[], nn.Module]:
    """Builds `cls` of the transformers library from `config` with the given sizes."""

    def make() -> nn.Module:
        library = optional("transformers")
        model: nn.Module = getattr(library, cls)(getattr(library, config)(vocab_size=VOCABULARY, **sizes))
        return model

    return make


def bert(layers: int = LAYERS, hidden: int = HIDDEN) -> Callable[[], nn.Module]:
    """BERT with `layers` encoder layers of size `hidden`."""
    sizes = {"num_hidden_layers": layers, "hidden_size": hidden, "num_attention_heads": HEADS}
    return transformer("BertModel", "BertConfig", intermediate_size=4 * hidden, **sizes)


def picture_model(name: str) -> Callable[[], nn.Module]:
    """Builds the model that timm knows as `name`."""
    return lambda: optional("timm").create_model(name, pretrained=False)


ROWS = (
    Model("mlp", "MLP", mlp, features),
    Model("bert", "BERT", bert(), text),
    Model(
        "gpt2",
        "GPT-2",
        transformer(
            "GPT2LMHeadModel",
            "GPT2Config",
            n_embd=HIDDEN,
            n_layer=LAYERS,
            n_head=HEADS,
            use_cache=False,
            bos_token_id=1,
            eos_token_id=2,
        ),
        text,
    ),
    Model(
        "llama",
        "Llama",
        transformer(
            "LlamaForCausalLM",
            "LlamaConfig",
            hidden_size=HIDDEN,
            num_hidden_layers=LAYERS,
            num_attention_heads=HEADS,
            num_key_value_heads=HEADS // 2,
            intermediate_size=704,
            use_cache=False,
        ),
        text,
    ),
    Model(
        "t5",
        "T5 encoder",
        transformer(
            "T5EncoderModel", "T5Config", d_model=HIDDEN, num_layers=LAYERS, num_heads=HEADS, d_ff=4 * HIDDEN, d_kv=64
        ),
        text,
    ),
    Model("vit", "ViT-tiny", picture_model("vit_tiny_patch16_224"), image),
    Model("resnet18", "ResNet-18", picture_model("resnet18"), image),
    Model("mobilenetv3", "MobileNetV3-small", picture_model("mobilenetv3_small_100"), image),
    Model("convnext", "ConvNeXt-atto", picture_model("convnext_atto"), image),
)

MODELS = {row.name: row for row in ROWS}
