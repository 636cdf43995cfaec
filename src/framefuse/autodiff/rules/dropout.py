"""The gradient of dropout by the library: what was kept, scaled as it was."""

from __future__ import annotations

from collections.abc import Sequence

from framefuse.autodiff.registry import Given, Gradient, vjp_call
from framefuse.ir.builder import Builder
from framefuse.ir.dtypes import BOOL, FLOAT32, FLOAT64
from framefuse.ir.graph import Node


@vjp_call("dropped")
def dropped(builder: Builder, node: Node, given: Given, need: Sequence[bool]) -> Sequence[Gradient] | None:
    """Rounded once, as by at::native_dropout_backward."""
    parts, g = builder.results(node), given[(0,)]
    left = parts[(0,)]
    mask = parts.get((1,)) or builder.opaque(
        "result", (node,), (("path", (1,)),), BOOL, left.shape, left.strides, left.device
    )
    wide = FLOAT64 if g.dtype is FLOAT64 else FLOAT32
    kept = builder.pointwise("mul", builder.cast(g, wide), builder.cast(mask, wide))
    scale = builder.full(node.attr("target").scale, wide, g.shape, g.device)
    return [builder.cast(builder.pointwise("mul", kept, scale), g.dtype)]
