"""Builds any class of transformers' model mapping small, with arguments made from the signature of its forward."""

from __future__ import annotations

import importlib
import inspect
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from benchmarks.zoo import optional

Arguments = dict[str, Any]
WORDS, LENGTH = 128, 16
LARGEST = 60_000_000  # parameters; beyond it a way of making a model small did not do so

# What an attribute of a configuration becomes, by the end of its name; the first that fits. None leaves it.
SIZES: tuple[tuple[str, int | None], ...] = (
    ("vocab_size", WORDS), ("num_key_value_heads", 2), ("num_kv_heads", 2), ("kv_heads", 2),
    ("num_attention_heads", 4), ("attention_heads", 4), ("num_heads", 4), ("n_head", 4), ("n_heads", 4),
    ("num_hidden_layers", 2), ("num_layers", 2), ("n_layer", 2), ("n_layers", 2), ("encoder_layers", 2),
    ("decoder_layers", 2), ("_layers", 2), ("depth", 2),
    ("head_dim", 8), ("d_kv", 8), ("d_head", 8), ("q_lora_rank", 16), ("kv_lora_rank", 16), ("qk_rope_head_dim", 8),
    ("qk_nope_head_dim", 8), ("v_head_dim", 8),
    ("intermediate_size", 64), ("ffn_dim", 64), ("d_ff", 64), ("d_inner", 64), ("ffn_size", 64), ("mlp_dim", 64),
    ("hidden_size", 32), ("d_model", 32), ("n_embd", 32), ("embed_dim", 32), ("embedding_size", 32),
    ("projection_dim", 32), ("hidden_dim", 64), ("word_embed_proj_dim", 32), ("dim", 32),
    ("num_experts_per_tok", 2), ("num_experts", 4), ("num_local_experts", 4), ("n_routed_experts", 4),
    ("moe_num_experts", 4), ("num_queries", 5), ("n_positions", 64), ("max_position_embeddings", 64),
    ("max_source_positions", 64), ("max_target_positions", 64), ("image_size", 64),
)  # fmt: skip
MODEST = frozenset(
    ("num_hidden_layers", "num_layers", "n_layer", "n_layers", "encoder_layers", "decoder_layers", "_layers", "depth",
     "vocab_size", "num_local_experts", "n_routed_experts", "num_experts")
)  # fmt: skip
GROUPED = ("num_key_value_heads", "num_kv_heads", "kv_heads")
TOKENS = ("pad_token_id", "bos_token_id", "eos_token_id", "decoder_start_token_id", "sep_token_id", "cls_token_id",
          "mask_token_id", "unk_token_id")  # fmt: skip


WAYS = ("small", "ungrouped", "modest", "plain")  # with fewer heads for keys, with as many, at full width, as it is


class NotMade(Exception):
    """No way of making a class small gave a model that eager runs; the text says what each failed with."""


@dataclass(frozen=True)
class Tiny:
    """A small model and the maker of its arguments for a seed and a batch."""

    name: str
    module: nn.Module
    arguments: Callable[[int, int], Arguments]


def classes() -> dict[str, str]:
    """The names of the classes of the model mapping with those of their configurations. Raises MissingLibrary."""
    optional("transformers")
    auto = importlib.import_module("transformers.models.auto.modeling_auto")
    configurations = importlib.import_module("transformers.models.auto.configuration_auto").CONFIG_MAPPING_NAMES
    configuration_of: dict[str, str] = {}
    for kind, names in auto.MODEL_MAPPING_NAMES.items():
        name = names if isinstance(names, str) else names[0]
        if kind in configurations:
            configuration_of.setdefault(name, configurations[kind])
    return configuration_of


def tiny(name: str) -> Tiny:
    """The class of that name, small, always with the same weights. Raises NotMade, MissingLibrary."""
    library = optional("transformers")
    failures = []
    for way in WAYS:
        try:
            torch.manual_seed(0)
            config = _configuration(getattr(library, classes()[name]), way)
            _refuse_large(getattr(library, name), config)
            module: nn.Module = getattr(library, name)(config).eval().float()
        except Exception as error:  # whatever a configuration or a class raises for sizes that it does not take
            failures.append(f"{way}: {type(error).__name__}: {str(error)[:100]}")
            continue
        for arguments in _candidates(module, config):
            try:
                with torch.no_grad():
                    module(**arguments(0, 1))
                    module(**arguments(1, 2))
                return Tiny(name, module, arguments)
            except Exception as error:
                failures.append(f"{way}, called: {type(error).__name__}: {str(error)[:100]}")
    raise NotMade("; ".join(failures[-4:]))


def _refuse_large(cls: Any, config: Any) -> None:
    with torch.device("meta"):
        count = sum(parameter.numel() for parameter in cls(config).parameters())
    if count > LARGEST:
        raise ValueError(f"{count} parameters")


# Configurations -------------------------------------------------------------------------------------------------------


