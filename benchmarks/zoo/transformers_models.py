"""Lists classes of the transformers library with tiny configurations, and makes arguments for them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from benchmarks.zoo.zoo import optional

Arguments = dict[str, Any]
# Makes the keyword arguments of one call: tensors drawn with a seed, for a batch.
MakeArguments = Callable[[int, int], Arguments]

WORDS, LENGTH, SIDE = 128, 16, 32


@dataclass(frozen=True)
class Sample:
    """One row: ``cls`` of the library, built from ``config`` with ``sizes``, called with ``arguments(seed, batch)``."""

    name: str
    cls: str
    config: str
    sizes: dict[str, Any]
    arguments: MakeArguments = field(repr=False)

    def build(self) -> nn.Module:
        """The module in eval mode with fresh random weights. Raises MissingLibrary without transformers."""
        library = optional("transformers")
        module: nn.Module = getattr(library, self.cls)(getattr(library, self.config)(**self.sizes))
        return module.eval()


def generator(seed: int) -> torch.Generator:
    """A generator of its own for each seed."""
    return torch.Generator().manual_seed(seed)


def words(seed: int, batch: int, length: int = LENGTH) -> Tensor:
    """Token numbers, int64, (batch, length); none of the first four, which configurations use for special tokens."""
    return torch.randint(4, WORDS, (batch, length), generator=generator(seed))


def text(seed: int, batch: int) -> Arguments:
    """Token numbers alone."""
    return {"input_ids": words(seed, batch)}


def masked(seed: int, batch: int) -> Arguments:
    """Token numbers and a mask that hides the end of the first row."""
    mask = torch.ones(batch, LENGTH, dtype=torch.int64)
    mask[0, LENGTH - 3 - seed % 4 :] = 0
    return {"input_ids": words(seed, batch), "attention_mask": mask}


def uncached(seed: int, batch: int) -> Arguments:
    """Token numbers for a decoder that shall keep no cache."""
    return {"input_ids": words(seed, batch), "use_cache": False}


def masked_uncached(seed: int, batch: int) -> Arguments:
    """Token numbers and a mask for a decoder that shall keep no cache."""
    return {**masked(seed, batch), "use_cache": False}


def one_step(config: Callable[[], Any]) -> MakeArguments:
    """One more token for a cache that holds the keys and values of the tokens before, as in generation."""

    def arguments(seed: int, batch: int) -> Arguments:
        cache = optional("transformers").DynamicCache()
        drawn_from, sizes = generator(seed), config()
        heads, width = sizes["num_key_value_heads"], sizes["hidden_size"] // sizes["num_attention_heads"]
        for layer in range(sizes["num_hidden_layers"]):
            pair = torch.randn(2, batch, heads, LENGTH, width, generator=drawn_from)
            cache.update(pair[0], pair[1], layer)
        return {"input_ids": words(seed, batch, 1), "past_key_values": cache, "use_cache": True}

    return arguments


def both_texts(seed: int, batch: int) -> Arguments:
    """Token numbers for an encoder and a decoder."""
    return {"input_ids": words(seed, batch), "decoder_input_ids": words(seed + 1, batch, LENGTH // 2)}


def layout(seed: int, batch: int) -> Arguments:
    """Token numbers with the boxes of the words on a page."""
    corner = torch.randint(0, 50, (batch, LENGTH, 2), generator=generator(seed))
    size = torch.randint(1, 50, (batch, LENGTH, 2), generator=generator(seed + 1))
    return {"input_ids": words(seed, batch), "bbox": torch.cat([corner, corner + size], -1)}


def picture(side: int = SIDE) -> MakeArguments:
    """Square pictures, float32, (batch, 3, side, side)."""
    return lambda seed, batch: {"pixel_values": torch.randn(batch, 3, side, side, generator=generator(seed))}


def picture_and_text(seed: int, batch: int) -> Arguments:
    """Pictures and as many texts."""
    return {**picture()(seed, batch), "input_ids": words(seed, batch)}


def wave(seed: int, batch: int) -> Arguments:
    """Sound, float32, (batch, 1600 samples)."""
    return {"input_values": torch.randn(batch, 1600, generator=generator(seed))}


def spectrum(seed: int, batch: int) -> Arguments:
    """Mel spectra, float32, (batch, 16 bins, 64 frames), with a text for the decoder."""
    mel = torch.randn(batch, 16, 64, generator=generator(seed))
    return {"input_features": mel, "decoder_input_ids": words(seed, batch, LENGTH // 2)}


def frames(seed: int, batch: int) -> Arguments:
    """Filter banks, float32, (batch, 64 frames, 16 bins), with a text for the decoder."""
    banks = torch.randn(batch, 64, 16, generator=generator(seed))
    return {"input_features": banks, "decoder_input_ids": words(seed, batch, LENGTH // 2)}


def encoder(**more: Any) -> dict[str, Any]:
    """The sizes that configurations in the manner of BERT share."""
    return {
        "vocab_size": WORDS, "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4,
        "intermediate_size": 64, "max_position_embeddings": 64, **more,
    }  # fmt: skip


def decoder(**more: Any) -> dict[str, Any]:
    """The sizes that configurations in the manner of Llama share."""
    return encoder(num_key_value_heads=2, pad_token_id=0, bos_token_id=1, eos_token_id=2, **more)


def gpt(**more: Any) -> dict[str, Any]:
    """The sizes that configurations in the manner of GPT-2 share."""
    return {
        "vocab_size": WORDS, "n_embd": 32, "n_layer": 2, "n_head": 4, "n_positions": 64, "bos_token_id": 1,
        "eos_token_id": 2, **more,
    }  # fmt: skip


def seq2seq(**more: Any) -> dict[str, Any]:
    """The sizes that configurations in the manner of BART share."""
    return {
        "vocab_size": WORDS, "d_model": 32, "encoder_layers": 2, "decoder_layers": 2, "encoder_attention_heads": 4,
        "decoder_attention_heads": 4, "encoder_ffn_dim": 64, "decoder_ffn_dim": 64, "max_position_embeddings": 64,
        "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2, "decoder_start_token_id": 2, **more,
    }  # fmt: skip


def t5(**more: Any) -> dict[str, Any]:
    """The sizes of T5."""
    return {
        "vocab_size": WORDS, "d_model": 32, "num_layers": 2, "num_heads": 4, "d_ff": 64, "d_kv": 8,
        "decoder_start_token_id": 0, **more,
    }  # fmt: skip


def vision(**more: Any) -> dict[str, Any]:
    """The sizes that configurations in the manner of ViT share."""
    return {
        "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 64,
        "image_size": SIDE, "patch_size": 8, **more,
    }  # fmt: skip


def sound(**more: Any) -> dict[str, Any]:
    """The sizes that configurations in the manner of wav2vec 2.0 share."""
    return {
        "vocab_size": WORDS, "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4,
        "intermediate_size": 64, "conv_dim": (32, 32, 32), "conv_stride": (5, 4, 2), "conv_kernel": (10, 4, 2),
        "num_conv_pos_embeddings": 16, "num_conv_pos_embedding_groups": 2, "num_feat_extract_layers": 3, **more,
    }  # fmt: skip


def towers(width: int = 32) -> dict[str, Any]:
    """A text tower and a picture tower, for CLIP and its kin."""
    return {"text_config": encoder(projection_dim=width), "vision_config": vision(projection_dim=width)}


# Encoders, decoders with and without cache and mask, encoder-decoders, vision, audio: fifty classes.
CLASSES = (
    Sample("bert", "BertModel", "BertConfig", encoder(), text),
    Sample("roberta", "RobertaModel", "RobertaConfig", encoder(), text),
    Sample("xlm_roberta", "XLMRobertaForMaskedLM", "XLMRobertaConfig", encoder(), masked),
    Sample(
        "distilbert", "DistilBertModel", "DistilBertConfig",
        {"vocab_size": WORDS, "dim": 32, "n_layers": 2, "n_heads": 4, "hidden_dim": 64}, text,
    ),
    Sample("albert", "AlbertModel", "AlbertConfig", encoder(embedding_size=16), text),
    Sample("electra", "ElectraForPreTraining", "ElectraConfig", encoder(embedding_size=16), masked),
    Sample(
        "deberta_v2", "DebertaV2Model", "DebertaV2Config",
        encoder(relative_attention=True, pos_att_type=["p2c", "c2p"], position_buckets=8), text,
    ),
    Sample("mpnet", "MPNetModel", "MPNetConfig", encoder(), text),
    Sample("layoutlm", "LayoutLMModel", "LayoutLMConfig", encoder(max_2d_position_embeddings=128), layout),
    Sample(
        "funnel", "FunnelModel", "FunnelConfig",
        {"vocab_size": WORDS, "block_sizes": [1, 1], "num_decoder_layers": 1, "d_model": 32, "n_head": 4, "d_head": 8,
         "d_inner": 64}, text,
    ),
    Sample("big_bird", "BigBirdModel", "BigBirdConfig", encoder(attention_type="original_full"), text),
    Sample("fnet", "FNetModel", "FNetConfig", encoder(), text),
    Sample("modernbert", "ModernBertModel", "ModernBertConfig", encoder(pad_token_id=0), masked),
    Sample("gpt2", "GPT2LMHeadModel", "GPT2Config", gpt(), text),
    Sample(
        "gpt_neo", "GPTNeoForCausalLM", "GPTNeoConfig",
        {"vocab_size": WORDS, "hidden_size": 32, "num_layers": 2, "num_heads": 4, "max_position_embeddings": 64,
         "attention_types": [[["global", "local"], 1]]}, masked,
    ),
    Sample("gptj", "GPTJForCausalLM", "GPTJConfig", gpt(rotary_dim=4), text),
    Sample("gpt_neox", "GPTNeoXForCausalLM", "GPTNeoXConfig", encoder(), uncached),
    Sample("llama", "LlamaForCausalLM", "LlamaConfig", decoder(), uncached),
    Sample("mistral", "MistralForCausalLM", "MistralConfig", decoder(sliding_window=8), masked),
    Sample(
        "mixtral", "MixtralForCausalLM", "MixtralConfig", decoder(num_local_experts=4, num_experts_per_tok=2), uncached
    ),
    Sample("qwen2", "Qwen2ForCausalLM", "Qwen2Config", decoder(), text),
    Sample("qwen3", "Qwen3ForCausalLM", "Qwen3Config", decoder(head_dim=8), masked_uncached),
    Sample("phi", "PhiForCausalLM", "PhiConfig", decoder(), text),
    Sample("phi3", "Phi3ForCausalLM", "Phi3Config", decoder(), uncached),
    Sample("gemma", "GemmaForCausalLM", "GemmaConfig", decoder(head_dim=8), text),
    Sample("gemma2", "Gemma2ForCausalLM", "Gemma2Config", decoder(head_dim=8), uncached),
    Sample("gemma3", "Gemma3ForCausalLM", "Gemma3TextConfig", decoder(head_dim=8), masked),
    Sample("falcon", "FalconForCausalLM", "FalconConfig", decoder(), text),
    Sample("bloom", "BloomForCausalLM", "BloomConfig", gpt(hidden_size=32), text),
    Sample("opt", "OPTForCausalLM", "OPTConfig", decoder(ffn_dim=64, word_embed_proj_dim=32), masked),
    Sample("olmo", "OlmoForCausalLM", "OlmoConfig", decoder(), uncached),
    Sample("stablelm", "StableLmForCausalLM", "StableLmConfig", decoder(), text),
    Sample("starcoder2", "Starcoder2ForCausalLM", "Starcoder2Config", decoder(), text),
    Sample("mamba", "MambaForCausalLM", "MambaConfig", encoder(state_size=4), uncached),
    Sample("t5", "T5ForConditionalGeneration", "T5Config", t5(), both_texts),
    Sample("mt5", "MT5EncoderModel", "MT5Config", t5(), text),
    Sample("bart", "BartForConditionalGeneration", "BartConfig", seq2seq(), both_texts),
    Sample("mbart", "MBartModel", "MBartConfig", seq2seq(), both_texts),
    Sample("pegasus", "PegasusForConditionalGeneration", "PegasusConfig", seq2seq(), both_texts),
    Sample("marian", "MarianMTModel", "MarianConfig", seq2seq(), both_texts),
    Sample(
        "whisper", "WhisperForConditionalGeneration", "WhisperConfig",
        seq2seq(num_mel_bins=16, max_source_positions=32, max_target_positions=32), spectrum,
    ),
    Sample(
        "speech_to_text", "Speech2TextForConditionalGeneration", "Speech2TextConfig",
        seq2seq(input_feat_per_channel=16, input_channels=1, conv_channels=32), frames,
    ),
    Sample("wav2vec2", "Wav2Vec2Model", "Wav2Vec2Config", sound(), wave),
    Sample("hubert", "HubertModel", "HubertConfig", sound(), wave),
    Sample("vit", "ViTForImageClassification", "ViTConfig", vision(), picture()),
    Sample("dinov2", "Dinov2Model", "Dinov2Config", vision(mlp_ratio=2), picture()),
    Sample(
        "swin", "SwinModel", "SwinConfig",
        {"image_size": 64, "patch_size": 4, "embed_dim": 16, "depths": [2, 2], "num_heads": [2, 4], "window_size": 4},
        picture(64),
    ),
    Sample(
        "segformer", "SegformerForSemanticSegmentation", "SegformerConfig",
        {"depths": [1, 1, 1, 1], "hidden_sizes": [8, 16, 16, 32], "decoder_hidden_size": 16,
         "num_attention_heads": [1, 2, 2, 4]}, picture(64),
    ),
    Sample(
        "detr", "DetrForObjectDetection", "DetrConfig",
        seq2seq(num_queries=5, use_timm_backbone=False, backbone=None, use_pretrained_backbone=False), picture(64),
    ),
    Sample("clip", "CLIPModel", "CLIPConfig", towers(), picture_and_text),
)  # fmt: skip
# The same classes in other ways of use, and more classes of vision.
VARIANTS = (
    Sample("bert with a mask", "BertModel", "BertConfig", encoder(), masked),
    Sample("llama with cache", "LlamaForCausalLM", "LlamaConfig", decoder(), text),
    Sample("llama with cache and mask", "LlamaForCausalLM", "LlamaConfig", decoder(), masked),
    Sample("llama, one step", "LlamaForCausalLM", "LlamaConfig", decoder(), one_step(decoder)),
    Sample("qwen2, one step", "Qwen2ForCausalLM", "Qwen2Config", decoder(), one_step(decoder)),
    Sample("gpt2 with a mask", "GPT2LMHeadModel", "GPT2Config", gpt(), masked),
    Sample("deit", "DeiTModel", "DeiTConfig", vision(), picture()),
    Sample("beit", "BeitModel", "BeitConfig", vision(), picture()),
    Sample(
        "swinv2", "Swinv2Model", "Swinv2Config",
        {"image_size": 64, "patch_size": 4, "embed_dim": 16, "depths": [2, 2], "num_heads": [2, 4], "window_size": 4},
        picture(64),
    ),
    Sample(
        "convnext", "ConvNextModel", "ConvNextConfig",
        {"hidden_sizes": [8, 16, 16, 32], "depths": [1, 1, 1, 1], "image_size": 64}, picture(64),
    ),
    Sample("siglip", "SiglipModel", "SiglipConfig", towers(), picture_and_text),
    Sample(
        "resnet", "ResNetModel", "ResNetConfig",
        {"embedding_size": 8, "hidden_sizes": [8, 16, 16, 32], "depths": [1, 1, 1, 1]}, picture(64),
    ),
)  # fmt: skip
SAMPLES = {sample.name: sample for sample in (*CLASSES, *VARIANTS)}
