"""Says which gradients of a piece are undefined where backwards of users gave None for some arguments."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from framefuse.autodiff.reverse import flows
from framefuse.ir.custom_calls import custom_call
from framefuse.ir.custom_runs import Ran
from framefuse.ir.derivative import Piece
from framefuse.ir.graph import Arg, Node
from framefuse.ir.values import Value


def undefined(piece: Piece, came: Sequence[bool], ran: Iterable[Ran]) -> list[int]:
    """The numbers of the inputs that no gradient reaches; ``came`` says for which outputs of the piece one came.

    Equal calls of which not all gave None for the same arguments are taken to have given zeros.
    """
    absent: dict[Callable[..., Value], frozenset[int]] = {}
    for call, places in ran:
        absent[call] = absent.get(call, places) & places
    outputs = zip(piece.primal.outputs, came, strict=True)
    reached = {output.node for output, there in outputs if there}
    for node in reversed(piece.primal.nodes):
        if node in reached:
            reached.update(_onto(node, absent))
    inputs = piece.primal.inputs
    return [number for number, place in enumerate(piece.primal.differentiable) if inputs[place] not in reached]


def _onto(node: Node, absent: dict[Callable[..., Value], frozenset[int]]) -> list[Node]:
    """The operands to which a gradient of the node goes."""
    call = custom_call(node)
    if call is None:
        return [operand for number, operand in enumerate(node.inputs) if flows(node, number)]
    _, operands, _ = node.attr("args")
    none = absent.get(call, frozenset()).union(call.none)
    wanted = [part for place, part in enumerate(operands) if call.needs[place] and place not in none]
    return [node.inputs[part.index] for part in wanted if isinstance(part, Arg)]
