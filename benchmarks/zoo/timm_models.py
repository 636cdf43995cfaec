"""Lists a hundred models of timm, one of the smallest of each family, and builds them with pictures that they take."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from benchmarks.zoo.zoo import optional

# One of each file of timm.models but deepseek_vit, whose smallest needs 2 GB, and three more of the largest families.
NAMES = tuple(
    """
    beit_base_patch16_224 halonet_h1 mobileone_s1 cait_xxs24_224 coat_lite_tiny convit_tiny convmixer_768_32
    convnext_atto cpubone_nano crossvit_tiny_240 csatv2 cs3darknet_s cspnext_tiny davit_tiny deit_tiny_patch16_224
    densenet121 dla46_c dpn68 edgenext_xx_small efficientformer_l1 efficientformerv2_s0 efficientnet_lite0
    efficientvim_m1 efficientvit_b0 efficientvit_m0 eva02_tiny_patch14_224 fasternet_t0 fastvit_t8 focalnet_tiny_srf
    gcvit_xxtiny gemma4_vit_167m ghostnet_050 hardcorenas_a hgnetv2_b0 hiera_tiny_224 hieradet_small hrnet_w18_small
    iformer_t inception_next_atto inception_resnet_v2 inception_v3 inception_v4 lcnetv2_small levit_128s lowformer_b0
    mambaout_femto maxvit_pico_rw_256 poolformer_s12 gmlp_ti16_224 mobilenetv3_small_050 mobilenetv5_base
    mobilevit_xxs mvitv2_tiny naflexvit_base_patch16_gap nasnetalarge nest_tiny nextvit_small nf_regnet_b0 pit_ti_224
    pnasnet5large pvt_v2_b0 qwen3_vit_88m rdnet_tiny regnetx_002 repghostnet_050 repvit_m1 res2net50_14w_8s
    resnest14d resnet10t resnetv2_18 rexnet_100 selecsls42 legacy_seresnet18 sequencer2d_s shvit_s1 skresnet18
    starnet_s050 swiftformer_xs swin_tiny_patch4_window7_224 swinv2_tiny_window8_256 swinv2_cr_tiny_224
    tiny_vit_5m_224 tnt_s_patch16_224 tresnet_m twins_svt_small vgg11 visformer_tiny vit_tiny_patch16_224
    vit_tiny_r_s16_p8_224 vit_srelpos_small_patch16_224 samvit_base_patch16_224 vitamin_small_224 volo_d1_224
    ese_vovnet19b_slim_dw legacy_xception xception41p xcit_nano_12_p8_224 resmlp_12_224 mixnet_s resnet18
    """.split()
)
SIDE = 128  # of pictures for models that take any size
SIDES = {"halonet_h1": 256, "gemma4_vit_167m": 192, "qwen3_vit_88m": 192}


def build(name: str) -> nn.Module:
    """The model in eval mode with fresh random weights. Raises MissingLibrary without timm."""
    module: nn.Module = optional("timm").create_model(name, pretrained=False)
    return module.eval()


def side_of(name: str, module: nn.Module) -> int:
    """The side of the smallest pictures that the model is called with, pixels."""
    settings = getattr(module, "default_cfg", None) or {}
    full = int(settings.get("input_size", (3, 224, 224))[-1])
    return SIDES.get(name, full if settings.get("fixed_input_size") else min(SIDE, full))


def picture(side: int, seed: int, batch: int) -> Tensor:
    """Pictures, float32, (batch, 3, side, side)."""
    return torch.randn(batch, 3, side, side, generator=torch.Generator().manual_seed(seed))
