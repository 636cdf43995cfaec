"""Writes the function of n light statements that the curve measures, with lines that every tool can show."""

from __future__ import annotations

import linecache
from collections.abc import Callable

import torch
from torch import Tensor

# The statements, drawn in turn; a chain longer than the list begins again.
STATEMENTS = (
    "x = x + 0.1",
    "x = torch.sin(x)",
    "x = x * 1.1",
    "x = torch.cos(x)",
    "x = x + 0.2",
    "x = torch.relu(x)",
    "x = x - 0.1",
    "x = torch.exp(x * 0.5)",
    "x = x + 0.3",
    "x = torch.sigmoid(x)",
    "x = x * 1.2",
    "x = torch.sin(x)",
    "x = x + 0.4",
    "x = torch.cos(x)",
    "x = x - 0.2",
    "x = torch.relu(x)",
    "x = x + 0.5",
    "x = torch.exp(x * 0.4)",
    "x = x * 1.3",
    "x = torch.sigmoid(x)",
)


def source(count: int) -> str:
    """The text of the chain of `count` statements, closed by a sum."""
    body = [STATEMENTS[i % len(STATEMENTS)] for i in range(count)]
    return "\n    ".join(["def chain(x):", *body, "return x.sum()"]) + "\n"


def chain(count: int) -> Callable[[Tensor], Tensor]:
    """A function of its own, code object included, with lines that debuggers and tracebacks can show."""
    text, name = source(count), f"<chain of {count} statements>"
    linecache.cache[name] = (len(text), None, text.splitlines(keepends=True), name)
    namespace: dict[str, object] = {"torch": torch, "__name__": f"chain_{count}"}
    exec(compile(text, name, "exec"), namespace)
    function = namespace["chain"]
    assert callable(function)
    return function
