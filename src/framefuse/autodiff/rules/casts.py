"""Gradients of conversions."""

from __future__ import annotations

from collections.abc import Sequence

from framefuse.autodiff.registry import Gradient, vjp
from framefuse.ir.builder import Builder
from framefuse.ir.graph import Node


@vjp("cast")
def cast(builder: Builder, node: Node, g: Node, need: Sequence[bool]) -> Sequence[Gradient]:
    return [builder.cast(g, node.inputs[0].dtype)]
