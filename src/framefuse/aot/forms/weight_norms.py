"""Weights that are kept as a direction and a length."""

from __future__ import annotations

import torch
from torch import Tensor

from framefuse.aot.forms.registry import form


@form(torch._weight_norm)
def weight_norm(v: Tensor, g: Tensor, dim: int = 0) -> Tensor:
    """The direction ``v`` with the lengths ``g`` along ``dim``, or one length of all where it is -1."""
    others = [axis for axis in range(v.dim()) if axis != dim]
    length = (v * v).sum(others, keepdim=True).sqrt() if dim >= 0 else (v * v).sum().sqrt()
    return v * (g / length)
