"""Says which operands a call of torch writes where its version counters do not."""

from __future__ import annotations

import types
from collections.abc import Mapping, Sequence

import torch

from framefuse.ir.torch_calls.row import Statistics
from framefuse.ir.torch_calls.table import TABLE
from framefuse.ir.values import Value


def is_in_place(name: str) -> bool:
    """Whether the name says that the first operand is written."""
    says_so = name.endswith("_") and not name.endswith("__") and "::" not in name
    return says_so or TABLE[name].writes_first


def norm(function: Value, name: str) -> Statistics | None:
    """Where a norm keeps running statistics; None for any other function. Those of torch.nn.functional take their
    arguments in another order than the operators of the same name.
    """
    return TABLE[f"F.{name}" if type(function) is types.FunctionType else name].statistics


def statistics(function: Value, name: str, args: Sequence[Value], kwargs: Mapping[str, Value]) -> list[Value]:
    """The running statistics that this call of a norm writes."""
    row = norm(function, name)
    if row is None or not _writes(row, args, kwargs):
        return []
    return [*args[row.place : row.place + 2], *(kwargs[name] for name in row.names if name in kwargs)]


def _writes(row: Statistics, args: Sequence[Value], kwargs: Mapping[str, Value]) -> bool:
    if row.when is None:
        return True
    return bool(args[row.when] if len(args) > row.when else kwargs.get(row.flag, row.default))


def counts(function: Value, name: str) -> int:
    """How often a write by this call counts a version of what it writes."""
    row = norm(function, name)
    return int(row.counted if row is not None else not TABLE[name].uncounted)


def uncounted(function: Value, name: str, args: Sequence[Value], kwargs: Mapping[str, Value]) -> list[Value]:
    """What a call may write though no version counter tells it: running statistics, and by a fused step of an optimizer
    the parameters and their state (all lists but that of the gradients).
    """
    if name.startswith("_fused_") and name.endswith("_"):
        return [part for place, value in enumerate(args) if place != 1 and isinstance(value, list) for part in value]
    return statistics(function, name, args, kwargs)


def declared(function: Value, args: Sequence[Value], kwargs: Mapping[str, Value]) -> list[Value]:
    """The tensors that a user's operator writes, as its schema says, or a launch of a user's kernel."""
    written = getattr(function, "written", None)
    if written is not None:
        return [args[place] for place in written]
    function = getattr(function, "target", function)
    if isinstance(function, torch._ops.OpOverload):
        schemas = [function._schema]
    else:
        schemas = [getattr(function, name)._schema for name in function.overloads()]
    found: list[Value] = []
    for schema in schemas:
        for place, parameter in enumerate(schema.arguments):
            if not parameter.is_write:
                continue
            value = args[place] if place < len(args) else kwargs.get(parameter.name)
            found += value if isinstance(value, (list, tuple)) else [value]
    return [value for value in found if isinstance(value, torch.Tensor)]
