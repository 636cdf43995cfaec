"""Records the two functions of a replaced pattern as graphs whose sizes and floats are open."""

from __future__ import annotations

import inspect
from collections.abc import Sequence

import torch

from framefuse.driver.passes import AOT_EAGER
from framefuse.driver.tree import compiler
from framefuse.errors import UserError, kind_of
from framefuse.ir.facts import Source
from framefuse.ir.patterns import Exchange, Template
from framefuse.ir.values import Function, Value
from framefuse.options import Options
from framefuse.runtime.function import CompiledFunction


def exchanges(pattern: Function, replacement: Function, inputs: Sequence[Value]) -> list[Exchange]:
    """What is sought and what comes in its place: as it is recorded without gradients, and with them where that is
    another graph.
    """
    pairs: list[Exchange] = []
    for trains in (False, True):
        given = [_example(value, trains) for value in inputs]
        if trains and not any(isinstance(value, torch.Tensor) and value.requires_grad for value in given):
            continue
        exchange = Exchange(_template(pattern, given, "pattern"), _template(replacement, given, "replacement"))
        unknown = exchange.replacement.tensors.keys() - exchange.pattern.tensors.keys()
        if unknown:
            raise UserError(f"the replacement reads {', '.join(sorted(unknown))}, which the pattern does not. Read it")
        if not any(each.same(exchange) for each in pairs):
            pairs.append(exchange)
    return pairs


def _example(value: Value, trains: bool) -> Value:
    if not isinstance(value, torch.Tensor):
        return value
    return value.detach().clone().requires_grad_(trains and value.dtype.is_floating_point)


def _template(function: Function, inputs: Sequence[Value], what: str) -> Template:
    """The lowered graph of one call, by the function's parameters."""
    if not inspect.isfunction(function):
        raise UserError(f"the {what} is {kind_of(function)}. Write a Python function of tensors and floats")
    state = CompiledFunction(function, None, Options(dynamic=True, fullgraph=True), compiler(AOT_EAGER))
    trains = any(isinstance(value, torch.Tensor) and value.requires_grad for value in inputs)
    with torch.set_grad_enabled(trains):
        state.dispatch(*inputs)
    if len(state.products) != 1:
        why = "; ".join(map(str, state.reasons)) or "nothing was compiled"
        raise UserError(f"the {what} cannot be recorded whole: {why}. Write it with torch's functions alone")
    stages = state.products[0].stages
    graph, assumptions = stages.lowered, stages.trace.assumptions
    inner = any(node is not graph.outputs[0].node for _, node, _ in graph.bound) or (graph.bound and what == "pattern")
    if len(graph.outputs) != 1 or graph.outputs[0].input is not None or graph.writes or graph.late or inner:
        raise UserError(f"the {what} does more than compute one tensor whose sizes follow from its inputs'. Change it")
    names = list(inspect.signature(function).parameters)
    tensors = {_parameter(entry.source, names, what): place for place, entry in enumerate(assumptions.inputs)}
    floats = {_parameter(fact.source, names, what): fact.value for fact in assumptions.facts if fact.kind == "real"}
    return Template(graph, tensors, floats)


def _parameter(source: Source, names: Sequence[str], what: str) -> str:
    """The parameter that an input is."""
    if source.kind != "arg":
        raise UserError(f"the {what} reads {source}, which is none of its parameters. Make it one")
    return names[source.key]
