"""Turns traces of torch calls into graphs over the closed set of primitives, each call checked against eager."""

from framefuse.lower import (  # noqa: F401  importing a family registers its rules
    activations,
    attention,
    autograd_operators,
    binary,
    casts,
    collectives,
    complex_rules,
    convolution,
    counted_shapes,
    creation,
    cross,
    diagonals,
    einsum,
    embedding,
    indexing,
    interpolation,
    known_shapes,
    logic,
    losses,
    matrix_shapes,
    normalisation,
    picture_windows,
    pointwise,
    pooling,
    products,
    random_numbers,
    recurrent,
    reductions,
    replaced,
    scans,
    scatter,
    views,
)
from framefuse.lower.lower import lower

__all__ = ["lower"]
