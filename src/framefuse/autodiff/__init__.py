"""Turns a graph into a forward graph that saves values and backward graphs that compute gradients from them."""

from framefuse.autodiff.asked import asked
from framefuse.autodiff.differentiable_forms import with_kept_moments
from framefuse.autodiff.halves import backward_graph, differentiable_graph, halves, reads
from framefuse.autodiff.joint import carrying
from framefuse.autodiff.rebuild import without_marks
from framefuse.autodiff.remembered import on_torch
from framefuse.autodiff.undefined import undefined

__all__ = [
    "asked", "backward_graph", "carrying", "differentiable_graph", "halves", "on_torch", "reads", "undefined",
    "with_kept_moments", "without_marks",
]  # fmt: skip
