"""Turns a graph into one whose only work is a call that runs the whole of it on ATen, for devices without kernels."""

from __future__ import annotations

import types
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import torch

from framefuse.codegen.python import laid_out, load
from framefuse.ir.facts import Source
from framefuse.ir.graph import Arg, Graph, Node, Output, Write, call_attrs
from framefuse.ir.numbers import Real, Symbol
from framefuse.ir.printer import free_symbols, program
from framefuse.ir.strides import dense_strides


def on_aten(graph: Graph) -> Graph:
    """The same results and writes, all of them given by one library call over the inputs of ``graph``; a graph without
    work as it is.
    """
    if len(graph.nodes) == len(graph.inputs):
        return graph
    kept = [output for output in graph.outputs if output.input is None]
    wanted = [*kept, *(Output(-1, write.node, None) for write in graph.writes)]
    sized = [node for _, node, _ in graph.bound]
    call = AtenGraph(graph, wanted, sized)
    device = next((node.device for node in graph.nodes if node.device != "cpu"), "cpu")
    args = (tuple(Arg(place) for place in range(len(graph.inputs))), call.numbers, call.sources)
    attrs = call_attrs(call, args, (None,) * len(graph.inputs), random=call.random)
    first = wanted[0].node if wanted else graph.nodes[-1]
    node = Node("library", graph.inputs, attrs, first.dtype, (), None, first.line, device)
    results = [
        Node("result", (node,), (("path", (place,)),), old.dtype, old.shape, _strides(old, order), old.line, old.device)
        for place, (old, order) in enumerate([*((o.node, o.order) for o in wanted), *((n, None) for n in sized)])
    ]
    new = dict(zip(map(id, wanted), results, strict=False))
    outputs = tuple(replace(output, node=new[id(output)]) if id(output) in new else output for output in graph.outputs)
    written = results[len(kept) : len(wanted)]
    return replace(
        graph,
        nodes=(*graph.inputs, node, *results),
        outputs=outputs,
        writes=tuple(Write(w.input, result, w.bumps) for w, result in zip(graph.writes, written, strict=True)),
        bound=tuple(
            (symbol, result, dimension)
            for (symbol, _, dimension), result in zip(graph.bound, results[len(wanted) :], strict=True)
        ),
        kept=(node,),
    )


def computed(graph: Graph) -> Callable[[Sequence[torch.Tensor]], tuple[torch.Tensor, ...]]:
    """The outputs of a graph without numbers as a function of its inputs, in memory of their own and in their order."""
    call = AtenGraph(graph, graph.outputs, ())
    return lambda inputs: call(inputs, (), ())


def _strides(node: Node, order: Sequence[int] | None) -> tuple[Any, ...]:
    if node.op == "result" and node.strides is not None:
        return node.strides
    return dense_strides(node.shape, order if order is not None else range(len(node.shape)))


class AtenGraph:
    """A graph as one function: ``call(inputs, numbers, sources)`` gives the contents of ``outputs``, in memory of their
    own and in eager's order, and then the tensors of ``sized`` nodes.

    ``numbers`` are the values of the graph's free symbols in the order of the attribute ``numbers``, ``sources`` what
    the attribute ``sources`` names (generators).
    """

    whole = True  # of several steps: when one fails, others were made

    def __init__(self, graph: Graph, outputs: Sequence[Output], sized: Sequence[Node]) -> None:
        self.__name__ = f"{graph.name}_on_aten"
        more = tuple(Output(-1, node, None) for node in sized)
        printed = program(replace(graph, outputs=(*outputs, *more), writes=()))
        names = free_symbols(graph)
        self.names = printed.numbers
        self.numbers = tuple(_value(names[name]) for name in printed.numbers)
        self.places = tuple(place for place, part in enumerate(printed.constants) if isinstance(part, Source))
        self.sources = tuple(printed.constants[place] for place in self.places)
        self.constants = printed.constants
        self.function = load(printed)
        self.text = printed.text
        calls = [node for node in graph.nodes if node.op == "library"]
        self.random = any(node.attr("random") for node in calls)
        self.devices = tuple(dict.fromkeys(node.device for node in graph.nodes))
        self.commits = any(getattr(node.attr("target"), "commits", False) for node in calls)
        seen: set[Node] = set()
        self.orders: list[tuple[bool, Sequence[int] | None]] = []  # whether it must be a copy, the order it lies in
        for output in outputs:
            node = output.node
            self.orders.append((node.op == "input" or node in seen, output.order if node.op != "result" else None))
            seen.add(node)

    def __call__(self, inputs: Sequence[Any], numbers: Sequence[Any], sources: Sequence[Any]) -> tuple[Any, ...]:
        function = self.function
        if self.places:
            constants = list(self.constants)
            for place, value in zip(self.places, sources, strict=True):
                constants[place] = value
            space = {**function.__globals__, "constants": tuple(constants)}
            function = types.FunctionType(function.__code__, space)
        casts = [kind for kind in ("cpu", "cuda", "xpu") if torch.is_autocast_enabled(kind)]
        for kind in casts:
            torch.set_autocast_enabled(kind, False)
        try:
            results = list(function(*inputs, **dict(zip(self.names, numbers, strict=True))))
        finally:
            for kind in casts:
                torch.set_autocast_enabled(kind, True)
        for place, (copied, order) in enumerate(self.orders):
            tensor = results[place].clone() if copied else results[place]
            results[place] = tensor if order is None else laid_out(tensor, order)
        return tuple(results)


def _value(name: Symbol | str) -> Any:
    return name.expr if isinstance(name, Symbol) else Real("symbol", (name,))
