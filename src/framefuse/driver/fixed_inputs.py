"""Finds the inputs of a trace that stay from call to call, parameters and buffers, and what tells that they moved."""

from __future__ import annotations

from collections.abc import Mapping

import torch

from framefuse.guards.source_nodes import MISSING, held_in
from framefuse.ir.facts import Input, Source
from framefuse.ir.trace import Trace
from framefuse.ir.values import Arguments, Value
from framefuse.options import Options
from framefuse.runtime.kept_values import counts_writes

HOLDERS = ("_parameters", "_buffers")  # the dicts of a module
# Training writes to statistics by a call that no version counts, and counts in another buffer of the module.
STATISTICS, COUNTER = ("running_mean", "running_var"), "num_batches_tracked"


def fixed_inputs(trace: Trace, bound: Arguments | None, options: Options) -> Mapping[int, Source | None]:
    """The numbers of the inputs that are parameters and buffers of modules, each with another tensor of which a write
    tells that it moved, too; none where nothing is to be kept. ``bound`` are the values of the recorded call.
    """
    if not options.freeze or options.graphs:
        return {}
    found: dict[int, Source | None] = {}
    for number, given in enumerate(trace.assumptions.inputs):
        holder = _holder(given)
        if holder is None:
            continue
        witness = Source("item", holder, COUNTER) if given.source.key in STATISTICS else None
        if witness is not None and not isinstance(held_at(witness, bound), torch.Tensor):
            continue
        found[number] = witness
    return found


def _holder(given: Input) -> Source | None:
    """The dict of a module that a tensor is in, if it is in one and counts its writes."""
    holder = given.source.base if given.source.kind == "item" else None
    if holder is None or holder.kind not in ("attr", "getattr") or holder.key not in HOLDERS:
        return None
    return holder if given.spec.keys & counts_writes() else None


def held_at(source: Source, bound: Arguments | None) -> Value:
    """What a place holds now in the arguments ``bound``, or below what lives long; MISSING where that is unknown."""
    if source.kind == "object":
        return source.key
    if source.kind == "arg":
        return bound[source.key] if bound else MISSING
    holder = held_at(source.base, bound) if source.base is not None else MISSING
    return MISSING if holder is MISSING else held_in(source.kind, holder, source.key)
