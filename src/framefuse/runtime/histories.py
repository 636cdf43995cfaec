"""Orders the derivatives of a plan, so that a view is made of what has its history already."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from framefuse.ir.graph import Graph
from framefuse.ir.trace import refs
from framefuse.runtime.derivative import Derivative

if TYPE_CHECKING:
    from framefuse.ir.derivative import Piece


def views_behind(graph: Graph, inputs: int, derivatives: Sequence[Derivative]) -> Sequence[Derivative]:
    """The derivatives, those that read a view of an output behind that which hangs the output into autograd: made
    earlier, the view would have no history, also where no gradient goes through it. What one takes from another stays
    behind that. ``inputs`` is the number of the trace's own; views are read behind them.
    """
    by_place = {place: each for each in derivatives for place in each.piece.outputs}
    hangs = {graph.outputs[place].value: each for place, each in by_place.items()}
    viewed = {result: refs((late.args, late.kwargs)) for late in graph.late for result, _ in late.results}

    def bases(value: int) -> Iterator[int]:
        waiting = [value]
        while waiting:
            value = waiting.pop()
            waiting += viewed.get(value, ())
            yield value

    def behind(piece: Piece) -> Iterator[Derivative]:
        entries = (*piece.inputs, *piece.watched, *piece.saved, *piece.roots)
        views = {each.place - inputs for each in entries if each.kind == "input" and each.place >= inputs}
        yield from (by_place[place] for place in piece.reads if place in by_place)
        yield from (hangs[base] for place in sorted(views) for base in bases(graph.shown[place]) if base in hangs)

    ordered: dict[int, Derivative] = {}
    begun: set[int] = set()
    waiting = [(derivative, False) for derivative in reversed(derivatives)]
    while waiting:
        derivative, ready = waiting.pop()
        if ready:
            ordered[id(derivative)] = derivative
        elif id(derivative) not in begun:
            begun.add(id(derivative))
            waiting.append((derivative, True))
            waiting += [(each, False) for each in behind(derivative.piece)]
    return tuple(ordered.values())
