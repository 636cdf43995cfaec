"""What the autodiff stage makes of a graph: a forward graph that saves values, and all that backward graphs need."""

from __future__ import annotations

from dataclasses import dataclass

from framefuse.ir.graph import Graph, Node
from framefuse.ir.numbers import Expr, Symbol


@dataclass(frozen=True, slots=True)
class Saved:
    """A value handed from forward to backward.

    ``kind`` is ``input`` (the tensor of graph input ``place`` itself), ``output`` (that of the forward graph's output
    ``place``, which the user sees too) or ``own`` (the forward graph's output ``place``, which nobody else sees).
    ``node`` is the value in the primal graph.
    """

    node: Node
    kind: str
    place: int


@dataclass(frozen=True, slots=True)
class Case:
    """One way in which backward is asked: ``tangents[i]`` are the strides, in elements, of the gradient that came for
    differentiable output ``i`` (None: none came), ``wanted[i]`` says whether input ``i`` of those that require grad
    wants one.
    """

    tangents: tuple[tuple[Expr, ...] | None, ...]
    wanted: tuple[bool, ...]


@dataclass(frozen=True, slots=True)
class Halves:
    """A graph cut in two.

    ``primal`` is the graph as it was lowered; ``forward`` the same without the cuts of gradients and with one further
    output for each ``own`` saved value. ``inputs`` are the numbers of the inputs that require grad, ``outputs`` the
    places of the outputs that do. ``saved`` is what backward reads, the ``own`` ones last; ``roots`` what it takes to
    compute the gradients from the beginning, as a function that can be differentiated again: inputs, and results of
    calls that must not run twice. ``numbers`` are the run-time sizes and names of floats that both may need.
    """

    primal: Graph
    forward: Graph
    inputs: tuple[int, ...]
    outputs: tuple[int, ...]
    saved: tuple[Saved, ...]
    roots: tuple[Saved, ...]
    numbers: tuple[Symbol | str, ...]


@dataclass(frozen=True, slots=True)
class Backward:
    """The graph of one :class:`Case`. Its inputs are first the saved values number ``saved``, then the gradients of
    the differentiable outputs number ``tangents``. ``results[i]`` is the place of the output that is the gradient of
    the ``i``-th input that requires grad, None for none.
    """

    graph: Graph
    saved: tuple[int, ...]
    tangents: tuple[int, ...]
    results: tuple[int | None, ...]
