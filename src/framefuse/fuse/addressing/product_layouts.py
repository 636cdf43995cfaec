"""Says which views of memory BLAS reads as operands of a product, and of which types."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from framefuse.fuse.addressing.strided import Strides, View, is_product_layout, one_batch_stride, strided
from framefuse.ir.graph import Node
from framefuse.ir.numbers import Symbol

BLAS_TYPES = ("float32", "float64")
GPU_TYPES = (*BLAS_TYPES, "bfloat16", "float16")


def has_blas_type(node: Node) -> bool:
    """Whether BLAS has products of a node's dtype on its device."""
    return node.dtype.name in (BLAS_TYPES if node.device == "cpu" else GPU_TYPES)


def product_view(operand: Node, strides_of: Callable[[Node], Strides], hints: Mapping[Symbol, int]) -> View | None:
    """The operand as a view that BLAS can read, None for one that must be copied to memory of its own."""
    return readable(strided(operand, strides_of, hints))


def readable(view: View | None) -> View | None:
    """The view where BLAS can read it; None for another."""
    if view is None:
        return None
    sizes, strides = view.node.shape, view.strides
    if not is_product_layout(sizes[-2], sizes[-1], strides[-2], strides[-1]):
        return None
    return view if one_batch_stride(sizes[:-2], strides[:-2]) is not None else None
