"""What the autodiff stage makes of a graph: a forward graph that saves values, and all that backward graphs need."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from framefuse.ir.graph import Graph, Node
from framefuse.ir.numbers import Expr, Symbol

if TYPE_CHECKING:
    from framefuse.ir.passes import Step


@dataclass(frozen=True, slots=True)
class Saved:
    """A tensor of the forward plan that autograd or backward gets.

    ``kind`` is ``input`` (the tensor of graph input ``place`` itself), ``output`` (that of the forward graph's output
    ``place``, which the user sees too) or ``own`` (the forward graph's output ``place``, which nobody else sees).
    ``node`` is the value in the primal graph of its piece. With ``memory`` not the tensor is kept but its memory: it
    may be given other memory, as by ``tensor.data = ...``, or belong to the node that keeps it. ``settles``: the plan
    itself writes it after the node was made, so the version to compare with is that at the end of the call. An ``own``
    one may be the contents with which input number ``history`` came: to autograd it is that input then. What is read
    ``again`` is read as it is by then, and may be written.
    """

    node: Node
    kind: str
    place: int
    memory: bool = False
    settles: bool = False
    history: int | None = None
    again: bool = False


@dataclass(frozen=True, slots=True)
class Holder:
    """One node of eager's autograd graph, in terms of a graph: it made the outputs at the places ``made``, its
    gradients go to the holders number ``onto``, which stand before it, and to inputs number ``inputs``. It saved the
    memory of the inputs ``saved``, of these the ``selves`` as the tensors that they are, and of the outputs at
    ``shown``. ``frees``: a second walk through it is an error, unless the graph was retained. Of the inputs ``again``
    it reads in a walk what they hold by then.
    """

    made: tuple[int, ...]
    onto: tuple[int, ...]
    inputs: tuple[int, ...]
    saved: frozenset[int]
    selves: frozenset[int]
    shown: frozenset[int]
    frees: bool
    again: frozenset[int] = frozenset()


@dataclass(frozen=True, slots=True)
class Hold:
    """What eager's nodes hold that are walked when the gradient of one of certain inputs of a piece is wanted: those
    at the bits of ``wanted``. The versions of ``checks`` are compared, number by number of what the piece watches.
    ``frees`` is that of :class:`Holder`.
    """

    wanted: int
    checks: tuple[int, ...]
    frees: bool


@dataclass(frozen=True, slots=True)
class Given:
    """The gradients of a piece as a user's pass gave them: ``made`` computes the ``results``, one for each of its
    inputs, from the nodes of its graph and the ``tangents``, one for each of its outputs.
    """

    tangents: tuple[Node, ...]
    results: tuple[Node | None, ...]
    made: tuple[Node, ...]


@dataclass(frozen=True, slots=True)
class Piece:
    """One node of autograd: the part of a graph that a backward pass walks whole or not at all.

    ``primal`` is that part of the lowered graph; its inputs are the graph's and then those outputs of earlier pieces
    that it reads. ``inputs`` are the tensors that require grad, as its ``differentiable`` inputs in this order;
    ``outputs`` the places of its outputs among the forward graph's. ``holds`` is what eager would check and free of it;
    ``watched`` are the tensors that nobody may write before the walk. ``saved`` is what backward reads, the last of the
    watched ones first, then the ``own`` ones; ``roots`` what it takes to compute the gradients from the beginning, as a
    function that can be differentiated again: inputs, and results of calls that must not run twice. ``numbers`` are the
    run-time sizes and names of floats that both may need. ``now`` are the nodes of ``primal`` that backward computes in
    place of others: they rest on copies, where eager keeps a value and others see what it is computed from. ``later``
    are the graph's inputs that it reads only behind what was written to them behind autograd's back. ``given`` are
    gradients in the place of those that follow from ``primal``.
    """

    primal: Graph
    inputs: tuple[Saved, ...]
    outputs: tuple[int, ...]
    holds: tuple[Hold, ...]
    watched: tuple[Saved, ...]
    saved: tuple[Saved, ...]
    roots: tuple[Saved, ...]
    numbers: tuple[Symbol | str, ...]
    now: Mapping[Node, Node] = field(default_factory=dict)
    later: frozenset[int] = frozenset()
    given: Given | None = None

    @property
    def reads(self) -> tuple[int, ...]:
        """The places of the outputs of earlier pieces that its gradients go to, now or when differentiated again."""
        return tuple(entry.place for entry in (*self.inputs, *self.roots) if entry.kind == "output")

    @property
    def histories(self) -> frozenset[int]:
        """The graph's inputs whose histories the gradients go to, now or when differentiated again."""
        places = {entry.place for entry in (*self.inputs, *self.roots) if entry.kind == "input"}
        return frozenset(places.union(entry.history for entry in self.roots if entry.history is not None))


@dataclass(frozen=True, slots=True)
class Halves:
    """A graph cut in two: ``forward`` is the lowered graph without the rows that speak of gradients, and with further
    outputs: what one piece takes from another, then the ``own`` saved values; ``pieces`` are the nodes of autograd that
    its outputs hang on, in order. ``steps`` are what users' passes did to them.
    """

    forward: Graph
    pieces: tuple[Piece, ...]
    steps: tuple[Step, ...] = ()


@dataclass(frozen=True, slots=True)
class Case:
    """One way in which the backward of a piece is asked: ``tangents[i]`` are the strides, in elements, of the gradient
    that came for its output ``i`` (None: none came), ``wanted[i]`` says whether input ``i`` wants one.
    """

    tangents: tuple[tuple[Expr, ...] | None, ...]
    wanted: tuple[bool, ...]


@dataclass(frozen=True, slots=True)
class Backward:
    """The graph of one :class:`Case`. Its inputs are first the saved values number ``saved``, then the gradients of
    the piece's outputs number ``tangents``. ``results[i]`` is the place of the output that is the gradient of the
    piece's input ``i``, None for none.
    """

    graph: Graph
    saved: tuple[int, ...]
    tangents: tuple[int, ...]
    results: tuple[int | None, ...]
