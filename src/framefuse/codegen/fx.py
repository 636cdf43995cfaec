"""Turns a graph into a torch.fx.GraphModule that computes it, by running its printed program on proxies."""

from __future__ import annotations

import math
import types
from collections.abc import Callable
from typing import Any

import torch
import torch.fx
from torch.fx.proxy import GraphAppendingTracer

from framefuse.ir.graph import Graph
from framefuse.ir.printer import program

PLAIN = (torch.device, torch.Size)  # types that are called for a value, not for a tensor
HOMES = (types.ModuleType, type)


def graph_module(graph: Graph) -> torch.fx.GraphModule:
    """The graph as a module of its input tensors and then of its free numbers, in the order of the printed program."""
    printed = program(graph)
    fx_graph = torch.fx.Graph()
    tracer = GraphAppendingTracer(fx_graph)
    inputs = [torch.fx.Proxy(fx_graph.placeholder(f"x{place}"), tracer) for place in range(len(graph.inputs))]
    numbers = {name: torch.fx.Proxy(fx_graph.placeholder(name), tracer) for name in printed.numbers}
    space: dict[str, Any] = {
        "torch": _Home(torch, tracer),
        "math": _Home(math, tracer),
        "constants": tuple(_node(tracer, part) if callable(part) else part for part in printed.constants),
        **{function.__name__: _node(tracer, function) for function in (min, max, float, int)},
    }
    exec(compile(printed.text, f"<graph {printed.name}>", "exec"), space)
    results = space[printed.name](*inputs, **numbers)
    fx_graph.output(torch.fx.node.map_aggregate(results, lambda part: getattr(part, "node", part)))
    return torch.fx.GraphModule(torch.nn.Module(), fx_graph, printed.name)


class _Home:
    """A module or class of torch whose functions become nodes where they are called."""

    def __init__(self, home: Any, tracer: GraphAppendingTracer) -> None:
        self.home, self.tracer = home, tracer

    def __getattr__(self, name: str) -> Any:
        value = getattr(self.home, name)
        if isinstance(value, HOMES) and value not in PLAIN:
            return _Home(value, self.tracer)
        return _node(self.tracer, value) if callable(value) and value not in PLAIN else value


def _node(tracer: GraphAppendingTracer, function: Callable[..., Any]) -> Callable[..., Any]:
    """``function``, each call of which becomes a node."""
    target = function if hasattr(function, "__name__") else _named(function)

    def call(*args: Any, **kwargs: Any) -> Any:
        return tracer.create_proxy("call_function", target, args, kwargs)

    return call


def _named(instance: Callable[..., Any]) -> Callable[..., Any]:
    """A function in the place of an object that is called: the text of a module names what it calls."""

    def call(*args: Any, **kwargs: Any) -> Any:
        return instance(*args, **kwargs)

    call.__name__ = type(instance).__name__.lower()
    return call
