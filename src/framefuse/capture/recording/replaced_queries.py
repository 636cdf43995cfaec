"""Finds what a program set on the classes of tensors in place of torch's own."""

from __future__ import annotations

import sys
import types

from framefuse.capture.recording.state import refusal
from framefuse.ir.classes import PLAIN_TENSORS
from framefuse.ir.own_class import is_a
from framefuse.ir.torch_calls import TABLE
from framefuse.ir.values import Value

OWN = sys.stdlib_module_names | {"torch", "typing_extensions", "numpy", "opt_einsum"}
# Queries of tensors, which the recorder answers itself.
QUERIES = frozenset(name.rpartition(" ")[2] for name, row in TABLE.items() if row.stop or row.answer)


def refused() -> str | None:
    """What is active under which calls are not recorded: a mode of torch, or a query that the program answers."""
    query = set_on_tensors(QUERIES)
    return refusal() if query is None else f"A Tensor.{query} of the program"


def is_torchs(function: Value) -> bool:
    """Whether a function or property is torch's own, or of a library that it calls."""
    function = function.fget if is_a(function, property) else function
    return not is_a(function, types.FunctionType) or function.__globals__.get("__name__", "").split(".")[0] in OWN


def set_on_tensors(names: frozenset[str]) -> str | None:
    """One of these that the program set on the classes of tensors."""
    found = ((name, vars(kind)[name]) for kind in PLAIN_TENSORS for name in names & vars(kind).keys())
    return next((name for name, value in found if not is_torchs(value)), None)
