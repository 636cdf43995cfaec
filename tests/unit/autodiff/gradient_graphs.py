"""Builds graphs of primitives, takes their gradients and compares them, run by the reference, with torch's autograd."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from tests.unit.lower.recording import read

from framefuse.autodiff.differentiable_forms import with_differentiable_forms
from framefuse.autodiff.reverse import gradients
from framefuse.capture.record import record
from framefuse.codegen.python import compile_graph
from framefuse.ir.builder import Builder, builder_over
from framefuse.ir.dtypes import BY_TORCH
from framefuse.ir.graph import Graph, Node, Output
from framefuse.ir.nested import symbols_in
from framefuse.ir.numbers import Symbol, expr
from framefuse.ir.verify import verify
from framefuse.lower import lower


def graph_of(build: Callable[..., Any], *tensors: torch.Tensor, symbolic: bool = False) -> Graph:
    """The graph of ``build(builder, *nodes)``, one input for each tensor; ``symbolic`` names each size by a symbol of
    its value.
    """
    hints = {Symbol(f"s{size}"): size for tensor in tensors for size in tensor.shape} if symbolic else {}
    builder = Builder(hints)
    builder.extents = set(hints)
    nodes = []
    for place, tensor in enumerate(tensors):
        shape = tuple(Symbol(f"s{size}").expr if symbolic else expr(size) for size in tensor.shape)
        strides = [expr(1)]
        for size in reversed(shape[1:]):
            strides.insert(0, strides[0] * size)
        attrs = (("index", place),)
        dtype = BY_TORCH[tensor.dtype]
        nodes.append(builder.opaque("input", (), attrs, dtype, shape, tuple(strides[: len(shape)]), "cpu"))
    found = build(builder, *nodes)
    return whole(builder, nodes, found if isinstance(found, (list, tuple)) else (found,))


def whole(builder: Builder, inputs: Sequence[Node], results: Sequence[Node], bound: Any = ()) -> Graph:
    """What the results need, in order, as a graph."""
    marked: set[Node] = set(inputs)
    waiting = list(results)
    binder = {symbol: node for symbol, node, _ in bound}
    while waiting:
        node = waiting.pop()
        if node not in marked:
            marked.add(node)
            waiting += node.inputs
            waiting += [binder[symbol] for symbol in symbols_in(node) if symbol in binder]
    nodes = (*inputs, *(node for node in builder.nodes if node in marked and node not in set(inputs)))
    outputs = tuple(Output(place, node, tuple(range(len(node.shape)))) for place, node in enumerate(results))
    graph = Graph("graph", tuple(inputs), nodes, outputs, (), tuple(builder.relations),
                  bound=tuple(entry for entry in bound if entry[1] in marked), hints=builder.hints)  # fmt: skip
    verify(graph, "autodiff")
    return graph


def gradient_graph(
    graph: Graph, wanted: Sequence[int], given: Sequence[bool] | None = None, again: bool = False
) -> tuple[Graph, list[bool]]:
    """The graph that takes the inputs and a tangent for each output (where ``given``) and gives the gradients of the
    wanted inputs; and which of these exist.
    """
    graph = graph if again else with_differentiable_forms(graph)
    builder = builder_over(graph)
    inputs = list(graph.inputs)
    seeds = []
    for place, output in enumerate(graph.outputs):
        asked = output.requires_grad or not graph.differentiable
        if given[place] if given is not None else asked:
            node = output.node
            attrs = (("index", len(inputs)),)
            strides = [expr(1)]
            for size in reversed(node.shape[1:]):
                strides.insert(0, strides[0] * size)
            inputs.append(
                builder.opaque("input", (), attrs, node.dtype, node.shape, tuple(strides[: len(node.shape)]), "cpu")
            )
            seeds.append((node, inputs[-1]))
    found = gradients(builder, seeds, [graph.inputs[place] for place in wanted], again)
    results = [found[graph.inputs[place]] for place in wanted]
    made = [node for node in results if node is not None]
    return whole(builder, inputs, made, graph.bound), [node is not None for node in results]


def run_gradients(
    graph: Graph, tensors: Sequence[torch.Tensor], tangents: Sequence[torch.Tensor], wanted: Sequence[int]
) -> list[Any]:
    """The gradients of the wanted inputs by the reference, None where none flows."""
    backward, exists = gradient_graph(graph, wanted)
    found = iter(compile_graph(backward)([*tensors, *tangents]))
    return [next(found) if there else None for there in exists]


def eager_gradients(
    function: Callable[..., Any], tensors: Sequence[torch.Tensor], frozen: Sequence[int] = (), wide: bool = False
) -> tuple[list[Any], list[Any]]:
    """Random tangents for the results of ``function``, and what autograd makes of them (in double if ``wide``)."""
    leaves = []
    for place, tensor in enumerate(tensors):
        leaf = tensor.detach().double() if wide and tensor.is_floating_point() else tensor.detach().clone()
        leaves.append(leaf.requires_grad_(tensor.is_floating_point() and place not in frozen))
    results = function(*leaves)
    results = results if isinstance(results, (list, tuple)) else [results]
    torch.manual_seed(1)
    given = [result for result in results if result.requires_grad]
    dtype = tensors[0].dtype if wide else None
    tangents = [torch.randn_like(result, dtype=dtype).to(result.dtype) for result in given]
    wanted = [leaf for leaf in leaves if leaf.requires_grad]
    if not given:
        return [], [None] * len(wanted)
    return tangents, list(torch.autograd.grad(given, wanted, tangents, allow_unused=True))


def compare(
    found: Sequence[Any], expected: Sequence[Any], exact: Callable[[], Sequence[Any]] | None = None, **bounds: float
) -> None:
    """Ours are eager's, or in 16 bits as near to the ``exact`` ones as eager's are."""
    assert [part is None for part in found] == [part is None for part in expected], (found, expected)
    for place, (a, b) in enumerate(zip(found, expected, strict=True)):
        if b is None:
            continue
        try:
            torch.testing.assert_close(a, b, equal_nan=True, **bounds)
        except AssertionError:
            if b.dtype not in (torch.float16, torch.bfloat16) or exact is None:
                raise
            truth = exact()[place]
            if (a.double() - truth).abs().max() > (b.double() - truth).abs().max():
                raise


def check(
    build: Callable[..., Any], function: Callable[..., Any], *tensors: torch.Tensor, symbolic: bool = False
) -> Graph:
    """The gradients of a graph built by hand are autograd's of ``function``; gives the backward graph."""
    graph = graph_of(build, *tensors, symbolic=symbolic)
    tangents, expected = eager_gradients(function, tensors)
    wanted = [place for place, node in enumerate(graph.inputs) if node.dtype.is_float]
    compare(run_gradients(graph, tensors, tangents, wanted), expected)
    return gradient_graph(graph, wanted)[0]


