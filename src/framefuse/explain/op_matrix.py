"""Turns the table of primitives and the lowering rules into the matrix that `framefuse ops` prints."""

from __future__ import annotations

import warnings

import torch

from framefuse.codegen.llvm.pointwise import known
from framefuse.ir.dtypes import ROWS, DType
from framefuse.ir.ops import POINTWISE, TABLE, Op
from framefuse.ir.values import Function
from framefuse.lower import rules

# The element types that kernels can hold.
DTYPES = tuple(dtype for dtype in ROWS if dtype.llvm is not None)


def allowed(op: Op, dtype: DType) -> bool:
    """Whether the row's domain admits operands of `dtype`."""
    kinds = {"float": dtype.is_float, "integral": dtype.is_integral, "number": dtype.kind != "bool"}
    return kinds.get(op.domain, True)


def mark(op: Op, dtype: DType) -> str:
    """One cell of the matrix, for pointwise rows: x has machine code, - a hole, blank a type that the row refuses."""
    if op.kind != POINTWISE or not allowed(op, dtype):
        return ""
    return "x" if known(op.name, dtype) else "-"


def matrix() -> list[str]:
    """One line for each primitive: kind, operands, a cell for each element type, whether its derivative is known."""
    head = f"{'primitive':<12} {'kind':<10} {'operands':<8} " + " ".join(f"{dtype.short:>4}" for dtype in DTYPES)
    lines = [head + "  derivative"]
    for op in TABLE.values():
        operands = "any" if op.arity < 0 else str(op.arity)
        cells = " ".join(f"{mark(op, dtype):>4}" for dtype in DTYPES)
        derivative = "" if op.derivative is None else "none" if not any(op.derivative) else "yes"
        lines.append(f"{op.name:<12} {op.kind:<10} {operands:<8} {cells}  {derivative}".rstrip())
    return lines


def families() -> list[str]:
    """One line for each file of rules: how many rules it has, and the names that they serve."""
    named: dict[str, list[str]] = {}
    for entry in rules.ENTRIES:
        named.setdefault(entry.family, []).append(entry.names[0])
    return [f"{family} ({len(names)}): {' '.join(sorted(names))}" for family, names in sorted(named.items())]


def torch_functions() -> set[Function]:
    """Every function and method that torch lets a mode see: what capture can meet."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the listing touches deprecated names
        listed = torch.overrides.get_overridable_functions()
    return {function for functions in listed.values() for function in functions}


def ops_text() -> str:
    """The whole answer of `framefuse ops`."""
    functions = torch_functions()
    lowered = sum(rules.find(function) is not None for function in functions)
    return "\n".join(
        [
            *matrix(),
            "",
            f"{lowered} of the {len(functions)} functions of torch become primitives; the rest are library calls.",
            "Rules by family, each with the first of its names:",
            *(f"  {line}" for line in families()),
        ]
    )
