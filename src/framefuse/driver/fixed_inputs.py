"""Finds the inputs of a trace that stay from call to call, parameters and buffers, and what tells that they moved."""

from __future__ import annotations

from collections.abc import Mapping

import torch

from framefuse.guards.source_nodes import MISSING, held_in
from framefuse.ir.derivations import STATISTICS, counter_beside
from framefuse.ir.facts import Input, Source
from framefuse.ir.trace import Trace
from framefuse.ir.values import Arguments, Value
from framefuse.options import Options
from framefuse.runtime.kept_values import counts_writes

HOLDERS = ("_parameters", "_buffers")  # the dicts of a module


def fixed_inputs(trace: Trace, bound: Arguments | None, options: Options) -> Mapping[int, bool]:
    """The numbers of the inputs that are parameters and buffers of modules, each with whether the counter beside it
    tells when it moves; none where nothing is to be kept. ``bound`` are the values of the recorded call.
    """
    if not options.freeze or options.exact:
        return {}
    found: dict[int, bool] = {}
    for number, given in enumerate(trace.assumptions.inputs):
        if _is_of_module(given):
            told = given.source.key in STATISTICS
            if not told or isinstance(held_at(counter_beside(given.source), bound), torch.Tensor):
                found[number] = told
    return found


def _is_of_module(given: Input) -> bool:
    """Whether a tensor is in such a dict, and counts its writes."""
    holder = given.source.base if given.source.kind == "item" else None
    named = holder is not None and holder.kind in ("attr", "getattr") and holder.key in HOLDERS
    return named and bool(given.spec.keys & counts_writes())


def held_at(source: Source, bound: Arguments | None) -> Value:
    """What a place holds now in the arguments ``bound``, or below what lives long; MISSING where that is unknown."""
    if source.kind == "object":
        return source.key
    if source.kind == "arg":
        return bound[source.key] if bound else MISSING
    holder = held_at(source.base, bound) if source.base is not None else MISSING
    return MISSING if holder is MISSING else held_in(source.kind, holder, source.key)
