"""Records a function and compares its lowered graph, run by the reference, with eager."""

from __future__ import annotations

import functools
import operator
from collections.abc import Callable, Sequence
from typing import Any

import torch

from framefuse.capture.record import record
from framefuse.codegen.python import compile_graph
from framefuse.ir.graph import Graph, Late
from framefuse.ir.numbers import Expr
from framefuse.ir.trace import Build, Ref, Trace
from framefuse.ir.verify import verify
from framefuse.lower import lower


def trace_of(function: Callable[..., Any], *args: Any, dynamic: bool | None = None, **kwargs: Any) -> Trace:
    with torch.no_grad():
        recording = record(function, args, kwargs, owner=None, dynamic=dynamic)
    assert recording.exception is None, recording.exception
    assert recording.trace is not None, recording.reason
    return recording.trace


def lowered(function: Callable[..., Any], *args: Any, dynamic: bool | None = None, **kwargs: Any) -> Graph:
    graph = lower(trace_of(function, *args, dynamic=dynamic, **kwargs))
    verify(graph)
    return graph


def ops(graph: Graph) -> list[str]:
    """The primitives of a graph in order, inputs and constants left out."""
    return [node.op for node in graph.nodes if node.op not in ("input", "full", "result")]


def read(source: Any, slots: Sequence[Any]) -> Any:
    """What a source gives for these bound arguments; only plain paths."""
    if source.base is None:
        return slots[source.key] if source.kind == "arg" else source.key
    holder = read(source.base, slots)
    if source.kind == "dict":
        return holder.__dict__
    if source.kind == "item":
        return holder[source.key]
    if source.kind == "attr":
        return holder.__dict__[source.key]
    if source.kind == "global":
        return holder.__globals__[source.key]
    if source.kind == "cell":
        code = holder.__code__
        place = code.co_freevars.index(source.key) if isinstance(source.key, str) else source.key
        return holder.__closure__[place].cell_contents
    if source.kind == "type":
        return type(holder)
    if source.kind == "func":
        return holder.__func__
    if source.kind == "self":
        return holder.__self__
    return getattr(holder, source.key)


def outputs(trace: Trace, graph: Graph, slots: Sequence[Any]) -> tuple[dict[int, torch.Tensor], dict[Any, Any]]:
    """The graph's outputs by value number, by the reference, and all numbers by symbol; relations must hold.

    ``slots`` are the bound arguments: with ``*args`` as one tuple and ``**kwargs`` as one dict.
    """
    inputs = [read(entry.source, slots) for entry in trace.assumptions.inputs]
    numbers: dict[Any, Any] = {}
    for entry, tensor in zip(trace.assumptions.inputs, inputs, strict=True):
        numbers |= zip(entry.spec.sizes, tensor.shape, strict=True)
        numbers |= zip(entry.spec.strides or (), tensor.stride(), strict=False)
    for fact in trace.assumptions.facts:
        if fact.kind in ("integer", "real"):
            numbers[fact.value] = read(fact.source, slots)
        elif fact.kind == "count":
            numbers[fact.value] = len(read(fact.source, slots))
    sizes = {symbol: value for symbol, value in numbers.items() if isinstance(value, int)}
    for symbol, made in trace.assumptions.definitions:
        known = made.substitute(graph.values)
        numbers[symbol] = sizes[symbol] = known.evaluate(sizes, numbers)
    for relation in (*graph.relations, *trace.assumptions.relations):
        known = relation.substitute(graph.values)
        assert known.holds(sizes), f"{relation} does not hold: {sizes}"
    results = compile_graph(graph)(inputs, {str(name): value for name, value in numbers.items()})
    for symbol, value in graph.values.items():
        if value.symbols <= sizes.keys():
            numbers[symbol] = value.evaluate(sizes)
    found = {output.value: result for output, result in zip(graph.outputs, results, strict=True)}
    found |= {entry.value: tensor for entry, tensor in zip(trace.assumptions.inputs, inputs, strict=True)}
    for call in graph.late:
        late(call, found, {symbol: value for symbol, value in numbers.items() if isinstance(value, int)}, graph)
    return found, numbers


def late(call: Late, found: dict[int, torch.Tensor], sizes: dict[Any, int], graph: Graph) -> None:
    """Makes a late call on the values that were ``found``."""

    def given(part: Any) -> Any:
        if isinstance(part, Ref):
            return found[part.value]
        if isinstance(part, Expr):
            return part.substitute(graph.values).evaluate(sizes)
        if type(part) in (tuple, list):
            return type(part)(map(given, part))
        return slice(given(part.start), given(part.stop), given(part.step)) if type(part) is slice else part

    with torch.set_grad_enabled(call.grad):
        made = call.target(*given(call.args), **{name: given(part) for name, part in call.kwargs.items()})
    for value, path in call.results:
        found[value] = functools.reduce(operator.getitem, path, made)


def run(trace: Trace, graph: Graph, slots: Sequence[Any]) -> Any:
    """The trace's result, from the graph by the reference."""
    found, numbers = outputs(trace, graph, slots)

    def rebuild(part: Any) -> Any:
        if isinstance(part, Ref):
            return found[part.value]
        if isinstance(part, Build):
            if part.kind == "const":
                return part.value
            if part.kind == "source":
                return read(part.value, slots)
            parts = [rebuild(child) for child in part.parts]
            return {"list": list, "dict": dict}.get(part.kind, tuple)(parts)
        if hasattr(part, "evaluate"):
            return part.evaluate(numbers) if isinstance(part, Expr) else part.evaluate(numbers, numbers)
        return part

    return rebuild(trace.result)


def check(
    function: Callable[..., Any], *args: Any, others: Sequence[Sequence[Any]] = (), dynamic: bool | None = None
) -> Graph:
    """Eager and the lowered graph agree on the recorded arguments and on ``others``; arguments written in place too."""
    trace = trace_of(function, *copy(args), dynamic=dynamic)
    graph = lower(trace)
    verify(graph)
    for each in (args, *others):
        mine, eager = copy(each), copy(each)
        result = run(trace, graph, mine)
        with torch.no_grad():
            expected = function(*eager)
        compare(result, expected)
        compare(mine, eager)
    return graph


def copy(args: Any) -> Any:
    if isinstance(args, torch.Tensor):
        return args.clone()
    if isinstance(args, (tuple, list)):
        return type(args)(copy(part) for part in args)
    return args


def compare(result: Any, expected: Any) -> None:
    if isinstance(expected, torch.Tensor):
        torch.testing.assert_close(result, expected, equal_nan=True, check_stride=True)
        if expected.is_floating_point():
            zero = expected == 0
            assert torch.equal(torch.signbit(result[zero]), torch.signbit(expected[zero])), "signs of zeros"
    elif isinstance(expected, (tuple, list)):
        assert len(result) == len(expected)
        for a, b in zip(result, expected, strict=True):
            compare(a, b)
    else:
        assert result == expected or (result != result and expected != expected)
