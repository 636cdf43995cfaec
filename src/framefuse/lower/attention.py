"""Gives the result shape of fused attention, which stays with the library."""

from __future__ import annotations

from typing import Any

from framefuse.ir.graph import Node
from framefuse.lower.context import Lowering
from framefuse.lower.rules import Shapes, rule


@rule("scaled_dot_product_attention")
def scaled_dot_product_attention(
    lo: Lowering, query: Node, key: Node, value: Node, attn_mask: Any = None, dropout_p: float = 0.0,
    is_causal: bool = False, scale: Any = None, enable_gqa: bool = False,
) -> Shapes:  # fmt: skip
    return Shapes(((*query.shape[:-1], value.shape[-1]),))
