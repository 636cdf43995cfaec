"""Gives tensors whose memory holds their values, as kernels read it."""

from __future__ import annotations

import torch


def plain(tensor: torch.Tensor) -> torch.Tensor:
    """The tensor itself, but for zeros without memory and for negative views a copy: autograd gives such gradients."""
    if tensor._is_zerotensor():
        return tensor.clone()
    return tensor.resolve_neg()


def is_batched(tensor: torch.Tensor) -> bool:
    """Whether the tensor stands for many of its shape, of which torch keeps one: its memory holds other sizes."""
    functorch = torch._C._functorch
    return functorch.is_batchedtensor(tensor) or functorch.is_legacy_batchedtensor(tensor)
