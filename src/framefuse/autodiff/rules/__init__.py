"""The gradients of rows of the table, of library calls and of composite functions; importing fills the registry."""

from framefuse.autodiff.rules import casts, composites, indexing, products, reductions, views

__all__ = ["casts", "composites", "indexing", "products", "reductions", "views"]
