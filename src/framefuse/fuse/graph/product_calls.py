"""Says of a call of the library which operands it multiplies as matrices, and how those lie."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from framefuse.ir.graph import Arg, Node
from framefuse.ir.values import Function


def _callables(*names: str) -> tuple[Function, ...]:
    homes = (torch, torch.Tensor, torch.nn.functional)
    return tuple(getattr(home, name) for home in homes for name in names if hasattr(home, name))


LINEAR = _callables("linear")
PLAIN = _callables("matmul", "__matmul__", "mm", "bmm")
ADDED = _callables("addmm")


@dataclass(frozen=True, slots=True)
class ProductCall:
    """The numbers of a call's operands, and of its matrices whether each is as it is ("n") or transposed ("t")."""

    left: int
    right: int
    bias: int | None
    layout: str


def product_call(node: Node) -> ProductCall | None:
    """The product that a library call computes; None for another call, or one with more than operands."""
    target, args = node.attr("target"), node.attr("args")
    if node.attr("random") or node.attr("kwargs") not in ({}, ()):
        return None
    if not all(isinstance(arg, Arg) for arg in args if arg is not None):
        return None
    layout = getattr(target, "product", "")
    bias: Arg | None = None
    if any(target is one for one in LINEAR) and len(args) in (2, 3):
        left, right, bias, layout = args[0], args[1], args[2] if len(args) == 3 else None, "nt"
    elif any(target is one for one in ADDED) and len(args) == 3:
        bias, left, right, layout = args[0], args[1], args[2], "nn"
    elif (layout or any(target is one for one in PLAIN)) and len(args) == 2:
        left, right, layout = args[0], args[1], layout or "nn"
    else:
        return None
    if left is None or right is None:
        return None
    return ProductCall(left.index, right.index, None if bias is None else bias.index, layout)
