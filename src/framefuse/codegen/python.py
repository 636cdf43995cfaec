"""Executes a graph on torch tensors, node by node, by the formulas of the table: the oracle of tests."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import torch

from framefuse.ir.graph import Graph
from framefuse.ir.printer import Program, program


def compile_graph(graph: Graph) -> Any:
    """A function of the graph's input tensors and, by keyword, its free numbers; it gives a tuple of the outputs.

    Outputs have eager's memory order; new contents of inputs are copied into them. Torch's autograd sees the
    operations where ``grad`` is given and True.
    """
    printed = program(graph)
    function = load(printed)

    def run(
        inputs: Sequence[torch.Tensor], numbers: Mapping[str, int | float] | None = None, grad: bool = False
    ) -> tuple[Any, ...]:
        given = {name: value for name, value in (numbers or {}).items() if name in printed.numbers}
        with torch.set_grad_enabled(grad), torch.autocast("cpu", enabled=False):
            results = function(*inputs, **given)
        return tuple(
            result
            if output.input is not None or output.node.op == "result" or output.order is None
            else laid_out(result, output.order)
            for result, output in zip(results, graph.outputs, strict=True)
        )

    return run


def load(printed: Program) -> Any:
    """The printed program as a Python function."""
    space: dict[str, Any] = {"torch": torch, "math": math, "constants": printed.constants}
    exec(compile(printed.text, f"<graph {printed.name}>", "exec"), space)
    return space[printed.name]


def laid_out(tensor: torch.Tensor, order: Sequence[int]) -> torch.Tensor:
    """The tensor itself if it is dense in ``order`` (outermost dimension first), else such a copy."""
    rows = tensor.permute(*order) if order else tensor
    if rows.is_contiguous():
        return tensor
    inverse = [order.index(axis) for axis in range(len(order))]
    return rows.contiguous().permute(inverse)
