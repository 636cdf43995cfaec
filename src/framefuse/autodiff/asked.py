"""Says whether gradients of gradients read the elements of roots, or pass through these alone."""

from __future__ import annotations

from collections.abc import Collection

from framefuse.autodiff.halves import differentiable_graph
from framefuse.autodiff.joint import Joint, carrying
from framefuse.autodiff.rebuild import needed_for
from framefuse.autodiff.remembered import has_history
from framefuse.errors import Stop
from framefuse.ir.builder import Shape
from framefuse.ir.derivative import Case, Piece
from framefuse.ir.graph import Node
from framefuse.ir.strides import dense_strides


def asked(piece: Piece, written: Collection[int]) -> bool:
    """Whether the gradients of a piece, or gradients of these, read elements of the roots of these numbers.

    Where neither does, no further one will: a way from a saved value to such a root has slopes that do not depend on
    it, and the slopes of these are zero.
    """
    entries = (*piece.saved, *piece.roots)
    outputs = [output.node for output in piece.primal.outputs]
    case = Case(tuple(map(_dense, outputs)), (True,) * len(piece.inputs))
    lying = [entry.node.strides or _dense(entry.node) for entry in entries]
    try:
        backward = differentiable_graph(piece, case, lying)
        first = backward.graph
        places = range(len(backward.saved))
        needing = [place for place, node in enumerate(first.inputs) if has_history(node)]
        graph = carrying(first, needing)
        joint = Joint.of(graph, [True] * sum(o.requires_grad for o in graph.outputs), [True] * len(needing), True)
    except Stop:
        return True
    ends = [output.node for output in first.outputs]
    ends += [gradient for gradient in joint.results if gradient is not None]
    read = needed_for(ends, (), False)
    return any(first.inputs[p] in read for p in places if backward.saved[p] - len(piece.saved) in written)


def _dense(node: Node) -> Shape:
    return dense_strides(node.shape, tuple(range(len(node.shape))))
