"""Builds any class of transformers' model mapping small, with arguments made from the signature of its forward."""

from __future__ import annotations

import importlib
import inspect
import itertools
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from benchmarks.zoo.zoo import optional

Arguments = dict[str, Any]
WORDS, LENGTH = 128, 16
LARGEST = 60_000_000  # parameters; beyond it a way of making a model small did not do so

# What an attribute of a configuration becomes, by the end of its name; the first that fits. None leaves it.
SIZES: tuple[tuple[str, int | None], ...] = (
    ("num_feat_extract_layers", None), ("num_kv_shared_layers", 0), ("n_group", 1), ("topk_group", 1),
    ("moe_k", 2), ("moe_topk", 2), ("top_k_experts", 2), ("num_selected_experts", 2),
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
    ("num_feat_extract_layers", "num_kv_shared_layers", "n_group", "topk_group", "moe_k", "moe_topk", "top_k_experts",
     "num_selected_experts", "num_experts_per_tok", "moe_num_experts", "num_hidden_layers", "num_layers", "n_layer",
     "n_layers", "encoder_layers", "decoder_layers", "_layers", "depth", "vocab_size", "num_local_experts",
     "n_routed_experts", "num_experts")
)  # fmt: skip
LAYERS = ("num_hidden_layers", "num_layers", "n_layer", "n_layers")
GROUPED = ("num_key_value_heads", "num_kv_heads", "kv_heads")
HEADS = ("num_attention_heads", "attention_heads", "num_heads", "n_head", "n_heads")
WIDTHS = frozenset(
    ("intermediate_size", "ffn_dim", "d_ff", "d_inner", "ffn_size", "mlp_dim", "hidden_size", "d_model", "n_embd",
     "embed_dim", "embedding_size", "hidden_dim", *HEADS, *GROUPED)
)  # fmt: skip
FACTORS = (16, 8, 4, 2)  # by which "narrow" divides what all counts of heads are multiples of
MISSING = {"prediction_length": 4, "n_routed_experts": 4, "n_shared_experts": 1, "num_experts_per_tok": 2, "n_group": 1,
           "topk_group": 1, "first_k_dense_replace": 1, "vocab_size": WORDS, "pad_token_id": 0}  # fmt: skip
TASKS = ("MODEL_FOR_CAUSAL_LM_MAPPING_NAMES", "MODEL_FOR_SEQUENCE_CLASSIFICATION_MAPPING_NAMES",
         "MODEL_FOR_SEQ_TO_SEQ_CAUSAL_LM_MAPPING_NAMES", "MODEL_FOR_IMAGE_CLASSIFICATION_MAPPING_NAMES",
         "MODEL_FOR_MASKED_LM_MAPPING_NAMES", "MODEL_FOR_QUESTION_ANSWERING_MAPPING_NAMES")  # fmt: skip
EXTRAS = ((), ("decoder_input_ids",), ("input_ids",), ("pixel_values",), ("input_features",), ("bbox",),
          ("bbox", "pixel_values"), ("input_ids", "bbox", "decoder_input_ids"), ("input_features_mask",),
          ("input_ids", "pixel_values"))  # fmt: skip
LAYOUTS, GRID = 3, 4  # of pictures and sounds; patches along a side of a picture that is given as patches
LAID_OUT = ("pixel_values", "input_values", "input_features", "hidden_states")
BINS = ("num_mel_bins", "feature_size", "input_feat_per_channel", "input_dim", "n_mels")
ONE_OF = 6  # so many classes of a task is taken
TOKENS = ("pad_token_id", "bos_token_id", "eos_token_id", "decoder_start_token_id", "sep_token_id", "cls_token_id",
          "mask_token_id", "unk_token_id")  # fmt: skip


# With fewer heads for keys, with as many, with fewer heads of their own width, at full width, as it is.
WAYS = ("small", "ungrouped", "narrow", "modest", "plain")


class NotMade(Exception):
    """No way of making a class small gave a model that eager runs; the text says what each failed with."""


