"""The gradients of rows of the table, of library calls and of composite functions; importing fills the registry."""

from framefuse.autodiff.rules import (
    attention,
    batch_norm,
    casts,
    collectives,
    complex_parts,
    composites,
    convolution,
    indexing,
    library_products,
    linear_calls,
    own_backward,
    pooling,
    positions,
    products,
    reductions,
    selected,
    views,
    windows,
)

__all__ = [
    "attention", "batch_norm", "casts", "collectives", "complex_parts", "composites", "convolution", "indexing",
    "library_products",
    "linear_calls", "own_backward",
    "pooling", "positions", "products", "reductions", "selected", "views", "windows",
]  # fmt: skip
