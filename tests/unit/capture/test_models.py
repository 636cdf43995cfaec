"""The models of the zoo, with masks, caches and labels, leave whole traces that replay as eager on other sizes."""

from typing import Any

import pytest
import torch
from tests.unit.capture.replay import equal, replay

from benchmarks.zoo.zoo import MODELS, optional
from framefuse.capture.record import record

# Models whose first branch asks whether the batch is one: a trace of another batch is another trace.
BATCH_IS_ONE = {"gpt2", "llama"}
# A position table of fixed size, compared with the sizes of the picture.
FIXED_PICTURE = {"vit"}


@pytest.mark.parametrize("name", list(MODELS))
def test_zoo(name: str) -> None:
    try:
        model, inputs = MODELS[name].build()
    except ImportError as error:
        pytest.skip(str(error))
    args = inputs(0)
    with torch.no_grad():
        expected = model(*args)
        made = record(model, args, {}, owner=model)
        assert made.trace is not None, str(made.reason or made.exception)
        assert equal(expected, made.value)
        assert equal(expected, replay(made.trace, model, *args))
        batch = 1 if name in BATCH_IS_ONE else 2
        if args[0].dtype == torch.int64:
            fresh = inputs(1, batch=batch, length=40)
        else:
            fresh = inputs(1, batch=batch, length=None if name in FIXED_PICTURE else 96)
        assert equal(model(*fresh), replay(made.trace, model, *fresh), exact=False)
    assert not made.trace.effects


SMALL = {
    "bert": (
        "BertModel",
        "BertConfig",
        {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 64},
    ),
    "gpt2": (
        "GPT2LMHeadModel",
        "GPT2Config",
        {"n_embd": 32, "n_layer": 2, "n_head": 4, "bos_token_id": 1, "eos_token_id": 2},
    ),
    "llama": (
        "LlamaForCausalLM",
        "LlamaConfig",
        {
            "hidden_size": 32,
            "num_hidden_layers": 2,
            "num_attention_heads": 4,
            "num_key_value_heads": 2,
            "intermediate_size": 64,
        },
    ),
    "t5": ("T5EncoderModel", "T5Config", {"d_model": 32, "num_layers": 2, "num_heads": 4, "d_ff": 64, "d_kv": 8}),
}


def padded(ids: torch.Tensor) -> torch.Tensor:
    mask = torch.ones_like(ids)
    mask[0, -5:] = 0
    return mask


CALLS: dict[str, tuple[str, Any]] = {
    "bert with a mask": ("bert", lambda ids: {"attention_mask": padded(ids)}),
    "bert with hidden states": ("bert", lambda ids: {"output_hidden_states": True}),
    "gpt2 with cache and mask": ("gpt2", lambda ids: {"attention_mask": padded(ids)}),
    "llama with cache": ("llama", lambda ids: {}),
    "llama with a mask": ("llama", lambda ids: {"attention_mask": padded(ids), "use_cache": False}),
    "llama with labels": ("llama", lambda ids: {"labels": ids, "use_cache": False}),
    "llama as a tuple": ("llama", lambda ids: {"return_dict": False, "use_cache": False}),
    "t5 with a mask": ("t5", lambda ids: {"attention_mask": padded(ids)}),
}


@pytest.mark.parametrize("name", list(CALLS))
def test_transformers(name: str) -> None:
    try:
        library = optional("transformers")
    except ImportError as error:
        pytest.skip(str(error))
    which, named = CALLS[name]
    model_name, config_name, sizes = SMALL[which]
    torch.manual_seed(0)
    model = getattr(library, model_name)(getattr(library, config_name)(vocab_size=128, **sizes)).eval()
    ids, fresh = torch.randint(0, 128, (2, 24)), torch.randint(0, 128, (3, 17))
    with torch.no_grad():
        expected = model(ids, **named(ids))
        made = record(model, (ids,), named(ids), owner=model)
        assert made.trace is not None, str(made.reason or made.exception)
        assert equal(expected, made.value)
        assert equal(expected, replay(made.trace, model, ids, **named(ids)))
        assert equal(model(fresh, **named(fresh)), replay(made.trace, model, fresh, **named(fresh)), exact=False)
