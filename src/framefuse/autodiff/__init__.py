"""Turns a graph into a forward graph that saves values and backward graphs that compute gradients from them."""

from framefuse.autodiff.rebuild import without_marks

__all__ = ["without_marks"]