@dataclass(frozen=True)
class Tiny:
    """A small model and the maker of its arguments for a seed and a batch."""

    name: str
    module: nn.Module
    arguments: Callable[[int, int], Arguments]


def classes() -> dict[str, str]:
    """The names of the classes of the model mapping, and of some with heads and losses, with those of their
    configurations. Raises MissingLibrary.
    """
    optional("transformers")
    auto = importlib.import_module("transformers.models.auto.modeling_auto")
    configurations = importlib.import_module("transformers.models.auto.configuration_auto").CONFIG_MAPPING_NAMES
    configuration_of: dict[str, str] = {}
    for mapping, every in ((auto.MODEL_MAPPING_NAMES, 1), *((getattr(auto, name), ONE_OF) for name in TASKS)):
        for kind, names in list(mapping.items())[::every]:
            name = names if isinstance(names, str) else names[0]
            if kind in configurations:
                configuration_of.setdefault(name, configurations[kind])
    return configuration_of


def tiny(name: str) -> Tiny:
    """The class of that name, small, always with the same weights. Raises NotMade, MissingLibrary."""
    library = optional("transformers")
    failures: dict[str, str] = {}
    for way in WAYS:
        try:
            torch.manual_seed(0)
            config = _configuration(getattr(library, classes()[name]), way)
            _refuse_large(getattr(library, name), config)
            module: nn.Module = getattr(library, name)(config).eval().float()
        except Exception as error:  # whatever a configuration or a class raises for sizes that it does not take
            failures[way] = f"{way}: {type(error).__name__}: {str(error)[:100]}"
            continue
        for arguments in _candidates(module, config):
            try:
                with torch.no_grad():
                    module(**arguments(0, 1))
                    module(**arguments(1, 2))
                return Tiny(name, module, arguments)
            except Exception as error:
                failures[way] = f"{way}, called: {type(error).__name__}: {str(error)[:100]}"
    raise NotMade("; ".join(failures.values()))


def _refuse_large(cls: Any, config: Any) -> None:
    with torch.device("meta"):
        count = sum(parameter.numel() for parameter in cls(config).parameters())
    if count > LARGEST:
        raise ValueError(f"{count} parameters")


# Configurations -------------------------------------------------------------------------------------------------------


def _configuration(cls: Any, way: str, factor: int = 0) -> Any:
    """An instance with small sizes; its parts, configurations too, likewise."""
    default = cls()
    if way == "plain":
        return default
    given = _reduced(default, way, factor or _factor(default))
    try:
        return cls(**given)
    except Exception:  # it derives some from others, or checks lists against numbers
        lists = {key: value for key, value in given.items() if not isinstance(value, (list, tuple))}
        return cls(**lists)


def _reduced(config: Any, way: str, factor: int) -> Arguments:
    arguments: Arguments = {}
    own = {key: value for key, value in _attributes(config) if key not in LAYERS}
    layers = next((value for key in LAYERS if type(value := _read(config, key)) is int), 0)
    kept = _kept_layers([value for value in own.values() if isinstance(value, list) and len(value) == layers > 2])
    for key, value in _attributes(config):
        if hasattr(value, "to_dict"):
            arguments[key] = _configuration(type(value), way, factor)
        elif key in LAYERS and kept:
            arguments[key] = len(kept)
        elif isinstance(value, list) and len(value) == layers > 2:
            arguments[key] = [value[place] for place in kept]
        elif type(value) is int and (small := _small(key, value, way, factor)) is not None:
            arguments[key] = small
        elif value is None and key in MISSING:
            arguments[key] = MISSING[key]
    for key in TOKENS:
        if isinstance(_read(config, key), int):
            arguments[key] = TOKENS.index(key) % 4
    return arguments


def _attributes(config: Any) -> Iterator[tuple[str, Any]]:
    """What the configuration takes or holds, by name; some of its properties raise."""
    for key in dict.fromkeys((*inspect.signature(type(config).__init__).parameters, *vars(config))):
        if key not in ("self", "kwargs", "args") and not key.startswith("_"):
            yield key, _read(config, key)