def _configuration(cls: Any, way: str) -> Any:
    """An instance with small sizes; its parts, configurations too, likewise."""
    default = cls()
    if way == "plain":
        return default
    given = _reduced(default, way)
    try:
        return cls(**given)
    except Exception:  # it derives some from others, or checks lists against numbers
        lists = {key: value for key, value in given.items() if not isinstance(value, (list, tuple))}
        return cls(**lists)


def _reduced(config: Any, way: str) -> Arguments:
    arguments: Arguments = {}
    names = inspect.signature(type(config).__init__).parameters
    parts = getattr(type(config), "sub_configs", {}) or {}
    for key in dict.fromkeys((*names, *vars(config))):
        if key in ("self", "kwargs", "args") or key.startswith("_"):
            continue
        value = getattr(config, key, None)
        if hasattr(value, "to_dict") or key in parts:
            if hasattr(value, "to_dict"):
                arguments[key] = _configuration(type(value), way)
            continue
        if type(value) is int:
            small = _small(key, value, way)
            if small is not None:
                arguments[key] = small
    for key in TOKENS:
        if isinstance(getattr(config, key, None), int):
            arguments[key] = TOKENS.index(key) % 4
    return arguments


def _small(key: str, value: int, way: str) -> int | None:
    for end, size in SIZES:
        if key == end or key.endswith(end if end.startswith("_") else "_" + end):
            if way == "modest" and end not in MODEST:
                return None
            if way == "ungrouped" and end in GROUPED:
                size = 4
            return min(value, size) if size is not None and value > 0 else None
    return None


# Arguments ------------------------------------------------------------------------------------------------------------


def _candidates(module: nn.Module, config: Any) -> Iterator[Callable[[int, int], Arguments]]:
    """Makers of arguments, the likeliest first."""
    parameters = inspect.signature(module.forward).parameters
    needed = [name for name, there in parameters.items() if there.default is inspect.Parameter.empty
              and there.kind not in (there.VAR_KEYWORD, there.VAR_POSITIONAL)]  # fmt: skip
    main = getattr(module, "main_input_name", "input_ids")
    for side in _sides(config):
        for extra in ((), ("decoder_input_ids",), ("input_ids",), ("pixel_values",), ("input_features",)):
            names = dict.fromkeys((*needed, *([main] if main in parameters else ()), *extra))
            if not all(name in parameters for name in names):
                continue
            if not names:
                names = dict.fromkeys(name for name in ("input_ids",) if name in parameters)
            makers = {name: _maker(name, config, side) for name in names}
            if any(maker is None for maker in makers.values()):
                continue
            yield lambda seed, batch, makers=makers: {  # type: ignore[misc]
                name: maker(torch.Generator().manual_seed(seed), batch) for name, maker in makers.items() if maker
            }


def _sides(config: Any) -> Iterator[int]:
    """The sides that pictures may have, likeliest first."""
    declared = [getattr(part, "image_size", None) for part in (config, *_parts(config))]
    sizes = [size[0] if isinstance(size, (list, tuple)) else size for size in declared if size]
    yield from dict.fromkeys([*(size for size in sizes if isinstance(size, int)), 64, 32, 128, 224])


def _parts(config: Any) -> list[Any]:
    names = ("vision_config", "text_config", "audio_config", "encoder", "decoder", "backbone_config", "qformer_config")
    return [part for name in names if hasattr(part := getattr(config, name, None), "to_dict")]


def _of(config: Any, name: str, otherwise: int) -> int:
    for part in (config, *_parts(config)):
        value = getattr(part, name, None)
        if type(value) is int:
            return value
    return otherwise


Maker = Callable[[torch.Generator, int], Tensor]


def _maker(name: str, config: Any, side: int) -> Maker | None:
    """What draws the argument of this name."""
    words = min(_of(config, "vocab_size", WORDS), WORDS)
    channels = _of(config, "num_channels", _of(config, "in_channels", 3))
    bins = _of(config, "num_mel_bins", _of(config, "feature_size", _of(config, "input_feat_per_channel", 80)))

    def text(generator: torch.Generator, batch: int) -> Tensor:
        return torch.randint(min(4, words - 1), words, (batch, LENGTH), generator=generator)

    def floats(*sizes: int) -> Maker:
        return lambda generator, batch: torch.randn(batch, *sizes, generator=generator)

    table: dict[str, Maker] = {
        "input_ids": text,
        "decoder_input_ids": text,
        "attention_mask": lambda generator, batch: torch.ones(batch, LENGTH, dtype=torch.int64),
        "pixel_values": floats(channels, side, side),
        "pixel_values_videos": floats(_of(config, "num_frames", 4), channels, side, side),
        "input_values": floats(1600) if side != 32 else floats(_of(config, "max_length", 64), bins),
        "input_features": floats(bins, 2 * _of(config, "max_source_positions", 32)),
        "past_values": floats(_of(config, "context_length", 32)),
        "inputs_embeds": floats(LENGTH, _of(config, "hidden_size", 32)),
        "bool_masked_pos": lambda generator, batch: torch.zeros(batch, 16, dtype=torch.bool),
    }
    return table.get(name)
