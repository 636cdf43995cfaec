"""Finds what the placeholders of a captured graph stand for in the call that was recorded."""

from __future__ import annotations

import torch

from framefuse import _native
from framefuse.errors import Stop
from framefuse.guards.changes import value_at
from framefuse.ir.facts import Source
from framefuse.ir.guards import Guards
from framefuse.ir.numbers import Real
from framefuse.ir.stops import reason
from framefuse.ir.trace import Ref, Trace
from framefuse.ir.values import Arguments, Value
from framefuse.runtime.fx_graph import Captured, example_inputs


def examples_of(captured: Captured, guards: Guards, bound: Arguments, trace: Trace, same: bool = False) -> Arguments:
    """The values of the call for the placeholders. A call that has changed what it depends on, as a step of training
    sets gradients, leaves tensors of the recorded kind, which will do unless they are to be the ``same`` values.
    """
    checked = _native.GuardSet(guards.program).check(bound)
    if isinstance(checked, tuple):
        registers, numbers = checked
        return example_inputs(trace, captured, registers, numbers, guards.number_of, guards.register_of)
    left = None if same else _left(captured, bound, trace)
    if left is None:
        fact = guards.program.texts[checked] if checked >= 0 else "torch's global state"
        raise Stop(reason("changed-itself", f"The call itself changed what it depends on: {fact}.", trace.line))
    return left


def _left(captured: Captured, bound: Arguments, trace: Trace) -> Arguments | None:
    """What the call left where it read its inputs, and the numbers that it had; None where an input is of another kind
    now.
    """
    sources = {entry.value: entry.source for entry in trace.assumptions.inputs}
    values: dict[Source, Value] = {}
    examples: list[Value] = []
    for feed in captured.feeds:
        if isinstance(feed, Real):
            examples.append(feed.evaluate(trace.hints, trace.real_hints))
            continue
        if not isinstance(feed, Ref):
            examples.append(feed.evaluate(trace.hints))
            continue
        tensor, meta = value_at(sources[feed.value], bound, values), trace.metas[feed.value]
        if not isinstance(tensor, torch.Tensor) or tensor.requires_grad != meta.requires_grad:
            return None
        if (tensor.dtype, tuple(tensor.shape), str(tensor.device)) != (meta.dtype, tuple(meta.sizes), meta.device):
            return None
        examples.append(tensor)
    return tuple(examples)
