"""Gives a compiled function's graphs to the user: captured, forward, backward; to print, to run, as FX modules."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import cached_property

import torch.fx

from framefuse.codegen.fx import graph_module
from framefuse.errors import Stop, UserError, kind_of
from framefuse.ir.derivative import Piece
from framefuse.ir.graph import Graph
from framefuse.ir.printer import graph_text
from framefuse.ir.trace import Trace
from framefuse.ir.values import Arguments, Function, Value
from framefuse.runtime.compilation import Compilation
from framefuse.runtime.function import behind, compiled_function
from framefuse.runtime.fx_graph import fx_graph


class ShownGraph:
    """One graph of a compiled function. It prints as what it computes, with the user's lines where they are known;
    ``module`` is it as a ``torch.fx.GraphModule``, and a call runs that: on the graph's input tensors, then on the
    numbers that ``module`` has as further placeholders.
    """

    def __init__(self, name: str, text: Callable[[ShownGraph], str], make: Callable[[], torch.fx.GraphModule]) -> None:
        self.name = name
        self._text, self._make = text, make

    @cached_property
    def module(self) -> torch.fx.GraphModule:
        """The graph as torch's tools take it; raises UserError for one that has no such form."""
        try:
            return self._make()
        except Stop as stop:
            raise UserError(f"{self.name} has no FX form: {stop.reason}") from stop

    def __call__(self, *inputs: Value) -> Arguments:
        results: Arguments = self.module(*inputs)
        return results

    def __str__(self) -> str:
        return self._text(self)

    def __repr__(self) -> str:
        return f"<{self.name}>"


@dataclass(frozen=True, slots=True)
class Graphs:
    """The graphs of one compiled stretch: ``captured`` is what the program asked torch for, ``forward`` the primitives
    that a call computes, with what it saves for backward behind its results, and ``backward`` a graph for each case of
    a backward pass that was asked for so far, over what was saved and the gradients that came; it gives the gradients
    of inputs in their order.
    """

    captured: ShownGraph
    forward: ShownGraph
    backward: tuple[ShownGraph, ...] = field(default=())

    def __str__(self) -> str:
        return "\n\n".join(f"# {graph.name}\n{graph}" for graph in (self.captured, self.forward, *self.backward))


def graphs(function: Function) -> list[Graphs]:
    """What :func:`framefuse.graphs` gives."""
    state = compiled_function(behind(function)[0])
    if state is None:
        raise UserError(f"{kind_of(function)} has no graphs. Give what framefuse.compile returned")
    compiled_graphs = []
    for product in state.products:
        stages, name = product.stages, product.stages.trace.name
        cases = [
            _as_inputs(derivative.piece, case.stages)
            for derivative in stages.derivatives
            for case in derivative.cases
        ]
        backward = tuple(_primitives(f"backward {number} of {name}", case) for number, case in enumerate(cases, 1))
        captured = _captured(f"captured graph of {name}", stages.trace)
        compiled_graphs.append(Graphs(captured, _primitives(f"forward graph of {name}", stages.graph), backward))
    return compiled_graphs


def _as_inputs(piece: Piece, stages: Compilation) -> Graph:
    """A graph of gradients that gives them in the order of the program's inputs, not in that in which they arrive."""
    graph, given = stages.graph, stages.trace.result.parts
    place = {
        part.value: (entry.kind != "input", entry.place)
        for entry, part in zip(piece.inputs, given, strict=True)
        if part is not None
    }
    if set(place) != {output.value for output in graph.outputs}:
        return graph
    return replace(graph, outputs=tuple(sorted(graph.outputs, key=lambda output: place[output.value])))


def _primitives(name: str, graph: Graph) -> ShownGraph:
    return ShownGraph(name, lambda shown: graph_text(graph), lambda: graph_module(graph))


def _captured(name: str, trace: Trace) -> ShownGraph:
    return ShownGraph(name, lambda shown: str(shown.module.code).strip(), lambda: fx_graph(trace).module)
