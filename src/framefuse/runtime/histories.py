"""Orders the derivatives of a plan, so that a view is made of what has its history already."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from framefuse.ir.graph import Graph
from framefuse.ir.trace import refs
from framefuse.runtime.derivative import Derivative


def views_behind(graph: Graph, inputs: int, derivatives: Sequence[Derivative]) -> Sequence[Derivative]:
    """The derivatives, those that read a view of an output behind that which hangs the output into autograd: made
    earlier, the view would have no history. ``inputs`` is the number of the trace's own; views are read behind them.
    """
    hangs = {graph.outputs[place].value: each for each in derivatives for place in each.piece.outputs}
    viewed = {result: refs((late.args, late.kwargs)) for late in graph.late for result, _ in late.results}

    def bases(value: int) -> Iterator[int]:
        waiting = [value]
        while waiting:
            value = waiting.pop()
            waiting += viewed.get(value, ())
            yield value

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
            read = [each.place - inputs for each in derivative.piece.inputs if each.kind == "input"]
            views = (graph.shown[place] for place in read if place >= 0)
            waiting += [(hangs[base], False) for view in views for base in bases(view) if base in hangs]
    return tuple(ordered.values())