def _read(config: Any, key: str) -> Any:
    try:
        return getattr(config, key, None)
    except Exception:
        return None


def _kept_layers(lists: list[list[Any]]) -> list[int]:
    """The places of one layer of each kind, as the lists that say something of each layer tell them apart."""
    kinds: dict[str, int] = {}
    for place, kind in enumerate(zip(*lists, strict=True)):
        kinds.setdefault(repr(kind), place)
    places = list(kinds.values())[:6]
    return [0, 1] if len(places) == 1 else places


def _factor(config: Any) -> int:
    """The largest factor that all counts of heads, of the parts too, are multiples of."""
    counts = [value for part in (config, *_parts(config)) for key, value in _attributes(part)
              if type(value) is int and value > 0 and _end(key) in HEADS]  # fmt: skip
    return next((factor for factor in FACTORS if all(count % factor == 0 for count in counts)), 1)


def _small(key: str, value: int, way: str, factor: int) -> int | None:
    end = _end(key)
    size = dict(SIZES).get(end)
    if value <= 0 or size is None:
        return None
    if way == "narrow" and end in WIDTHS:
        return max(value // factor, 1) if value % factor == 0 or end in GROUPED else None
    if way in ("modest", "narrow") and end not in MODEST:
        return None
    return min(value, 4 if way == "ungrouped" and end in GROUPED else size)


def _end(key: str) -> str:
    """The end of a name by which its size is known, or nothing."""
    return next((end for end, _ in SIZES if key == end or key.endswith(end if end[0] == "_" else "_" + end)), "")


# Arguments ------------------------------------------------------------------------------------------------------------


def _candidates(module: nn.Module, config: Any) -> Iterator[Callable[[int, int], Arguments]]:
    """Makers of arguments, the likeliest first."""
    parameters = inspect.signature(module.forward).parameters
    needed = [name for name, there in parameters.items() if there.default is inspect.Parameter.empty
              and there.kind not in (there.VAR_KEYWORD, there.VAR_POSITIONAL)]  # fmt: skip
    main = getattr(module, "main_input_name", "input_ids")
    labels = _labels(type(module).__name__) if "labels" in parameters else None
    for side, layout in itertools.product(_sides(config), range(LAYOUTS)):
        for extra in EXTRAS:
            names = dict.fromkeys((*needed, *([main] if main in parameters else ()), *extra))
            if not all(name in parameters for name in names):
                continue
            if not names:
                names = dict.fromkeys(name for name in ("input_ids",) if name in parameters)
            if layout and not any(name in LAID_OUT for name in names):
                continue
            makers = {name: _maker(name, config, side, layout) for name in names}
            if any(maker is None for maker in makers.values()):
                continue
            if labels is not None:
                makers["labels"] = labels
            yield lambda seed, batch, makers=makers: {  # type: ignore[misc]
                name: maker(torch.Generator().manual_seed(seed), batch) for name, maker in makers.items() if maker
            }


def _labels(name: str) -> Maker | None:
    """What draws the labels of a class with a loss of its own, by the task that its name ends with."""
    if name.endswith(("ForCausalLM", "ForConditionalGeneration", "ForMaskedLM", "LMHeadModel")):
        return lambda generator, batch: torch.randint(4, WORDS, (batch, LENGTH), generator=generator)
    if name.endswith("Classification"):
        return lambda generator, batch: torch.randint(0, 2, (batch,), generator=generator)
    return None


def _sides(config: Any) -> Iterator[int]:
    """The sides that pictures may have, likeliest first."""
    declared = [_read(part, "image_size") for part in (config, *_parts(config))]
    sizes = [size[0] if isinstance(size, (list, tuple)) else size for size in declared if size]
    yield from dict.fromkeys([*(size for size in sizes if isinstance(size, int)), 64, 32, 128, 224])


def _parts(config: Any) -> list[Any]:
    """The configurations in a configuration, and in these."""
    parts = [value for _, value in _attributes(config) if hasattr(value, "to_dict")]
    return [*parts, *(inner for part in parts for inner in _parts(part))]


def _of(config: Any, name: str, otherwise: int) -> int:
    for part in (config, *_parts(config)):
        value = _read(part, name)
        if type(value) is int:
            return value
    return otherwise


Maker = Callable[[torch.Generator, int], Tensor]


def _maker(name: str, config: Any, side: int, layout: int) -> Maker | None:
    """What draws the argument of this name; some libraries lay pictures and sounds out in one way, some in another."""
    words = min(_of(config, "vocab_size", WORDS), WORDS)
    channels = _of(config, "num_channels", _of(config, "in_channels", 3))
    bins = next((value for key in BINS if (value := _of(config, key, 0))), 80)
    patch = _of(config, "patch_size", 14)
    past = _of(config, "context_length", 32) + max(_read(config, "lags_sequence") or [0])
    picture = (channels, side, side)
    audio_channels = _of(config, "audio_channels", 1)

    def text(generator: torch.Generator, batch: int) -> Tensor:
        return torch.randint(min(4, words - 1), words, (batch, LENGTH), generator=generator)

    def floats(*sizes: int) -> Maker:
        return lambda generator, batch: torch.randn(batch, *sizes, generator=generator)

    def ones(*sizes: int, dtype: torch.dtype = torch.int64) -> Maker:
        return lambda generator, batch: torch.ones(batch, *sizes, dtype=dtype)

    def boxes(generator: torch.Generator, batch: int) -> Tensor:
        corners = torch.randint(0, 32, (2, batch, LENGTH, 2), generator=generator)
        return torch.cat((corners[0], corners[0] + corners[1]), -1)

    def patches(generator: torch.Generator, batch: int) -> Tensor:
        width = _of(config, "in_channels", 3) * _of(config, "temporal_patch_size", 1) * patch**2
        return torch.randn(batch * GRID**2, width, generator=generator)

    sounds = ((1600,), (audio_channels, 1600), (_of(config, "max_length", 64), bins))
    features = ((bins, 2 * _of(config, "max_source_positions", 32)), (64, bins), (128, bins))
    table: dict[str, Maker] = {
        "input_ids": text,
        "decoder_input_ids": text,
        "attention_mask": ones(LENGTH),
        "bbox": boxes,
        "pixel_values": floats(*(picture, (2, *picture), (_of(config, "num_frames", 4), *picture))[layout]),
        "pixel_values_videos": floats(_of(config, "num_frames", 4), *picture),
        "pixel_mask": ones(side, side),
        "input_values": floats(*(sounds[layout] if side != 32 else sounds[2])),
        "input_features": floats(*features[layout]),
        "input_features_mask": ones(features[layout][-1 if layout == 0 else 0]),
        "past_values": floats(past),
        "past_observed_mask": ones(past, dtype=torch.float32),
        "past_time_features": floats(past, max(_of(config, "num_time_features", 0), 1)),
        "states": floats(LENGTH, _of(config, "state_dim", 17)),
        "actions": floats(LENGTH, _of(config, "act_dim", 4)),
        "rewards": floats(LENGTH, 1),
        "returns_to_go": floats(LENGTH, 1),
        "timesteps": lambda generator, batch: torch.arange(LENGTH).repeat(batch, 1),
        "inputs_embeds": floats(LENGTH, _of(config, "hidden_size", 32)),
        "bool_masked_pos": lambda generator, batch: torch.zeros(batch, 16, dtype=torch.bool),
        "hidden_states": patches if layout == 0 else floats(LENGTH, _of(config, "hidden_size", 32)),
        "grid_thw": lambda generator, batch: torch.tensor([[1, GRID, GRID]] * batch),
        "query_embeds": floats(LENGTH, _of(config, "hidden_size", 32)),
    }
    return table.get(name)
