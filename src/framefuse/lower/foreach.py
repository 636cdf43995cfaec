"""Turns torch's calls over lists of tensors (``_foreach_add``) into one call for each tensor, as the CPU does them."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator

import torch

from framefuse.ir.trace import Call, Ref, Trace
from framefuse.ir.values import Value
from framefuse.lower.fused_steps import FUSED
from framefuse.lower.fused_steps import parts as fused_parts

PREFIX = "_foreach_"
# Calls whose third operand is a factor, which the method takes by name.
# Calls that write their first operand and have no method that does.
OUTS = ("maximum_", "minimum_")
SEQUENCES = (list, tuple)
FACTORS = ("addcmul", "addcdiv")


def each(trace: Trace) -> Trace:
    """The trace with calls over lists taken apart."""
    if not any(call.name.startswith(PREFIX) or call.name in FUSED for call in trace.calls):
        return trace
    metas = list(trace.metas)
    calls = tuple(
        part for call in trace.calls for part in (fused_parts(call, metas) if call.name in FUSED else _parts(call))
    )
    return dataclasses.replace(trace, calls=calls, metas=tuple(metas))


def _parts(call: Call) -> Iterator[Call]:
    """The calls that a call stands for: itself, if it is none over a list or its method is not known."""
    name = call.name.removeprefix(PREFIX)
    function = torch.linalg.vector_norm if name == "norm" else getattr(torch.Tensor, name, None)
    out = name in OUTS
    function = getattr(torch, name[:-1]) if out else function
    lists = [value for value in (*call.args, *call.kwargs.values()) if type(value) in SEQUENCES]
    if name == call.name or function is None or not lists or len({len(values) for values in lists}) != 1:
        yield call
        return
    in_place = name.endswith("_")
    results = lists[0] if in_place else call.result
    if not isinstance(results, (list, tuple)) or len(results) != len(lists[0]):
        yield call
        return
    for place, result in enumerate(results):
        args = tuple(_at(value, place) for value in call.args)
        kwargs = {key: _at(value, place) for key, value in call.kwargs.items()}
        target = function
        if not isinstance(args[0], Ref):  # a number to the power of tensors
            target = getattr(torch, name)
        elif name.rstrip("_") in FACTORS and len(args) == 4:
            kwargs["value"], args = args[3], args[:3]
        elif name == "norm" and len(args) == 3:
            kwargs["dtype"], args = args[2], args[:2]
        written = (result.value,) if in_place and isinstance(result, Ref) else ()
        if out:
            kwargs["out"] = result
        short = "vector_norm" if name == "norm" else name[:-1] if out else name
        yield dataclasses.replace(
            call, target=target, name=short, args=args, kwargs=kwargs, result=result, written=written
        )


def _at(value: Value, place: int) -> Value:
    return value[place] if type(value) in SEQUENCES else value