def trace_of(function: Callable[..., Any], *args: Any, **options: Any) -> Any:
    """The trace of a call in grad mode."""
    recording = record(function, args, {}, owner=None, **options)
    assert recording.exception is None, recording.exception
    assert recording.trace is not None, recording.reason
    return recording.trace


def lowered(trace: Any) -> Graph:
    """The graph of a trace, checked."""
    graph = lower(trace)
    verify(graph)
    return graph


def apart(value: Any) -> Any:
    """Copies of the results, so that a view of an argument is computed and not only made."""
    return value.clone() if isinstance(value, torch.Tensor) else [part.clone() for part in value]


def check_lowered(
    function: Callable[..., Any], *tensors: torch.Tensor, frozen: Sequence[int] = (), **bounds: float
) -> Graph:
    """The gradients of a lowered function are autograd's; gives the backward graph. ``frozen`` are the positions of
    arguments that require none.
    """
    leaves = [
        tensor.detach().clone().requires_grad_(tensor.is_floating_point() and place not in frozen)
        for place, tensor in enumerate(tensors)
    ]
    trace = trace_of(lambda *args: apart(function(*args)), *leaves)
    graph = lowered(trace)
    tangents, expected = eager_gradients(function, tensors, frozen)
    # Inputs are numbered in the order in which the program met them.
    order = [entry.source.key for entry in trace.assumptions.inputs]
    given = [tensors[place] for place in order]
    floats = [place for place, tensor in enumerate(tensors) if tensor.is_floating_point() and place not in frozen]
    wanted = [number for number, place in enumerate(order) if place in floats]

    def sorted_(parts: Sequence[Any]) -> list[Any]:
        return [parts[floats.index(place)] for place in order if place in floats]

    found = run_gradients(graph, given, tangents, wanted)
    compare(found, sorted_(expected), lambda: sorted_(eager_gradients(function, tensors, frozen, True)[1]), **bounds)
    return gradient_graph(graph, wanted)[0]


def numbers_of(trace: Any, inputs: Sequence[torch.Tensor], slots: Sequence[Any]) -> dict[str, Any]:
    """The run-time numbers of a trace by name, for these inputs and bound arguments."""
    numbers: dict[Any, Any] = {}
    for entry, tensor in zip(trace.assumptions.inputs, inputs, strict=True):
        numbers |= zip(entry.spec.sizes, tensor.shape, strict=True)
        numbers |= zip(entry.spec.strides or (), tensor.stride(), strict=False)
    for fact in trace.assumptions.facts:
        if fact.kind in ("integer", "real"):
            numbers[fact.value] = read(fact.source, slots)
        elif fact.kind == "count":
            numbers[fact.value] = len(read(fact.source, slots))
    return {str(name): value for name, value in numbers.items()}
